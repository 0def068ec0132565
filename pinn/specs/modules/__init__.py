"""Reader of models of unknown families, based on the modules that transformers builds."""

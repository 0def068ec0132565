"""Models of unknown families, read from the modules that transformers builds."""

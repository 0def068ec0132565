"""Interpretation of models of unknown families, from the modules that transformers builds."""

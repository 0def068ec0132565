"""Readers of engines' defaults in the Python files of their wheels, without importing them."""

"""Readers of engines' default settings, which parse the source files without importing them."""

"""Readers of engines' default settings in the Python files of their wheels, without imports."""

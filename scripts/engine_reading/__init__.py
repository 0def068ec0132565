"""Readers of engines' default settings from the source files of wheels, without imports."""

"""Reads engines' defaults off the Python files of their wheels; nothing of them is imported."""

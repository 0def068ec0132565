"""Commands that score, compare and show results."""

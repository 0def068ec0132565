"""What is kept on disk: atomic writes, remembered results, counts of what was read."""

"""What is kept on disk: atomic writes, results remembered by their code, counts of what was read."""

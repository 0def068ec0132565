"""One self-contained page about how good predictions are, drawn from tables on disk."""

"""HTML page with the figures and tables of an evaluation."""

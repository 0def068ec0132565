"""HTML page with figures and tables of an evaluation."""

"""Coefficients fitted to a server's own measurements."""

"""Measured kernels: one reader per kind of table."""

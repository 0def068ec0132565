"""Readers of the result files of benchmark tools."""

"""Traces of a server: which steps it ran, and of what."""

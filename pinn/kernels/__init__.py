"""Measured kernels, surrogates fitted to their times, and step times as sums over kernels."""

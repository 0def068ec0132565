"""Measured kernels, surrogates fitted to their times, and step times summed over kernels."""

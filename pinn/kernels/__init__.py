"""Measured kernels, surrogates fitted to them, and step times summed over kernels."""

"""Measured kernels, their surrogates, and steps composed of them."""

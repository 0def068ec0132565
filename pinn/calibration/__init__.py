"""Calibration: coefficients fitted to a server's own measurements."""

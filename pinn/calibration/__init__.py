"""Calibration: coefficients fitted to measurements of a specific server."""

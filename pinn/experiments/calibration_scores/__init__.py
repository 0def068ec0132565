"""Calibrations scored on measured servers that no checkpoint learned from."""

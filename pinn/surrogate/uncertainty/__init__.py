"""Uncertainty of predictions: intervals, and distances from the training data."""

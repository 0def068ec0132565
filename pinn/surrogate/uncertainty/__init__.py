"""Trust in predictions: intervals, and distances from the training data."""

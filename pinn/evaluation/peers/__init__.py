"""Other estimators, run on the same observations for comparison."""

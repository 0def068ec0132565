"""Experiments: what was left out and predicted, baselines, ablations and their pages."""

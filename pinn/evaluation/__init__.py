"""Experiments: predictions of held-out data, baselines, ablations and their pages."""

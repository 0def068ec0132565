"""Experiments: predictions of held-out data, baselines, ablations and result pages."""

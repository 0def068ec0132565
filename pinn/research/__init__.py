"""Baselines, ablations, studies and the evaluation suite."""

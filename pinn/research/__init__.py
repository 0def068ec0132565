"""Baselines and the evaluation suite."""

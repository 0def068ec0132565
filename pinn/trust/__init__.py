"""Intervals, and how far a prediction lies from what was measured."""

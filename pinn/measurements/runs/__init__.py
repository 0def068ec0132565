"""Readers of measured data: serving runs, and engine steps of an engine."""

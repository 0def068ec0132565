"""Readers of measured data: serving runs, and whole steps of an engine."""

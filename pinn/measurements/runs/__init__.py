"""Measured serving runs and whole engine steps."""

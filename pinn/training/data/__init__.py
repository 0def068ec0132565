"""Measured deployments and serving runs, and their splits."""

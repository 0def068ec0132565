"""Measured deployments and serving runs, and how they are split."""

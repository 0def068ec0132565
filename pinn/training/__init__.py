"""Measured deployments and serving runs, the teacher, and the network that learns both."""

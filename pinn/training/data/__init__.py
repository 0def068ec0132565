"""Readers of measured deployments, and splits into training and test rows."""

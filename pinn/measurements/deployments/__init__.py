"""Measured deployments of the public benchmark: configurations, loads and latencies."""

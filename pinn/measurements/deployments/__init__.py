"""Measured deployments of the public benchmark: what ran, under which load, and its latencies."""

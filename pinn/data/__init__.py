"""Measurements: deployments, serving runs, traces, peers, and their splits."""

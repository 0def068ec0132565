"""Traces of a server: its steps, their batches, and the times between steps."""

"""Traces of a server: its steps and their batches."""

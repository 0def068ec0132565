"""Costs of a deployment, features of a batch, and roofline lower bounds of a step's time."""

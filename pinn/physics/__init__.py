"""Costs of a deployment's work, features of a step, and roofline lower bounds of step time."""

"""Costs of a deployment, features of a batch, floors, descriptors."""

"""Measuring whole steps of an engine, where pinn is not installed too."""

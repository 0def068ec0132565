"""Specifications of models, GPUs, number formats, engine flags and batches."""

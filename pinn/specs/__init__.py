"""Inputs: models, GPUs, number formats, engine flags, batches."""

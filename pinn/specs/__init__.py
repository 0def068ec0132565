"""What is given: models, GPUs, number formats, engine flags, batches."""

"""Training data, the teacher, and the training of the network."""

"""Training data, the teacher of step times, and the training of the network."""

"""Training of the network: data, and the teacher that sums step times from measured kernels."""

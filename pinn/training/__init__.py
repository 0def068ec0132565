"""Training of the network: data, and the teacher that sums kernel times to step times."""

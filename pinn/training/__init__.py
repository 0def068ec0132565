"""Training: measured deployments and serving runs, the teacher, and the network trained on them."""

"""Leave-one-out experiments, their tables, and what is published of them."""

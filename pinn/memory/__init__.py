"""GPU memory of a server by use, and the memory that is left for the KV cache."""

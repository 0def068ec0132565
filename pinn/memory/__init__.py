"""GPU memory of a server: its uses, and the memory left for the KV cache."""

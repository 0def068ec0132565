"""GPU memory of a server: its entries, and what is left for the KV cache."""

"""GPU memory of a server: its entries, and the KV cache that is left."""

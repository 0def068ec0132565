"""GPU memory of a server: what lies on the card, and the KV cache that is left."""

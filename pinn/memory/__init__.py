"""GPU memory of a server: its users, and what they leave for the KV cache."""

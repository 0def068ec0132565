"""The network that gives alpha and beta, what it reads, and how far to trust it."""

"""A launch command as people paste it, read as the configuration that it starts."""

"""A model of no known family, read off the modules that transformers builds for its config.json."""

"""Command line: parses options, calls the API, and prints the results."""

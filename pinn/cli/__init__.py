"""The command line: parse options, call the API, print what it returns."""

"""Files of benchmark tools."""

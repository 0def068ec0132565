"""Your own server: traces, benchmarks and measured steps read, and coefficients fitted to them."""

"""Rules of the engines: defaults, kernels, schedule, memory and compatibility checks."""

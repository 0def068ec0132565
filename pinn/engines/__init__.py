"""Engine behavior: flags, defaults, kernels, scheduling rules and compatibility checks."""

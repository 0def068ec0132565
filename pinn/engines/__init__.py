"""What an engine makes of its flags: defaults, kernels, schedule, memory, refusals."""

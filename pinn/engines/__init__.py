"""An engine's own decisions about its flags: defaults, kernels, schedule, memory, refusals."""

"""Interactive page of simulated servers with sliders, in one file."""

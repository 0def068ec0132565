"""Interactive single-file page that shows simulated servers, with sliders for the load."""

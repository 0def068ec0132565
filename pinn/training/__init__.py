"""The teacher, the fits to measured servers, the network, calibration."""

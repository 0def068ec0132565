"""How far to trust a prediction: distance from the measured kernels, and calibrated intervals."""

"""The type of numbers that broadcast together."""

import numpy as np
from jaxtyping import Real

#: Real numbers that broadcast together: arrays of any shape, or single ones.
Numbers = Real[np.ndarray, "..."] | np.number | float | int

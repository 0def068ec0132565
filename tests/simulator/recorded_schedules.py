"""What recordings of engines' own schedulers and the tests that repeat them have in common.

Needs neither an engine nor this project, so that recorders run where only the engine is.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def step_seconds(tokens: int, cached: int) -> float:
    """Step time of the simulated GPU."""
    return 1e-3 + 1e-5 * tokens + 1e-7 * cached


def sequences(case: dict[str, Any]) -> list[list[int]]:
    """Prompt and output tokens of every request, with the shared beginnings."""
    rng = np.random.default_rng(0)
    found: list[list[int]] = []
    for r, donor in enumerate(case["donors"]):
        tokens = rng.integers(0, 2**31, case["prompts"][r] + case["outputs"][r]).tolist()
        if donor >= 0:
            same = min(case["shared"][r], len(tokens), len(found[donor]))
            tokens[:same] = found[donor][:same]
        found.append(tokens)
    return found

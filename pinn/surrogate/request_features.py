"""Request features: the ordered list that defines the request coefficients (alpha).

Alpha covers the time of a request outside the engine's steps. The time of each phase is the dot
product of the phase's alphas and the request's features. Waiting times (for the API server, the
step in flight, the queue, the cache) are not included, because the simulation computes them.

``data/features/request_features.csv`` lists the features.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Real

from pinn.common.files import data_folder, read_rows

Values = Float[np.ndarray, "*requests"]

PHASES = (
    "arrival_to_queue", "queue_to_schedule", "schedule_to_first_token", "output_token",
    "completion", "preemption",
)  # fmt: skip


@dataclass(frozen=True)
class RequestFeature:
    """Entry of the list of request features.

    Attributes:
        name: Name of the feature, ``phase.feature``, in all files and tables.
        unit: Unit of the feature's coefficient (alpha).
        prior: Prior mean of the feature's coefficient (alpha).
        source: Source of the prior.
    """

    name: str
    unit: str
    prior: float
    source: str

    @property
    def phase(self) -> str:
        """Return the phase of a request, such as ``completion``, to which the feature adds time."""
        return self.name.partition(".")[0]

    def value(self, prompt_tokens: Values) -> Values:
        """Return the feature of each request: 1 for a constant, otherwise its prompt tokens."""
        is_constant = self.name.endswith(".constant")
        return np.ones_like(prompt_tokens) if is_constant else prompt_tokens


_ROWS = read_rows(data_folder("features") / "request_features.csv")

#: Request features by name, in the order of every alpha vector.
REQUEST_FEATURES: dict[str, RequestFeature] = {
    row["name"]: RequestFeature(row["name"], row["unit"], float(row["prior"]), row["source"])
    for row in _ROWS
}


def request_features(
    prompt_tokens: Real[np.ndarray, "*requests"],
) -> Float[np.ndarray, "*requests features"]:
    """Return all features of requests; the last axis is in the order of ``REQUEST_FEATURES``."""
    prompts = np.asarray(prompt_tokens, dtype=np.float64)
    return np.stack([f.value(prompts) for f in REQUEST_FEATURES.values()], axis=-1)


def phase_mask(phase: str) -> Float[np.ndarray, " features"]:
    """Return an array with 1 for the request features of a phase, 0 for all others."""
    return np.array([float(f.phase == phase) for f in REQUEST_FEATURES.values()])

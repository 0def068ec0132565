"""The request features: the one ordered registry that alpha belongs to.

What happens to a request outside the steps that work on it, phase by phase, each phase a dot
product of its alphas with features of the request. Its waits (for the API server, the step in
flight, the queue, the cache) are in none, since a simulation makes them itself.

``data/features/request_features.csv`` lists them.
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
    """One entry of the registry.

    Attributes:
        name: ``phase.feature``, its name everywhere.
        unit: Of its alpha.
        prior: Alpha before any data.
        source: What the prior rests on.
    """

    name: str
    unit: str
    prior: float
    source: str

    @property
    def phase(self) -> str:
        """The phase whose time it adds to."""
        return self.name.partition(".")[0]

    def value(self, prompt_tokens: Values) -> Values:
        """Feature of requests by their prompt tokens: 1 each, or as many as those."""
        is_constant = self.name.endswith(".constant")
        return np.ones_like(prompt_tokens) if is_constant else prompt_tokens


_ROWS = read_rows(data_folder("features") / "request_features.csv")

#: The registry: name -> feature, in the order of every alpha vector.
REQUEST_FEATURES: dict[str, RequestFeature] = {
    row["name"]: RequestFeature(row["name"], row["unit"], float(row["prior"]), row["source"])
    for row in _ROWS
}


def request_features(
    prompt_tokens: Real[np.ndarray, "*requests"],
) -> Float[np.ndarray, "*requests features"]:
    """All features of requests, last axis over ``REQUEST_FEATURES``."""
    prompts = np.asarray(prompt_tokens, dtype=np.float64)
    return np.stack([f.value(prompts) for f in REQUEST_FEATURES.values()], axis=-1)


def phase_mask(phase: str) -> Float[np.ndarray, " features"]:
    """1 for the features of a phase, 0 for the others."""
    return np.array([float(f.phase == phase) for f in REQUEST_FEATURES.values()])

"""The request features: the one ordered registry that alpha belongs to.

What happens to a request outside the steps that work on it, phase by phase, each phase a dot
product of its alphas with features of the request. Its waits (for the API server, the step in
flight, the queue, the cache) are in none, since a simulation makes them itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Real

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
        value: Feature of a request by its prompt tokens.
    """

    name: str
    unit: str
    prior: float
    source: str
    value: Callable[[Values], Values] = np.ones_like

    @property
    def phase(self) -> str:
        """The phase whose time it adds to."""
        return self.name.partition(".")[0]


_SERVER = "vLLM's API server: HTTP, tokenizer and the hand-over to the engine process"

_FEATURES = (
    RequestFeature("arrival_to_queue.constant", "s", 3e-3, _SERVER),
    RequestFeature(
        "arrival_to_queue.prompt_token", "s/token", 5e-6,
        _SERVER + "; tokenizers take 0.1 to 1 million tokens per second",
        lambda prompt_tokens: prompt_tokens,
    ),
    RequestFeature("queue_to_schedule.constant", "s", 1e-4, "one scheduler call"),
    RequestFeature(
        "schedule_to_first_token.constant", "s", 1e-3,
        "detokenization and the way back to the client",
    ),
    RequestFeature(
        "output_token.constant", "s/token", 2e-5, "detokenization and streaming of one token"
    ),
    RequestFeature("completion.constant", "s", 5e-4, "freeing blocks, last chunk"),
    RequestFeature(
        "preemption.constant", "s", 1e-4,
        "one scheduler call; the recomputation itself is in the steps that do it",
    ),
)  # fmt: skip

#: The registry: name -> feature, in the order of every alpha vector.
REQUEST_FEATURES: dict[str, RequestFeature] = {f.name: f for f in _FEATURES}


def request_features(
    prompt_tokens: Real[np.ndarray, "*requests"],
) -> Float[np.ndarray, "*requests features"]:
    """All features of requests, last axis over ``REQUEST_FEATURES``."""
    prompts = np.asarray(prompt_tokens, dtype=np.float64)
    return np.stack([f.value(prompts) for f in REQUEST_FEATURES.values()], axis=-1)


def phase_mask(phase: str) -> Float[np.ndarray, " features"]:
    """1 for the features of a phase, 0 for the others."""
    return np.array([float(f.phase == phase) for f in REQUEST_FEATURES.values()])

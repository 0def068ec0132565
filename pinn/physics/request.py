"""The request features: the one ordered registry that alpha belongs to.

What happens to a request outside the steps that work on it, phase by phase, each phase a dot
product of its alphas with features of the request's situation. The coefficient sets follow the
hierarchical decomposition (base: load, configuration: flags, residual: constants and squares);
the configuration's own step time is added because a request waits for whole steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Values = Float[np.ndarray, "*requests"]

PHASES = (
    "arrival_to_queue", "queue_to_schedule", "schedule_to_first_token", "output_token",
    "completion", "preemption",
)  # fmt: skip


@dataclass(frozen=True)
class RequestState:
    """A request's situation; every field broadcasts to the shape of ``prompt_tokens``.

    Attributes:
        prompt_tokens: Length of its prompt.
        step_time_s: The configuration's own step time around it.
        queue_share: Requests waiting / max_num_seqs.
        kv_usage: Share of the KV cache in use, 0 to 1.
        prompt_share: Prompt tokens / max_model_len.
        inverse_tensor_parallel: 1 / tensor-parallel size.
        prefix_caching: 1 where it is on.
        chunked_prefill: 1 where it is on.
        recomputed_tokens: Tokens that a preempted request has to process again.
    """

    prompt_tokens: Values
    step_time_s: Values
    queue_share: Values
    kv_usage: Values
    prompt_share: Values
    inverse_tensor_parallel: Values
    prefix_caching: Values
    chunked_prefill: Values
    recomputed_tokens: Values


@dataclass(frozen=True)
class RequestFeature:
    """One entry of the registry.

    Attributes:
        name: ``phase.feature``, its name everywhere.
        unit: Of its alpha.
        prior: Alpha before any data.
        source: What the prior rests on.
        value: Feature of a request state.
        in_simulator: Whether the Go simulator's callbacks can know the feature: they see the
            prompt and the configuration, but neither queue depth nor KV usage.
    """

    name: str
    unit: str
    prior: float
    source: str
    value: Callable[[RequestState], Values]
    in_simulator: bool = True

    @property
    def phase(self) -> str:
        """The phase whose time it adds to."""
        return self.name.partition(".")[0]


def _one(state: RequestState) -> Values:
    return np.ones_like(state.prompt_tokens, dtype=np.float64)


_SERVER = "vLLM's API server: HTTP, tokenizer and the hand-over to the engine process"
_UNTAUGHT = "0, since no run separates it from constants and waits"
_EMERGES = "0, since a simulation makes this wait itself"


def _of_queue(name: str, value: Callable[[RequestState], Values], seen: bool) -> RequestFeature:
    """A feature of the wait in the queue that no run has taught; whether the simulator sees it."""
    return RequestFeature(f"queue_to_schedule.{name}", "s", 0.0, _UNTAUGHT, value, seen)


_FEATURES = (
    RequestFeature("arrival_to_queue.constant", "s", 3e-3, _SERVER, _one),
    RequestFeature(
        "arrival_to_queue.prompt_token", "s/token", 5e-6,
        _SERVER + "; tokenizers take 0.1 to 1 million tokens per second",
        lambda r: r.prompt_tokens,
    ),
    RequestFeature(
        "arrival_to_queue.step_time", "1", 0.0,
        _EMERGES + ": the engine's input queue is drained once per step", lambda r: r.step_time_s,
    ),
    RequestFeature("queue_to_schedule.constant", "s", 1e-4, "one scheduler call", _one),
    RequestFeature(
        "queue_to_schedule.step_time", "1", 0.0,
        _EMERGES + ": a request arrives at a random moment of the step in flight",
        lambda r: r.step_time_s,
    ),
    _of_queue("queue_share", lambda r: r.queue_share, seen=False),
    _of_queue("kv_usage", lambda r: r.kv_usage, seen=False),
    _of_queue("prompt_share", lambda r: r.prompt_share, seen=True),
    _of_queue("inverse_tensor_parallel", lambda r: r.inverse_tensor_parallel, seen=True),
    _of_queue("prefix_caching", lambda r: r.prefix_caching, seen=True),
    _of_queue("chunked_prefill", lambda r: r.chunked_prefill, seen=True),
    _of_queue("queue_share_squared", lambda r: r.queue_share**2, seen=False),
    _of_queue("kv_usage_squared", lambda r: r.kv_usage**2, seen=False),
    RequestFeature(
        "schedule_to_first_token.constant", "s", 1e-3,
        "detokenization and the way back to the client", _one,
    ),
    RequestFeature(
        "schedule_to_first_token.step_time", "1", 0.0,
        _EMERGES + ": asynchronous scheduling keeps up to two batches in flight",
        lambda r: r.step_time_s,
    ),
    RequestFeature(
        "output_token.constant", "s/token", 2e-5,
        "detokenization and streaming of one token", _one,
    ),
    RequestFeature("completion.constant", "s", 5e-4, "freeing blocks, last chunk", _one),
    RequestFeature(
        "preemption.constant", "s", 1e-4,
        "one scheduler call; the recomputation itself is in the steps that do it", _one,
    ),
    RequestFeature(
        "preemption.recomputed_token", "s/token", 0.0, _UNTAUGHT, lambda r: r.recomputed_tokens
    ),
)  # fmt: skip

#: The registry: name -> feature, in the order of every alpha vector.
REQUEST_FEATURES: dict[str, RequestFeature] = {f.name: f for f in _FEATURES}


def request_features(state: RequestState) -> Float[np.ndarray, "*requests features"]:
    """All features of requests, last axis over ``REQUEST_FEATURES``."""
    columns = [f.value(state) for f in REQUEST_FEATURES.values()]
    return np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64)


def phase_mask(phase: str) -> Float[np.ndarray, " features"]:
    """1 for the features of a phase, 0 for the others."""
    return np.array([float(f.phase == phase) for f in REQUEST_FEATURES.values()])

"""Latency models: linear in features, from a checkpoint or a file, or a user's Python class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
from jaxtyping import Float

from pinn.common.store import remembered_value
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics import batch_sums
from pinn.physics.costs import model_costs
from pinn.simulator import hooks
from pinn.simulator.latency_model import LatencyModel
from pinn.specs.batch import Batch
from pinn.surrogate import deployment_features as speculation
from pinn.surrogate.coefficient_set import read_coefficient_set
from pinn.surrogate.encoder_time import EncoderTime
from pinn.surrogate.group_features import shared_features
from pinn.surrogate.request_features import phase_mask, request_features
from pinn.surrogate.step_features import step_time

# Linear latency model: coefficients of one deployment, for compiled and plain runs.


@dataclass(frozen=True)
class LinearLatency:
    """Latency model in which every time is a dot product of features and coefficients.

    Attributes:
        deployment: Deployment to which the coefficients belong.
        beta: Seconds per unit of each step feature, in the order of ``STEP_FEATURES``.
        alpha: Seconds per unit of each request feature, in the order of ``REQUEST_FEATURES``.
        encoder: Time that prompts' images add to steps; None if there are no images.
    """

    deployment: Deployment
    beta: Float[np.ndarray, " step_features"]
    alpha: Float[np.ndarray, " request_features"]
    encoder: EncoderTime | None = None

    @property
    def shares(self) -> bool:
        """Return whether data-parallel ranks share part of each step's work (the experts)."""
        return bool(shared_features(self.deployment).any())

    def compile(self, apart: bool, shares: bool = False) -> np.record:
        """Return the coefficients and costs as a record for compiled code.

        Compiled code depends on the record's field names, and omits features without a field.

        Args:
            apart: Whether prompts and decodes never share a step.
            shares: Whether to include the fields for work that ranks share, even if there is none.
        """
        shared = shared_features(self.deployment)
        values: dict[str, float | np.ndarray | np.record] = {}
        if apart:
            values["apart"] = 1.0
        if shares or shared.any():
            values["shared"] = hooks.numbers(**self._steps(np.where(shared, self.beta, 0.0)))
        if self.encoder is not None:
            values["encoder"] = hooks.encoder_numbers(self.encoder)
        alpha, own = hooks.request_coefficients(self.alpha), np.where(shared, 0.0, self.beta)
        return hooks.numbers(**self._steps(own), alpha=alpha, **values)

    def _steps(self, beta: np.ndarray) -> dict[str, float | np.ndarray | np.record]:
        """Return the compiled record's fields that step times with ``beta`` need, by name."""
        drafts = speculation.speculative_costs(self.deployment)
        values: dict[str, float | np.ndarray | np.record] = {}
        if drafts is None:
            costs = {"costs": model_costs([self.deployment])}
        else:
            costs = {"costs": drafts.verified, "first": drafts.first, "later": drafts.later}
            once = np.isin(np.arange(len(beta)), speculation.ONCE)
            values["pass_beta"] = hooks.step_coefficients(np.where(once, 0.0, beta))
            values |= {name: getattr(drafts, name) for name in ("tokens", "passes", "branches")}
            beta = np.where(once, beta, 0.0)
        records = {name: hooks.cost_numbers(each) for name, each in costs.items()}
        return {**records, "beta": hooks.step_coefficients(beta), **values}

    def step_time(self, batch: Batch) -> float:
        """Return a batch's step time in seconds: host time + max(kernel launching, GPU work)."""
        return float(self.step_times([batch])[0])

    def step_times(self, batches: Sequence[Batch]) -> Float[np.ndarray, " batches"]:
        """Return the step time of each batch in seconds."""
        return self._seconds(batches, self._features(batches))

    def own_step_time(self, batch: Batch, shared_s: float) -> float:
        """Return a data-parallel rank's step time in seconds, with ``shared_s`` of shared work."""
        own = np.where(shared_features(self.deployment), 0.0, self._features([batch]))
        return float(self._seconds([batch], own, shared_s)[0])

    def shared_step_time(self, prompts: float, decodes: float, prompt_tokens: float) -> float:
        """Return the time in seconds of the expert work that all ranks share in a step.

        The arguments are means over the ranks: prompts, decodes and prompt tokens of the step.
        """
        beta = np.where(shared_features(self.deployment), self.beta, 0.0)
        sums = batch_sums.uniform_sums(decode_requests=[decodes], prefill_requests=[prompts])
        sums = replace(sums, prefill_tokens=np.array([prompt_tokens], dtype=np.float64))
        return float((speculation.deployment_features(self.deployment, sums) @ beta)[0])

    def _features(self, batches: Sequence[Batch]) -> Float[np.ndarray, "batches features"]:
        sums = batch_sums.sum_batches(batches, self.deployment.model.window_tokens)
        return speculation.padded_features(self.deployment, sums)

    def _seconds(
        self, batches: Sequence[Batch], features: np.ndarray, shared_s: float = 0.0
    ) -> Float[np.ndarray, " batches"]:
        seconds = step_time(features, self.beta, shared_s)
        if self.encoder is not None:
            seconds = seconds + np.array([self.encoder.of_batch(batch) for batch in batches])
        return seconds

    def queueing_time(self, prompt_tokens: float) -> float:
        """Return the API server's time in seconds for a request (phase ``arrival_to_queue``)."""
        return self._phase("arrival_to_queue", prompt_tokens)

    def output_token_processing_time(self) -> float:
        """Return the API server's time per streamed token, in seconds (phase ``output_token``)."""
        return self._phase("output_token")

    def scheduling_processing_time(self, prompt_tokens: float) -> float:
        """Return a request's delay in seconds outside steps, from queue to first token."""
        phases = ("queue_to_schedule", "schedule_to_first_token")
        return sum(self._phase(phase, prompt_tokens) for phase in phases)

    def preemption_processing_time(self, prompt_tokens: float) -> float:
        """Return a request's delay in seconds per preemption (phase ``preemption``)."""
        return self._phase("preemption", prompt_tokens)

    def post_decode_fixed_overhead(self) -> float:
        """Return the time in seconds after a request's last token (phase ``completion``)."""
        return self._phase("completion")

    def _phase(self, phase: str, prompt_tokens: float = 0.0) -> float:
        features = request_features(np.array(prompt_tokens))
        return float(features @ (self.alpha * phase_mask(phase)))


# Latency models written in Python, for the uncompiled loop.

_NEEDED = ("step_time", "queueing_time", "output_token_processing_time")
#: Optional methods of a user's latency model; the time of a missing method is 0 s.
_OPTIONAL = (
    "scheduling_processing_time",
    "preemption_processing_time",
    "post_decode_fixed_overhead",
)
#: Optional methods of a user's latency model, for data-parallel ranks that share experts.
_OF_RANKS = ("own_step_time", "shared_step_time")


def complete_latency(model: object) -> LatencyModel:
    """Return a latency model with every method; a missing optional method returns 0 s.

    Raises:
        PinnError: If the model lacks a required method.
    """
    missing = [name for name in _NEEDED if not callable(getattr(model, name, None))]
    if missing:
        raise PinnError(
            f"{type(model).__name__} is no latency model, as it lacks {', '.join(missing)}: add "
            "the methods of pinn/simulator/latency_model.py"
        )
    if all(hasattr(model, name) for name in _OPTIONAL):
        return cast(LatencyModel, model)
    names = (*_NEEDED, *_OPTIONAL, *(name for name in _OF_RANKS if hasattr(model, name)))
    methods = {name: getattr(model, name, lambda *_: 0.0) for name in names}
    return cast(LatencyModel, SimpleNamespace(**methods))


# A deployment's coefficients for a simulation, from a file or a checkpoint. Coefficients predicted
# by a checkpoint are cached on disk, because loading the network takes longer than the simulation.


def latency_from_json(deployment: Deployment, path: Path) -> LinearLatency:
    """Return a latency model from a coefficient file, such as one of ``pinn calibrate``.

    Raises:
        PinnError: If the file cannot be used, or belongs to another deployment.
    """
    found = read_coefficient_set(path)
    found.check_deployment(deployment, str(path))
    return LinearLatency(deployment, found.beta, found.alpha)


def latency_from_checkpoint(deployment: Deployment, checkpoint: Path) -> LinearLatency:
    """Return a latency model with the coefficients that a checkpoint predicts for a deployment.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    found = remembered_value(_coefficients, deployment, checkpoint)
    return LinearLatency(deployment, np.array(found["beta"]), np.array(found["alpha"]))


def _coefficients(deployment: Deployment, checkpoint: Path) -> dict[str, list[float]]:
    from pinn.surrogate.surrogate import Surrogate

    found = Surrogate.load(checkpoint).coefficients([deployment])
    return {"beta": found.beta[0].tolist(), "alpha": found.alpha[0].tolist()}

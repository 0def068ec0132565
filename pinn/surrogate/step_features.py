"""Step features: the ordered list that defines the step coefficients (beta).

A step takes ``beta . features`` seconds, except that kernel launches overlap with GPU work
(:func:`step_time`). A feature is either the seconds of some work at the GPU's memory bandwidth,
peak FLOP/s or link bandwidth (its beta is then a multiplier), or a count (its beta is then in
seconds). Features are not negative. No feature decreases with another request, token or context
token, or increases with a faster GPU. Betas are not negative, so the same holds for step times.

The five roofline features have betas of at least 1. Their sum is at least the roofline lower bound,
and so is every step time.

``data/features/step_features.csv`` describes each feature; the formulas are here. Priors are
educated guesses, not fits; a spread is the standard deviation of the guess's logarithm. If measured
kernels constrain a beta, the spread is the distance between the kernels' betas and the prior (root
mean square; ``git show a8211689:scripts/beta_priors.py``). The kernels' betas themselves are not
used as priors, because they contain kernels of models and GPUs that an experiment holds out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.common.files import data_folder, read_rows
from pinn.physics import step_values as values
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import ONE_SHOT_BYTES, StepCosts
from pinn.physics.step_values import Values


@dataclass(frozen=True)
class Overhead:
    """Cost per unit in addition to the measured kernels: host work and small kernels.

    For step times that are summed from measured kernels, the overhead is everything that the
    feature adds to the kernels, and is fitted to serving data. All medians and spreads were set
    with knowledge of the 825 measured deployments. Spreads were chosen by holding out one model
    among the training models of each outer fold (LOG.md). Held-out errors are therefore slightly
    lower than errors on models that were never used.

    Attributes:
        prior: Prior median of the overhead, in the unit of the feature's coefficient (beta).
        spread: Prior standard deviation of the overhead's logarithm.
    """

    prior: float
    spread: float


@dataclass(frozen=True)
class StepFeature:
    """Entry of the list of step features.

    Attributes:
        name: Name of the feature in checkpoints, tables, ONNX and Go.
        unit: Unit of the feature's coefficient (beta): ``1`` for a multiplier of a time, otherwise
            seconds per count.
        lower_bound: Minimum of the coefficient (beta); 1 if the feature is part of the roofline
            lower bound.
        kernel_prior: Prior mean of the part of the coefficient (beta) that measured kernels
            explain.
        overhead: Cost in the coefficient (beta) in addition to measured kernels; None if there is
            none.
        resource: Rate of the GPU to which the feature is inversely proportional: ``bandwidth``,
            ``peak``, ``roofline`` (the larger of both times), ``link`` or ``pcie``; or ``host`` if
            the time, or a part of it, depends on none of these.
        part: Part of a step's breakdown that the feature belongs to; the breakdown splits ``gemm``
            in two.
        explains: Operators whose measured kernel times the feature may explain
            (``pinn.training.teacher``).
        scalar: Name of the calibration factor of the feature (``pinn.calibration.prior``).
        meaning: Description of what the feature measures and what it omits.
        rests_on: Source of the prior, excluding its overhead.
        value: Function that computes the feature from costs and sums, broadcast together. Compiled
            code and Go are generated from its formula.
    """

    name: str
    unit: str
    lower_bound: float
    kernel_prior: float
    overhead: Overhead | None
    resource: str
    part: str
    explains: tuple[str, ...]
    scalar: str
    meaning: str
    rests_on: str
    value: Callable[[StepCosts, BatchSums], Values]

    @property
    def prior(self) -> float:
        """Return the prior of the coefficient (beta): ``kernel_prior`` + the overhead's prior."""
        return self.kernel_prior + (self.overhead.prior if self.overhead else 0.0)

    @property
    def source(self) -> str:
        """Return the source of the prior as text, including the source of the overhead."""
        if self.overhead is None:
            return self.rests_on
        return (
            f"{self.rests_on}; the overhead, {self.overhead.prior:g} with a standard deviation of "
            f"{self.overhead.spread:g}, was chosen with knowledge of the 825 measured deployments"
        )


_FORMULAS: dict[str, Callable[[StepCosts, BatchSums], Values]] = {
    "step": values.host_steps,
    "layer": lambda c, s: c.layers * values.busy(s),
    "moe_layer": lambda c, s: c.moe_layers * values.busy(s),
    "quantized_layer": lambda c, s: c.quantized_layers * values.busy(s),
    "parallel_layer": lambda c, s: c.parallel_layers * values.busy(s),
    "launched_layer": values.eager_layers,
    "prefill_layer": lambda c, s: np.where(s.prefill_requests > 0, c.layers, 0.0),
    "decode_layer": lambda c, s: np.where(
        s.decode_requests > 0, c.layers * c.decode_attention_time, 0.0
    ),
    "request": values.host_requests,
    "sampling": lambda c, s: c.sampled_step_s * values.busy(s) + c.sampled_request_s * s.requests,
    "activations": lambda c, s: c.activation_token_s * s.tokens,
    "gemm": values.gemm,
    "gemm_weights": lambda c, s: c.gemm_weights_s * values.busy(s),
    "gemm_compute": values.gemm_compute_s,
    "gemm_beyond_128": lambda c, s: c.gemm_token_s * np.maximum(s.tokens - values.TILE_TOKENS, 0.0),
    "gemm_beyond_1024": lambda c, s: (
        c.gemm_token_s * np.maximum(s.tokens - values.WAVE_TOKENS, 0.0)
    ),
    "experts": values.experts,
    "experts_hit": values.experts_hit,
    "experts_hit_tenth": lambda c, s: values.experts_hit(c, s, values.FEW_TOKENS_SHARE),
    "expert_compute": values.expert_compute_s,
    "expert_compute_beyond_1024": values.expert_compute_beyond_wave,
    "expert_activations": values.expert_activations,
    "decode_attention": values.decode_attention,
    "kv_read": values.kv_read,
    "prefill_attention": values.prefill_attention,
    "prefill_tokens": lambda c, s: c.prefill_token_s * s.prefill_tokens,
    "prefill_kv_read": values.prefill_kv_read,
    "all_reduce": lambda c, s: c.all_reduce_token_s * s.tokens,
    "all_reduce_first_256k": lambda c, s: values.first_bytes(c, s, ONE_SHOT_BYTES),
    "all_reduce_first_8m": lambda c, s: values.first_bytes(c, s, values.CUSTOM_BYTES),
    "large_all_reduce": values.large_all_reduces,
    "expert_exchange": lambda c, s: c.exchange_token_s * s.tokens,
    "pipeline": lambda c, s: c.pipeline_token_s * s.tokens,
    "cpu_offload": lambda c, s: c.offload_s * values.busy(s),
}


def _feature(row: Mapping[str, str]) -> StepFeature:
    """Build a step feature from a row of ``step_features.csv`` and its formula."""
    overhead = None
    if row["overhead"]:
        overhead = Overhead(float(row["overhead"]), float(row["overhead_spread"]))
    return StepFeature(
        row["name"], row["unit"], float(row["lower_bound"]), float(row["kernel_prior"]), overhead,
        row["resource"], row["part"], tuple(row["explains"].split()), row["scalar"],
        row["meaning"], row["rests_on"], _FORMULAS[row["name"]],
    )  # fmt: skip


_ROWS = read_rows(data_folder("features") / "step_features.csv")

#: Step features by name, in the order of every beta vector.
STEP_FEATURES: dict[str, StepFeature] = {row["name"]: _feature(row) for row in _ROWS}


# The host launches kernels while the GPU works. A step takes the host's own time plus the maximum
# of launching time and GPU time.

_PARTS = np.array([feature.part for feature in STEP_FEATURES.values()])
#: Masks of the step features of the host's own time, of launching, and of the GPU's work.
HOST, LAUNCHING = _PARTS == "host", _PARTS == "launching"
GPU = ~(HOST | LAUNCHING)

Features = Float[np.ndarray, "... features"]


def overlapped(features: Features, beta: Features) -> Features:
    """Zero the features of the shorter of two concurrent parts, kernel launches and GPU work.

    Args:
        features: Features of steps.
        beta: Step coefficients that determine which of the two is shorter; broadcast with the
            features.
    """
    seconds = features * beta
    launching = (seconds * LAUNCHING).sum(-1) > (seconds * GPU).sum(-1)
    return np.where(np.where(launching[..., None], GPU, LAUNCHING), 0.0, features)


def step_time(features: Features, beta: Features, gpu_s: float = 0.0) -> Float[np.ndarray, "..."]:
    """Return step times in seconds: host time plus the maximum of kernel launches and GPU work.

    Args:
        features: Features of steps.
        beta: Coefficients; broadcast with the features.
        gpu_s: Time in seconds of GPU work in addition to that of the features.
    """
    seconds = features * beta
    host, launching, gpu = ((seconds * part).sum(-1) for part in (HOST, LAUNCHING, GPU))
    return host + np.maximum(launching, gpu + gpu_s)


def seconds_by_feature(features: Features, beta: Features) -> Features:
    """Return each feature's time in seconds; the times add up to the step time.

    Kernel launches overlap with GPU work, so only the time by which they exceed it counts.
    """
    seconds = features * beta
    longer = np.maximum(seconds[..., LAUNCHING] - (seconds * GPU).sum(-1, keepdims=True), 0.0)
    seconds[..., LAUNCHING] = longer
    return seconds


def step_features(costs: StepCosts, sums: BatchSums) -> Float[np.ndarray, "... features"]:
    """Return the features of engine steps.

    Args:
        costs: Costs of the deployments; broadcast with ``sums``.
        sums: Sums over the requests of each batch, such as tokens and context lengths.

    Returns:
        Array of the broadcast shape, with a last axis in the order of ``STEP_FEATURES``.
    """
    columns = [f.value(costs, sums) for f in STEP_FEATURES.values()]
    return np.stack(np.broadcast_arrays(*columns), axis=-1)

"""Step features: the ordered registry of beta.

A step takes ``beta . features`` seconds, where launching and the GPU's work overlap
(:func:`step_time`). Each feature is a non-negative number of seconds at
datasheet rates (then its beta is a plain multiplier) or a count (then its beta is in seconds).
No feature shrinks with another request, token or context token, or grows with bandwidth or peak.
Betas are not negative, so the same is true of step times.

The five roofline features have betas of at least 1. Together they are at least the roofline lower
bound, and so is every step time.

``data/features/step_features.csv`` describes each feature; its formula is here. Priors are
guesses, not fits; a spread is the standard deviation of a guess's logarithm. Where measured kernels
constrain a beta, the spread is the distance of their betas from the prior (root mean square;
``git show a8211689:scripts/beta_priors.py``). Priors are not set to the kernels' own betas: those
contain kernels of models and GPUs that an experiment holds out.
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
    """Cost of a unit beyond the measured kernels: host work and small kernels.

    Where a step is composed of measured kernels, the overhead is all that the feature adds to them,
    and it is fitted to serving data. All medians and spreads were set with a view of the 825
    measured deployments. Spreads were chosen by holding out one model among the training models of
    each outer fold (LOG.md). Held-out errors are therefore a little lower than those of models
    never looked at.

    Attributes:
        prior: Median of the overhead, in the unit of the feature's beta.
        spread: Standard deviation of the overhead's logarithm.
    """

    prior: float
    spread: float


@dataclass(frozen=True)
class StepFeature:
    """Entry of the registry of step features.

    Attributes:
        name: Name of the feature everywhere: checkpoint, table, ONNX, Go.
        unit: Unit of its beta: ``1`` for a multiplier of datasheet time, else seconds per count.
        lower_bound: Smallest beta; 1 where the feature is part of the roofline lower bound.
        kernel_prior: Share of beta that measured kernels are expected to explain, before any data.
        overhead: Cost in beta beyond the measured kernels; None without such a cost.
        resource: Datasheet rate that the feature shrinks with: ``bandwidth``, ``peak``,
            ``roofline`` (the larger of both times), ``link``, ``pcie``, or ``host``, whose
            time, or a part of it, shrinks with none.
        part: Part of a step's breakdown that the feature belongs to; ``gemm`` is split in two
            there.
        explains: Parts of a composed step that the feature may explain
            (``pinn.training.teacher``).
        scalar: Name of the calibration factor that scales the feature (``pinn.calibration.prior``).
        meaning: Description of what the feature measures and what it omits.
        rests_on: Source of the prior without the overhead.
        value: Function of costs and sums, broadcast together, that returns the feature. Compiled
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
        """Return the beta expected before any data: the whole cost, kernels and overhead."""
        return self.kernel_prior + (self.overhead.prior if self.overhead else 0.0)

    @property
    def source(self) -> str:
        """Return the source of the prior as text, including that of the overhead."""
        if self.overhead is None:
            return self.rests_on
        return (
            f"{self.rests_on}; the overhead, {self.overhead.prior:g} with a spread of "
            f"{self.overhead.spread:g}, was set after looking at the 825 measured deployments"
        )


_FORMULAS: dict[str, Callable[[StepCosts, BatchSums], Values]] = {
    "step": lambda _, s: values.busy(s),
    "layer": lambda c, s: c.layers * values.busy(s),
    "moe_layer": lambda c, s: c.moe_layers * values.busy(s),
    "quantized_layer": lambda c, s: c.quantized_layers * values.busy(s),
    "parallel_layer": lambda c, s: c.parallel_layers * values.busy(s),
    "launched_layer": values.eager_layers,
    "prefill_layer": lambda c, s: np.where(s.prefill_requests > 0, c.layers, 0.0),
    "decode_layer": lambda c, s: np.where(
        s.decode_requests > 0, c.layers * c.decode_attention_time, 0.0
    ),
    "request": lambda _, s: s.requests,
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
    """Return the feature of a row of the table, with its formula."""
    overhead = None
    if row["overhead"]:
        overhead = Overhead(float(row["overhead"]), float(row["overhead_spread"]))
    return StepFeature(
        row["name"], row["unit"], float(row["lower_bound"]), float(row["kernel_prior"]), overhead,
        row["resource"], row["part"], tuple(row["explains"].split()), row["scalar"],
        row["meaning"], row["rests_on"], _FORMULAS[row["name"]],
    )  # fmt: skip


_ROWS = read_rows(data_folder("features") / "step_features.csv")

#: Registry of step features: name -> feature, in the order of every beta vector.
STEP_FEATURES: dict[str, StepFeature] = {row["name"]: _feature(row) for row in _ROWS}


# The host launches kernels while the GPU works. A step takes the host's own time and the longer of
# the two.

_PARTS = np.array([feature.part for feature in STEP_FEATURES.values()])
#: Masks of the features: the host's own time, launching, and the GPU's work.
HOST, LAUNCHING = _PARTS == "host", _PARTS == "launching"
GPU = ~(HOST | LAUNCHING)

Features = Float[np.ndarray, "... features"]


def overlapped(features: Features, beta: Features) -> Features:
    """Return features with 0 for the shorter of launching and the GPU's work.

    Args:
        features: Features of steps.
        beta: Coefficients that decide which is shorter; broadcast against the features.
    """
    seconds = features * beta
    launching = (seconds * LAUNCHING).sum(-1) > (seconds * GPU).sum(-1)
    return np.where(np.where(launching[..., None], GPU, LAUNCHING), 0.0, features)


def step_time(features: Features, beta: Features, gpu_s: float = 0.0) -> Float[np.ndarray, "..."]:
    """Return the seconds of steps: the host's own, and the longer of launching and the GPU's work.

    Args:
        features: Features of steps.
        beta: Coefficients; broadcast against the features.
        gpu_s: Work of the GPU beside that of the features, in seconds.
    """
    seconds = features * beta
    host, launching, gpu = ((seconds * part).sum(-1) for part in (HOST, LAUNCHING, GPU))
    return host + np.maximum(launching, gpu + gpu_s)


def seconds_by_feature(features: Features, beta: Features) -> Features:
    """Return seconds that add up to the step's: of launching, those beyond the GPU's work."""
    seconds = features * beta
    longer = np.maximum(seconds[..., LAUNCHING] - (seconds * GPU).sum(-1, keepdims=True), 0.0)
    seconds[..., LAUNCHING] = longer
    return seconds


def step_features(costs: StepCosts, sums: BatchSums) -> Float[np.ndarray, "... features"]:
    """Return the features of engine steps, from which step times are predicted.

    Args:
        costs: Costs of each deployment; their shape broadcasts against that of ``sums``.
        sums: Sums over the requests of each batch, such as tokens and context lengths.

    Returns:
        Array of the broadcast shape with one more, last axis over ``STEP_FEATURES``.
    """
    columns = [f.value(costs, sums) for f in STEP_FEATURES.values()]
    return np.stack(np.broadcast_arrays(*columns), axis=-1)

"""What a prediction's spread is made of: the one ordered registry that its sizes belong to.

The log half-width of an interval is a sum of parts, each a number that is known before anything is
measured times a size that left-out rows teach. No part and no size is negative, so the spread
grows, or stays, with fewer bits, with experts, with stretch and with everything unmeasured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, log2

from pinn.kernels.tables.work import POPULARITY_SPREAD, experts_hit_random
from pinn.specs.deployment import Deployment
from pinn.specs.precision import Precision
from pinn.trust.distance import KernelDistance


@dataclass(frozen=True)
class Situation:
    """All that is known of a step before it is measured, and that decides how wrong it may be.

    Attributes:
        deployment: Model, GPU and configuration.
        distance: Of the step from measured kernels; holds the operators' shares of its time.
        requests: In the step.
        gpu_known: Whether serving data of this GPU were learned from.
    """

    deployment: Deployment
    distance: KernelDistance
    requests: float
    gpu_known: bool


@dataclass(frozen=True)
class SpreadPart:
    """One entry of the registry.

    Attributes:
        name: Its name in files.
        words: What a sentence calls it.
        prior: Its size before any left-out row, up to a factor that all parts have in common.
        ttft_prior: The same of TTFT.
        source: What the part measures and what its prior rests on.
        value: Of a situation; never negative.
    """

    name: str
    words: str
    prior: float
    ttft_prior: float
    source: str
    value: Callable[[Situation], float]


def bits_dropped(found: Precision) -> float:
    """Halvings from 16 bits, as a share of those to 4 bits; block scales do not count.

    >>> from pinn.specs.precision import precision
    >>> [bits_dropped(precision(name)) for name in ("fp32", "bf16", "fp8_block", "mxfp4")]
    [0.0, 0.0, 0.5, 1.0]
    """
    return log2(16 / min(weight_bits(found), 16)) / 2


def weight_bits(found: Precision) -> int:
    """Bits of a weight without its share of the scales: 32, 16, 8 or 4."""
    return next(bits for bits in (32, 16, 8, 4) if 8 * found.bytes_per_weight >= bits)


def _share(*operators: str) -> Callable[[Situation], float]:
    return lambda s: sum(s.distance.shares.get(name, 0.0) for name in operators)


def _few_bit_gemm(s: Situation) -> float:
    return _share("gemm")(s) * bits_dropped(s.deployment.model.precisions.attention)


def _few_bit_experts(s: Situation) -> float:
    return _share("experts")(s) * bits_dropped(s.deployment.model.precisions.experts)


def _uneven_experts(s: Situation) -> float:
    moe = s.deployment.model.moe
    if moe is None:
        return 0.0
    even, popular = (
        float(experts_hit_random(max(s.requests, 1.0), moe.experts, moe.top_k, 1, spread))
        for spread in (0.0, POPULARITY_SPREAD)
    )
    return _share("experts")(s) * log(even / popular)


def _attention(s: Situation) -> float:
    return _share("decode_attention", "prefill_attention")(s)


def _latent_attention(s: Situation) -> float:
    return _attention(s) * s.deployment.model.is_latent


_SHAPES = "kernels of left-out shapes ('pinn kernels errors')"
_ASSUMED = "assumed"

_PARTS = (
    SpreadPart(
        "base", "what no descriptor tells", 0.02, 0.02,
        f"the measurement itself and host work, of TTFT the server's and the waits; {_ASSUMED}",
        lambda _: 1.0,
    ),
    SpreadPart(
        "gemm", "matrix multiplications", 0.005, 0.005,
        f"share of the time; {_SHAPES}: 7 % each, which average out over a layer's shapes",
        _share("gemm"),
    ),
    SpreadPart(
        "attention", "attention", 0.01, 0.005,
        f"share of the time; {_SHAPES}: 7 %, one or two shapes a model",
        _attention,
    ),
    SpreadPart(
        "experts", "experts", 0.05, 0.005, f"share of the time; {_SHAPES}: 8 %, one shape a model",
        _share("experts"),
    ),
    SpreadPart(
        "few_bit_gemm", "matrix multiplications of few bits", 0.05, 0.06,
        "share of the time x bits dropped: kernels that differ between releases, and activations "
        f"quantized in kernels that nobody timed; {_ASSUMED}", _few_bit_gemm,
    ),
    SpreadPart(
        "few_bit_experts", "experts of few bits", 0.03, 0.06,
        f"share of the time x bits dropped; {_SHAPES}: 4 bits 7 to 20 %, 16 bits 7 %",
        _few_bit_experts,
    ),
    SpreadPart(
        "uneven_experts", "experts asked for unevenly", 0.05, 0.01,
        "share of the experts' time x how many more of them even draws would hit than popular "
        f"ones, a log: most where a step hits some of them often and others not; {_ASSUMED}",
        _uneven_experts,
    ),
    SpreadPart(
        "communication", "messages between GPUs", 0.08, 0.1,
        f"share of the time, which depends on the machine's links and on vLLM's choice; {_ASSUMED}",
        _share("all_reduce", "exchange"),
    ),
    SpreadPart(
        "expert_parallel", "experts spread over GPUs", 0.01, 0.01,
        "share of the experts' time x log2 of the GPUs over 3: the slowest GPU makes the step, and "
        f"which experts are asked for is not known; {_ASSUMED}",
        lambda s: _share("experts")(s) * log2(s.deployment.recipe.expert_parallel_size) / 3,
    ),
    SpreadPart(
        "latent_attention", "latent attention", 0.03, 0.1,
        "share of the time, more of a prompt's: one shape of its decode was timed, and of its "
        f"prompts whole modules; {_ASSUMED}", _latent_attention,
    ),
    SpreadPart(
        "stretch", "sizes far from measured kernels", 0.02, 0.005,
        f"log distance of the kernels' sizes from measured ones; {_ASSUMED}",
        lambda s: s.distance.stretch,
    ),
    SpreadPart(
        "other_gpu", "kernels measured on other GPUs only", 0.03, 0.01,
        "log ratio of the datasheets; kernels of left-out GPUs ('pinn kernels errors'): 2 to 8 % "
        "more than of left-out shapes", lambda s: s.distance.gap,
    ),
    SpreadPart(
        "unknown_gpu", "no serving data of this GPU", 0.005, 0.005, f"0 or 1; {_ASSUMED}",
        lambda s: float(not s.gpu_known),
    ),
    SpreadPart(
        "load", "requests in the step", 0.005, 0.005, f"log2 of their number over 10; {_ASSUMED}",
        lambda s: log2(max(s.requests, 1.0)) / 10,
    ),
    SpreadPart(
        "penalties", "penalties of tokens that occurred", 0.015, 0.015,
        "0 or 1: every step copies the ids of all output tokens to the GPU, which nobody timed; "
        f"{_ASSUMED}", lambda s: float(s.deployment.sampling.is_penalized),
    ),
)  # fmt: skip

#: The registry: name -> part, in the order of every vector of sizes.
SPREAD_PARTS: dict[str, SpreadPart] = {part.name: part for part in _PARTS}


def spread_parts(situation: Situation) -> dict[str, float]:
    """Value of every part."""
    return {name: float(part.value(situation)) for name, part in SPREAD_PARTS.items()}

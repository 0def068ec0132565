"""Breakdown of an engine step's time by part, with the kernel measurements behind each part.

The network's breakdown multiplies each coefficient (beta) by its feature. The kernels' breakdown
sums measured kernel times and overheads. The two breakdowns attribute launches of CUDA graphs
differently: a measured kernel's time includes its launch, whereas the network counts launches per
layer. The host launches kernels outside of graphs while the GPU works. Launch time that exceeds the
GPU's work is a separate part.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from pinn.engines.deployment import Deployment
from pinn.kernels.composition import COMPOSED_PARTS, compose
from pinn.kernels.evidence import KernelUse, kernels_used
from pinn.physics.batch_sums import UniformBatches, alike, sum_batches
from pinn.specs.batch import parse_batch
from pinn.surrogate import deployment_features as speculation
from pinn.surrogate.encoder_time import EncoderTime
from pinn.surrogate.step_features import LAUNCHING, STEP_FEATURES, seconds_by_feature
from pinn.training.teacher import Teacher

#: Descriptions of the parts of a step's time, by part, in the order of every table and plot.
PARTS: dict[str, str] = {
    "weights": "weight reads: matrix multiplications for one token (projections, dense layers, LM "
    "head)",
    "matmul_arithmetic": "arithmetic of these matrix multiplications for all other tokens",
    "experts": "router, routed experts, token dispatch and combine",
    "decode_attention": "attention of decode requests (KV cache reads)",
    "prefill_attention": "attention of prefills",
    "communication": "all-reduce, all-to-all between expert-parallel GPUs, pipeline transfers",
    "small_kernels": "norms, rotary embedding, quantization; launches within CUDA graphs",
    "sampling": "sampling of tokens from logits",
    "launching": "GPU idle time while waiting for kernel launches outside CUDA graphs",
    "host": "CPU: scheduling, input preparation, work per request",
}
#: Additional part of steps that use speculative decoding with a draft model on the GPU.
DRAFTING: dict[str, str] = {
    "drafting": "layers and LM head of the draft model, over all drafting passes"
}
#: Additional part of steps that compute the first token of an image.
ENCODING: dict[str, str] = {
    "encoder": "vision encoder, summed from measured kernels; never measured as a whole"
}

#: Part of features and operators that are matrix multiplications. The breakdown splits this part:
#: the time for one token is ``weights``, the rest is ``matmul_arithmetic``.
_GEMM = "gemm"
#: Parts of a step, by step feature; the breakdown splits the part ``gemm`` in two.
PART_OF_FEATURE: dict[str, str] = {name: f.part for name, f in STEP_FEATURES.items()}
#: Parts of a step, by operator with measured kernels.
PART_OF_OPERATOR: dict[str, str] = {
    operator: "communication" if operator in ("all_reduce", "exchange") else operator
    for operator in COMPOSED_PARTS
}

#: Batch of a single decode without context, whose matrix multiplications take the time to read the
#: weights once.
_ONE_TOKEN = UniformBatches(*(np.array([x]) for x in (1.0, 0.0, 0.0, 0.0, 0.0)))


@dataclass(frozen=True)
class Breakdown:
    """Time of one engine step by part; all times are in seconds.

    Attributes:
        batch: Description of the batch, as given to ``parse_batch``.
        floor: Roofline lower bound of the step time.
        network: Time according to the network's step coefficients (betas), by part of the step.
        features: Time according to the network's step coefficients (betas), by step feature.
        composed: Time summed from measured kernels and overheads, by part of the step; None without
            kernel surrogates or under speculative decoding.
        kernels: Kernels of the step, longest first. Their times are as measured, without the
            multipliers in ``composed``.
    """

    batch: str
    floor: float
    network: Mapping[str, float]
    features: Mapping[str, float]
    composed: Mapping[str, float] | None = None
    kernels: tuple[KernelUse, ...] = ()


def breakdown(
    deployment: Deployment,
    batch: str,
    beta: Float[np.ndarray, " features"],
    teacher: Teacher | None = None,
    encoder: EncoderTime | None = None,
) -> Breakdown:
    """Break down the time of one engine step by part.

    The kernels' breakdown treats all decodes in a batch as identical, and likewise all prefill
    chunks (``pinn.physics.batch_sums.alike``). The network's breakdown uses each request's sizes.
    Steps that verify draft tokens have no breakdown by kernels.

    Args:
        deployment: Model, GPU and engine configuration.
        batch: Description of the batch, in the notation of ``parse_batch``.
        beta: Step coefficients that the network predicts for the deployment.
        teacher: Kernel surrogates and calibration factors; None to use the network alone.
        encoder: Time that images in prompts add to steps; None without images.

    Raises:
        PinnError: If the batch cannot be parsed or is empty.
    """
    parsed = parse_batch(batch)
    window = deployment.model.window_tokens
    sums, alone = sum_batches([parsed], window), _ONE_TOKEN.sums(window)
    of_steps = speculation.deployment_features, speculation.drafting_features
    features, drafting = (of(deployment, sums)[0] for of in of_steps)
    single_whole, single_drafting = (of(deployment, alone)[0] for of in of_steps)
    one_token = single_whole - single_drafting
    seconds, drafted = seconds_by_feature(features, beta), beta * drafting * ~LAUNCHING
    parts = _by_part(PART_OF_FEATURE, seconds - drafted, beta * one_token)
    if deployment.draft is not None:
        parts |= dict.fromkeys(DRAFTING, float(drafted.sum()))
    floor, encoding = float(speculation.deployment_floor_seconds(deployment, sums)[0]), {}
    if encoder is not None:
        encoding = dict.fromkeys(ENCODING, encoder.of_batch(parsed))
        floor += encoder.floor_s * encoder.begun_in(parsed)
    found = Breakdown(
        batch=batch,
        floor=floor,
        network=parts | encoding,
        features=dict(zip(STEP_FEATURES, seconds.tolist(), strict=True)),
    )
    if teacher is None or deployment.recipe.speculation is not None:
        return found
    equal, scalars = alike([parsed]), teacher.scalars
    kernel_s = compose(teacher.kernels, deployment, equal)[0] * scalars.multipliers
    single = compose(teacher.kernels, deployment, _ONE_TOKEN)[0] * scalars.multipliers
    kernels = _by_part(PART_OF_OPERATOR, kernel_s, single)
    beside, beside_single = scalars.overheads * features, scalars.overheads * one_token
    overheads = _by_part(PART_OF_FEATURE, beside, beside_single)
    composed = _waited({part: kernels[part] + overheads[part] for part in PARTS}) | encoding
    used = tuple(kernels_used(teacher.kernels, deployment, equal))
    return replace(found, composed=composed, kernels=used)


def _waited(seconds: Mapping[str, float]) -> dict[str, float]:
    """Reduce launch time to its excess over the GPU's work, in seconds by part of a step."""
    work = sum(value for part, value in seconds.items() if part not in ("launching", "host"))
    return {**seconds, "launching": max(seconds["launching"] - work, 0.0)}


def _by_part(
    part_of: Mapping[str, str],
    seconds: Float[np.ndarray, " entries"],
    one_token: Float[np.ndarray, " entries"],
) -> dict[str, float]:
    """Sum times in seconds by part of a step; matrix multiplications are split into two parts.

    The part ``weights`` is their time in a step of one token; ``matmul_arithmetic`` is the rest.

    Args:
        part_of: Part of a step, by feature or operator.
        seconds: Time in seconds of each feature or operator in the step.
        one_token: Time in seconds of each feature or operator in a step of one token.
    """
    found = dict.fromkeys(PARTS, 0.0)
    entries = zip(part_of.values(), seconds.tolist(), one_token.tolist(), strict=True)
    for part, whole, single in entries:
        if part == _GEMM:
            found["weights"] += single
            found["matmul_arithmetic"] += whole - single
        else:
            found[part] += whole
    return found

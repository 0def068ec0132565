"""Measured whole steps as rows that are linear in the scalars: parts of each composed step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from pinn.data.whole_steps import MeasuredSteps
from pinn.kernels.composition import COMPOSED_PARTS, compose
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.costs import step_costs
from pinn.physics.step import STEP_FEATURES, step_features
from pinn.physics.uniform_batches import UniformBatches
from pinn.specs.deployment import Deployment


@dataclass(frozen=True)
class StepRows:
    """``n`` kinds of measured steps.

    Attributes:
        parts: Seconds of each composed part.
        features: Step features.
        seconds: Median measured time.
        weight: Of each row in the fit: every model and kind of step (decodes alone, or prompts
            too) counts as many kinds as the square root of its own.
    """

    parts: Float[np.ndarray, "n parts"]
    features: Float[np.ndarray, "n features"]
    seconds: Float[np.ndarray, " n"]
    weight: Float[np.ndarray, " n"]


NO_STEPS = StepRows(
    np.zeros((0, len(COMPOSED_PARTS))), np.zeros((0, len(STEP_FEATURES))), np.zeros(0), np.zeros(0)
)


def step_rows(kernels: KernelSurrogates, measured: Sequence[MeasuredSteps]) -> StepRows:
    """Compose measured steps of kernels.

    Args:
        kernels: Fitted operator surrogates.
        measured: Kinds of steps of several deployments; may be none.
    """
    if not measured:
        return NO_STEPS
    padded = [as_launched(one.batches, one.deployment) for one in measured]
    parts = [compose(kernels, one.deployment, b) for one, b in zip(measured, padded, strict=True)]
    features = [
        step_features_of(one.deployment, b) for one, b in zip(measured, padded, strict=True)
    ]
    group = np.concatenate(
        [
            np.char.add(one.model, np.where(one.batches.prefill_requests > 0, "+", ""))
            for one in measured
        ]
    )
    _, index, counts = np.unique(group, return_inverse=True, return_counts=True)
    return StepRows(
        np.concatenate(parts),
        np.concatenate(features),
        np.concatenate([one.seconds for one in measured]),
        1 / np.sqrt(counts[index]),
    )


def step_features_of(
    deployment: Deployment, batches: UniformBatches
) -> Float[np.ndarray, "n features"]:
    """Step features of batches of one deployment."""
    costs = step_costs([deployment])
    return step_features(costs, batches.sums(deployment.model.window_tokens))


def as_launched(batches: UniformBatches, deployment: Deployment) -> UniformBatches:
    """Batches of decodes alone with the rows that fill their CUDA graph, of no context.

    As the simulator does (``pinn.simulator.filling.round_up_decodes``).
    """
    sizes = np.array([*deployment.recipe.graph_sizes, np.inf])
    decodes = batches.decode_requests
    graph = sizes[np.searchsorted(sizes, decodes)]
    fills = (batches.prefill_requests == 0) & np.isfinite(graph) & (decodes > 0)
    launched = np.where(fills, graph, decodes)
    context = batches.decode_context * decodes / np.maximum(launched, 1.0)
    return replace(batches, decode_requests=launched, decode_context=context)

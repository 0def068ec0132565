"""Evidence for the coefficients of a network: what held-out data and distances say of them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pinn.common import JsonObject
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.surrogate.coefficient_set import CoefficientSet
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.evidence import Evidence
from pinn.surrogate.surrogate import Surrogate
from pinn.surrogate.uncertainty.distance import REFERENCE_BATCH, gpu_is_known, locate_each
from pinn.surrogate.uncertainty.intervals import (
    METRICS,
    StatedIntervals,
    around,
    read_calibration,
    step_half_width,
)
from pinn.surrogate.uncertainty.kinds import Situation
from pinn.surrogate.uncertainty.training_space import training_space
from pinn.surrogate.uncertainty.trust import describe_trust, named_inputs


def network_evidence(
    checkpoint: Path, found: CoefficientSet, deployment: Deployment, batches: Sequence[str]
) -> Evidence:
    """Return the evidence for coefficients of a network.

    Args:
        checkpoint: Trained network, with intervals and kernel surrogates beside it.
        found: Its coefficients.
        deployment: What they belong to.
        batches: Batches to time.
    """
    distance, outside = _distance(checkpoint, deployment)
    try:
        stated = read_calibration(checkpoint)
        reference, *others = locate_each(checkpoint, deployment, [REFERENCE_BATCH, *batches])
        known = gpu_is_known(checkpoint, deployment)
        situation = Situation(deployment, reference, known)
        ends = [around(1.0, step_half_width(stated, known, text)) for text in batches]
    except PinnError as error:
        return Evidence(distance, missing=str(error))
    described = describe_trust(situation, outside, stated)
    nearest = distance["nearest_measured"]
    if nearest is not None:
        described["sentence"] += f" The nearest measured deployment is {nearest}."
    return Evidence(
        distance | described,
        stated.level,
        {metric: around(1.0, stated.half_width(metric, known)) for metric in METRICS},
        {
            name: stated.coefficient_interval(name, value, known)
            for name, value in _learned(found).items()
        },
        ends,
        [_far(stated, each.total) for each in others],
        REFERENCE_BATCH,
    )


def _learned(found: CoefficientSet) -> dict[str, float]:
    """Return the coefficients that data determined, by their full names."""
    values = [*found.beta.tolist(), *found.alpha.tolist()]
    taught = [True] * len(found.beta) + found.taught.tolist()
    return {n: v for n, v, known in zip(NAMES, values, taught, strict=True) if known}


def _distance(checkpoint: Path, deployment: Deployment) -> tuple[JsonObject, dict[str, float]]:
    """Return the distance from the training data for JSON, and the inputs outside its range."""
    space = training_space(Surrogate.load(checkpoint).checkpoint)
    located = space.locate([deployment])
    held_out = sorted(space.held_out_distances().tolist())
    span = [held_out[0], held_out[-1]] if held_out else None
    outside = located.outside_names(0)
    if located.nearest[0] < 0:
        nearest, away = None, None
        text = "The checkpoint names no measured deployments, so the distance is unknown."
    else:
        nearest, away = space.names[located.nearest[0]], float(located.distance[0])
        text = _distance_words(nearest, away, span, outside)
    return {
        "nearest_measured": nearest,
        "distance": away,
        "left_out_models": span,
        "outside_training_range": outside,
        "sentence": text,
    }, outside


def _distance_words(
    nearest: str, away: float, span: Sequence[float] | None, outside: Mapping[str, float]
) -> str:
    text = f"The nearest measured deployment is {nearest}, {away:.1f} standard deviations away."
    if span:
        text += f" Models left out in the evaluation lay {span[0]:.1f} to {span[1]:.1f} away."
    if not outside:
        return f"{text} Every input lies inside the training range."
    return f"{text} Outside the training range: {named_inputs(outside)}."


def _far(stated: StatedIntervals, distance: float) -> list[str]:
    """Return a mark where a batch's kernels lie farther from measured ones than any held out."""
    farthest = max(kind.farthest for kind in stated.kinds)
    if distance <= farthest:
        return []
    return [
        "its kernels' sizes and GPU differ from measured ones by a factor of "
        f"{math.exp(distance):.2f}, those of left-out rows by {math.exp(farthest):.2f} at most"
    ]

"""Evidence for the coefficients of a network, as text: held-out errors and distances."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from pinn.surrogate.uncertainty.kinds import Situation, kind_of, nearest_kind, place_of
from pinn.surrogate.uncertainty.training_space import training_space


def network_evidence(
    checkpoint: Path, found: CoefficientSet, deployment: Deployment, batches: Sequence[str]
) -> Evidence:
    """Return the intervals of a network's prediction, and its distance from the training data.

    Args:
        checkpoint: Checkpoint of the network; its folder has intervals and kernel surrogates.
        found: Coefficients that the network predicts.
        deployment: Deployment of the coefficients.
        batches: Batches whose step times are predicted.
    """
    distance, outside = _distance(checkpoint, deployment)
    try:
        stated = read_calibration(checkpoint)
        reference, *others = locate_each(checkpoint, deployment, [REFERENCE_BATCH, *batches])
        known = gpu_is_known(checkpoint, deployment)
        situation = Situation(deployment, reference, known)
        halves = stated.log_half_widths(deployment, known)
        ends = [around(1.0, step_half_width(halves, text)) for text in batches]
    except PinnError as error:
        return Evidence(distance, missing=str(error))
    described = describe_trust(situation, outside, stated)
    nearest = distance["nearest_measured"]
    if nearest is not None:
        described["sentence"] += f" {_nearest_words(str(nearest), deployment)}"
    return Evidence(
        distance | described,
        stated.level,
        {metric: around(1.0, halves[metric]) for metric in METRICS},
        stated.coefficient_intervals(_learned(found), halves),
        ends,
        [_far(stated, each.total) for each in others],
        REFERENCE_BATCH,
    )


def _learned(found: CoefficientSet) -> dict[str, float]:
    """Return the coefficients that were fitted to data, by ``beta.NAME`` or ``alpha.NAME``."""
    values = found.coefficients.values[0].tolist()
    taught = [True] * len(found.beta) + found.taught.tolist()
    return {n: v for n, v, known in zip(NAMES, values, taught, strict=True) if known}


def _distance(checkpoint: Path, deployment: Deployment) -> tuple[JsonObject, dict[str, float]]:
    """Return the distance from the training data as JSON, and network inputs outside its range."""
    space = training_space(Surrogate.load(checkpoint).checkpoint)
    located = space.locate([deployment])
    held_out = sorted(space.held_out_distances().tolist())
    span = [held_out[0], held_out[-1]] if held_out else None
    outside = located.outside_names(0)
    if located.nearest[0] < 0:
        nearest, away = None, None
        text = (
            "The checkpoint does not list the measured deployments that it was trained on, so the "
            "distance from the training data is unknown."
        )
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


def _nearest_words(nearest: str, deployment: Deployment) -> str:
    same = nearest == f"{deployment.model.name} on {deployment.gpu.name}"
    learned = ": this model on this GPU is in the training data" if same else ""
    return f"The nearest measured deployment is {nearest}{learned}."


def _distance_words(
    nearest: str, away: float, span: Sequence[float] | None, outside: Mapping[str, float]
) -> str:
    text = f"The nearest measured deployment is {nearest}, {away:.1f} standard deviations away."
    if span:
        text += f" Models held out in the evaluation were {span[0]:.1f} to {span[1]:.1f} away."
    if not outside:
        return f"{text} Every feature is inside the training range."
    return f"{text} Outside the training range: {named_inputs(outside)}."


def _far(stated: StatedIntervals, distance: float) -> list[str]:
    """Return a warning if a batch is farther from measured kernels than all held-out data."""
    farthest = max(kind.farthest for kind in stated.kinds)
    if distance <= farthest:
        return []
    return [
        f"outside the evaluated range: its kernel sizes and GPU are within "
        f"{math.exp(distance):.2f}x of measured ones, those of held-out data within "
        f"{math.exp(farthest):.2f}x"
    ]


# Sentences about the expected error of a prediction.

#: Maximum number of network inputs outside the training range that a sentence names.
_NAMED = 4

_UNSERVED = (
    "Some of this model's layer types were not measured on any server: expect larger errors."
)


def describe_trust(
    situation: Situation, outside: Mapping[str, float], calibration: StatedIntervals
) -> dict[str, Any]:
    """Return the errors on held-out data of the same type, as JSON values.

    Args:
        situation: Situation of the step that represents the whole deployment.
        outside: Inputs outside the training range, in standard deviations, farthest first.
        calibration: Intervals of the checkpoint.

    Returns:
        ``kind`` (of weights), ``place`` (what was measured on the GPU), ``kernel_distance``, its
        parts ``by_operator``, ``beyond_left_out`` (whether it exceeds the distance of all held-out
        rows) and ``sentence``.
    """
    farthest = max(kind.farthest for kind in calibration.kinds)
    beyond = situation.distance.total > farthest
    sentences = [_shown(situation, calibration), _stretch_words(situation, farthest, beyond)]
    if wider := calibration.wider_for(situation.deployment, situation.gpu_known):
        sentences.append(wider)
    if not situation.deployment.model.is_plain:
        sentences.append(_UNSERVED)
    if outside:
        inputs = named_inputs(outside)
        sentences.append(f"Features outside the training range, in standard deviations: {inputs}.")
    return {
        "kind": kind_of(situation.deployment.model),
        "place": place_of(situation),
        "kernel_distance": situation.distance.total,
        "by_operator": dict(situation.distance.by_operator),
        "beyond_left_out": beyond,
        "sentence": " ".join(sentences),
    }


def _shown(situation: Situation, calibration: StatedIntervals) -> str:
    """Return a sentence with the errors on held-out rows of the same or the nearest type."""
    kind, place = kind_of(situation.deployment.model), place_of(situation)
    found = nearest_kind(calibration.kinds, kind, place)
    models = "1 model" if found.models == 1 else f"{found.models} models"
    errors = f"median APE {100 * found.median:.0f} %, P90 {100 * found.p90:.0f} %."
    if (found.kind, found.place) == (kind, place):
        over = f"held-out step times of models with {kind} on {place}"
        return f"Over {over} ({found.rows:,} rows, {models}): {errors}"
    return (
        f"There are no held-out measurements of models with {kind} on {place}. "
        f"Over {found.words} ({found.rows:,} rows, {models}): {errors}"
    )


def _stretch_words(situation: Situation, farthest: float, beyond: bool) -> str:
    stretch = math.exp(situation.distance.total)
    if not beyond:
        return (
            f"Kernel sizes and GPU are within {stretch:.2f}x of measured ones (weighted by time)."
        )
    return (
        f"Outside the evaluated range: kernel sizes and GPU are within {stretch:.2f}x of measured "
        f"ones (weighted by time), those of held-out data within {math.exp(farthest):.2f}x: expect "
        "larger errors."
    )


def named_inputs(outside: Mapping[str, float]) -> str:
    """Return the names and distances of the first inputs outside the training range, as text."""
    named = ", ".join(f"{name} ({by:+.1f})" for name, by in list(outside.items())[:_NAMED])
    return f"{named} and {len(outside) - _NAMED} more" if len(outside) > _NAMED else named

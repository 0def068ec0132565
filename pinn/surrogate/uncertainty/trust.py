"""How far to trust one prediction, in words and as values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pinn.surrogate.uncertainty.intervals import StatedIntervals
from pinn.surrogate.uncertainty.kinds import Situation, kind_of, nearest_kind, place_of

# What is known of a prediction's error in plain words.

#: Most inputs that a sentence names.
_NAMED = 4

_UNTAUGHT = "It has layers beside attention over keys, which alone was taught: expect more error."


def describe_trust(
    situation: Situation, outside: Mapping[str, float], calibration: StatedIntervals
) -> dict[str, Any]:
    """What left-out data of the same kind showed, ready for JSON.

    Args:
        situation: Of the step that stands for the whole.
        outside: Inputs beyond the training range, in standard deviations, farthest first.
        calibration: Of the checkpoint.

    Returns:
        ``kind`` of weights, ``place`` (what is known of the GPU), ``kernel_distance``, its parts
        ``by_operator``, ``beyond_left_out`` (whether it lies farther than every left-out row) and
        ``sentence``.
    """
    farthest = max(kind.farthest for kind in calibration.kinds)
    beyond = situation.distance.total > farthest
    sentences = [_shown(situation, calibration), _distance_words(situation, farthest, beyond)]
    if not situation.deployment.model.is_plain:
        sentences.append(_UNTAUGHT)
    if outside:
        inputs = named_inputs(outside)
        sentences.append(f"Inputs beyond the training range, in standard deviations: {inputs}.")
    return {
        "kind": kind_of(situation.deployment.model),
        "place": place_of(situation),
        "kernel_distance": situation.distance.total,
        "by_operator": dict(situation.distance.by_operator),
        "beyond_left_out": beyond,
        "sentence": " ".join(sentences),
    }


def _shown(situation: Situation, calibration: StatedIntervals) -> str:
    """How wrong left-out rows of the kind were, or of the nearest kind that there is."""
    kind, place = kind_of(situation.deployment.model), place_of(situation)
    found = nearest_kind(calibration.kinds, kind, place)
    asked = f"{kind} on {place}"
    asked = asked[0].upper() + asked[1:]
    models = "1 model" if found.models == 1 else f"{found.models} models"
    median, p90 = 100 * found.median, 100 * found.p90
    off = (
        f"({found.rows} rows of {models}) were off by {median:.0f} % in the median, by more than "
        f"{p90:.0f} % in one of ten."
    )
    if (found.kind, found.place) == (kind, place):
        return f"{asked}: step times of left-out rows of that kind {off}"
    return f"{asked}: no left-out row was of that kind; step times of {found.words} {off}"


def _distance_words(situation: Situation, farthest: float, beyond: bool) -> str:
    text = (
        "weighted by time, its kernels' sizes and GPUs differ from measured ones by a factor of "
        f"{situation.distance.factor:.2f}"
    )
    if beyond:
        return (
            f"Outside the data: {text}, in left-out rows by {math.exp(farthest):.2f} at most; "
            "expect more error than they showed."
        )
    return f"{text[0].upper()}{text[1:]}."


def named_inputs(outside: Mapping[str, float]) -> str:
    """Inputs beyond the training range and by how much, the first few by name."""
    named = ", ".join(f"{name} ({by:+.1f})" for name, by in list(outside.items())[:_NAMED])
    return f"{named} and {len(outside) - _NAMED} more" if len(outside) > _NAMED else named

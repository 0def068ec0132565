"""Evidence for one prediction: its intervals, and how far it lies from measured deployments."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pinn.common import Json, JsonObject
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.surrogate.coefficient_set import CoefficientSet
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.surrogate import Surrogate
from pinn.surrogate.uncertainty.distance import REFERENCE_BATCH, gpu_is_known, locate_each
from pinn.surrogate.uncertainty.intervals import (
    METRICS,
    Ends,
    StatedIntervals,
    around,
    read_calibration,
    step_half_width,
)
from pinn.surrogate.uncertainty.kinds import Situation
from pinn.surrogate.uncertainty.training_space import training_space
from pinn.surrogate.uncertainty.trust import describe_trust

#: Most inputs outside the training range that the sentence names.
_NAMED = 4
#: Metric -> its name for people.
METRIC_NAMES = {"tpot": "step time", "ttft": "TTFT"}


@dataclass(frozen=True)
class Evidence:
    """What a prediction and its step times rest on.

    Attributes:
        distance: ``sentence``; for a network also ``nearest_measured``, ``distance`` in standard
            deviations, ``left_out_models``, ``outside_training_range`` and, with intervals,
            ``kind``, ``place``, ``kernel_distance``, ``by_operator`` and ``beyond_left_out``.
        level: Share of measurements that the intervals cover.
        usual: Metric (``tpot``, ``ttft``) -> ends of a value of 1; empty without intervals.
        coefficient_ends: ``beta.NAME`` and ``alpha.NAME`` -> ends, for those that have any.
        step_half_widths: Log half-width of each batch; empty without intervals.
        far: For each batch, marks for kernels that lie farther than all held-out ones.
        missing: Why a network has no intervals.
    """

    distance: Mapping[str, Json]
    level: float = 0.0
    usual: Mapping[str, Ends] = field(default_factory=dict)
    coefficient_ends: Mapping[str, Ends] = field(default_factory=dict)
    step_half_widths: Sequence[float] = ()
    far: Sequence[Sequence[str]] = ()
    missing: str = ""

    @property
    def sentence(self) -> str:
        """What the intervals rest on, in words."""
        return str(self.distance["sentence"])

    def step_ends(self, seconds: Sequence[float]) -> Sequence[Ends | None]:
        """Return the ends of each batch's step time; None without intervals."""
        if not self.step_half_widths:
            return [None] * len(seconds)
        return [around(s, half) for s, half in zip(seconds, self.step_half_widths, strict=True)]

    def intervals_json(self) -> JsonObject:
        """Return the key ``intervals`` of the JSON, or nothing where there is none."""
        if self.missing:
            return {"intervals": {"missing": self.missing}}
        return {"intervals": {"level": self.level, **self.usual}} if self.usual else {}

    def intervals_line(self) -> str:
        """Return the interval of every metric in one sentence, or why there is none."""
        if not self.usual:
            return f"No intervals: {self.missing}." if self.missing else ""
        named = ", ".join(
            f"{METRIC_NAMES[metric]} {100 * (low - 1):+.0f} % to {100 * (high - 1):+.0f} %"
            for metric, (low, high) in self.usual.items()
        )
        return (
            f"{100 * self.level:.0f} % intervals below saturation, of {REFERENCE_BATCH}: {named}."
        )


#: Find the evidence for step times of batches, as written on the command line.
FindEvidence = Callable[[Sequence[str]], Evidence]


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
        halves = [step_half_width(stated, known, text) for text in batches]
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
        halves,
        [_far(stated, each.total) for each in others],
    )


def file_evidence(found: CoefficientSet) -> Evidence:
    """Return the evidence for coefficients of a file without a posterior."""
    names = ", ".join(source["path"] for source in found.calibration.get("sources", ()))
    text = f"Calibrated to {names}." if names else "Coefficients from a file, not the network."
    return Evidence({"sentence": text})


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
    named = [f"{name} ({by:+.1f})" for name, by in outside.items()]
    if not named:
        return f"{text} Every input lies inside the training range."
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{text} Outside the training range: {', '.join(named[:_NAMED])}{more}."


def _far(stated: StatedIntervals, distance: float) -> list[str]:
    """Return a mark where a batch's kernels lie farther from measured ones than any held out."""
    farthest = max(kind.farthest for kind in stated.kinds)
    if distance <= farthest:
        return []
    return [
        "its kernels' sizes and GPU differ from measured ones by a factor of "
        f"{math.exp(distance):.2f}, those of left-out rows by {math.exp(farthest):.2f} at most"
    ]

"""Intervals that hold what they promise on what was left out, wider where less is known.

That of a step's time too, and what is said beside it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pinn.common import documents, files
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.batch import parse_batch
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.uncertainty.kinds import KindErrors
from pinn.surrogate.uncertainty.quantiles import LEVEL, ErrorLaw
from pinn.surrogate.uncertainty.widths import TRAITS, Widths

# What intervals need, as a small JSON file beside the checkpoint that it belongs to.

SCHEMA = "pinn intervals 4"

#: What a checkpoint says of itself that its intervals repeat.
BELONGS = ("recipe_sha256", "data_sha256")

#: Part of the coefficients -> metric whose error is common to all of them.
_COMMON = {"beta": "tpot", "alpha": "ttft"}

#: Metrics that have a half-width.
METRICS = ("tpot", "ttft")

Ends = tuple[float, float]


@dataclass(frozen=True)
class HalfWidth:
    """Half of an interval in log units.

    Attributes:
        known: On a GPU whose serving data were learned from.
        unknown: On another.
    """

    known: float
    unknown: float


@dataclass(frozen=True)
class StatedIntervals:
    """Intervals of one checkpoint.

    Attributes:
        checkpoint_sha256: Of the checkpoint's file.
        half_widths: ``tpot`` (step time) and ``ttft`` -> log half-width of a left-out model.
        widths: What a deployment's are multiplied by; nothing before they are fitted.
        coefficients: ``beta.NAME`` and ``alpha.NAME`` -> log half-width of its own change.
        kinds: Left-out rows by kind, and how wrong they were.
        errors: ``tpot`` -> values of an :class:`ErrorLaw`.
        belongs: ``recipe_sha256`` and ``data_sha256`` of the checkpoint.
        sources: Experiments behind it, for the record.
        coverage: Rows of ``pinn.surrogate.uncertainty.interval_fit.coverage_table``: nested, never
            in-sample.
        level: Share that intervals are to cover.
    """

    checkpoint_sha256: str
    half_widths: Mapping[str, HalfWidth]
    coefficients: Mapping[str, float]
    kinds: Sequence[KindErrors]
    errors: Mapping[str, Sequence[float]]
    belongs: Mapping[str, str] = field(default_factory=dict)
    sources: Sequence[Mapping[str, object]] = ()
    coverage: Sequence[Mapping[Hashable, object]] = ()
    level: float = LEVEL
    widths: Widths = field(default_factory=Widths)

    def half_width(self, metric: str, deployment: Deployment, gpu_known: bool) -> float:
        """Log half-width of ``tpot`` or ``ttft``.

        Args:
            metric: Which.
            deployment: What is predicted.
            gpu_known: Whether the checkpoint learned from serving data of the GPU.
        """
        return self.log_half_widths(deployment, gpu_known)[metric]

    def log_half_widths(self, deployment: Deployment, gpu_known: bool) -> dict[str, float]:
        """``tpot`` and ``ttft`` -> :meth:`half_width`."""
        factor = self.widths.of(deployment, gpu_known)
        return {
            metric: factor * (half.known if gpu_known else half.unknown)
            for metric, half in self.half_widths.items()
        }

    def wider_for(self, deployment: Deployment, gpu_known: bool) -> str:
        """What widens a deployment's intervals, as a sentence; empty where nothing does."""
        found = self.widths.reasons(deployment, gpu_known)
        *first, last = [f"{name} (x {factor:.1f})" for name, factor in found.items()] or [""]
        named = f"{', '.join(first)} and {last}" if first else last
        return f"Its intervals are widened by {named}." if named else ""

    def error_law(self, metric: str) -> ErrorLaw:
        """How measured times lie around predicted ones."""
        return ErrorLaw(tuple(self.errors[metric]))

    def coefficient_intervals(
        self, values: Mapping[str, float], half_widths: Mapping[str, float]
    ) -> dict[str, Ends]:
        """Ends of the intervals of coefficients, such as ``beta.gemm``; 0 stays 0.

        Their own change when a group becomes known and the error of the times that they make, TPOT
        for beta and TTFT for alpha, add up in quadrature.

        Args:
            values: Name -> coefficient.
            half_widths: As :meth:`log_half_widths` gives them.
        """
        common = {kind: half_widths[metric] for kind, metric in _COMMON.items()}
        return {
            name: around(value, math.hypot(self.coefficients[name], common[name.partition(".")[0]]))
            for name, value in values.items()
        }


def around(value: float, half: float) -> Ends:
    """A value's ends at a log half-width."""
    return value * math.exp(-half), value * math.exp(half)


def calibration_path(checkpoint: Path) -> Path:
    """Where a checkpoint's intervals lie."""
    return checkpoint.with_suffix(".intervals.json")


def write_calibration(found: StatedIntervals, path: Path) -> None:
    """Write the file; it appears whole or not at all."""
    values = dict(vars(found))
    files.write_json_file(path, {"schema": SCHEMA, **values.pop("belongs"), **values}, indent=1)


def read_calibration(checkpoint: Path) -> StatedIntervals:
    """The intervals of a checkpoint.

    Raises:
        PinnError: If there are none beside it, or they belong to another checkpoint or layout.
    """
    path = calibration_path(checkpoint)
    if not path.is_file():
        raise PinnError(f"no intervals at {path}: an experiment that leaves models out writes them")
    tree = documents.read_json(path)
    try:
        if (
            tree.get("schema") != SCHEMA
            or set(tree["coefficients"]) != set(NAMES)
            or set(tree["half_widths"]) != set(METRICS)
            or not set(tree["widths"]["traits"]) <= set(TRAITS)
        ):
            raise PinnError(f"{path} is of another version: calibrate the checkpoint anew")
        if tree["checkpoint_sha256"] != files.file_sha256(checkpoint):
            other = f"{path} belongs to another checkpoint than {checkpoint}"
            raise PinnError(f"{other}: calibrate this one")
        return StatedIntervals(
            tree["checkpoint_sha256"],
            {k: HalfWidth(**v) for k, v in tree["half_widths"].items()},
            tree["coefficients"],
            tuple(KindErrors(**kind) for kind in tree["kinds"]),
            tree["errors"],
            {name: tree[name] for name in BELONGS if name in tree},
            tuple(tree["sources"]),
            tuple(tree["coverage"]),
            tree["level"],
            Widths(**tree["widths"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise PinnError(f"{path} is damaged ({error}): calibrate the checkpoint anew") from error


def step_half_width(half_widths: Mapping[str, float], batch: str) -> float:
    """Half-width of a step's interval in log units; with prefill work the wider of two.

    TTFT teaches the half-width of steps with prompts, TPOT that of all.

    Args:
        half_widths: Of what runs the step (:meth:`StatedIntervals.log_half_widths`).
        batch: Of the step.

    Raises:
        PinnError: If the batch cannot be read.
    """
    metrics = ["tpot", "ttft"] if any(parse_batch(batch).is_prefill) else ["tpot"]
    return max(half_widths[metric] for metric in metrics)

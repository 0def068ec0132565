"""Intervals calibrated on held-out data, wider where less is known; their file beside a checkpoint.

Intervals of a step's time, and the sentence about what widens them, are included.
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
from pinn.surrogate.uncertainty.widths import TRAITS, Widths, trait_words

# Intervals are kept in a small JSON file beside the checkpoint that they belong to.

SCHEMA = "pinn intervals 4"

#: Keys of a checkpoint's metadata that its intervals repeat.
BELONGS = ("recipe_sha256", "data_sha256")

#: Part of the coefficients -> metric whose error its coefficients share.
_COMMON = {"beta": "tpot", "alpha": "ttft"}

#: Metrics that have a half-width.
METRICS = ("tpot", "ttft")

Ends = tuple[float, float]


@dataclass(frozen=True)
class HalfWidth:
    """Half of an interval's width, in log units.

    Attributes:
        known: Half-width on a GPU with serving data in the training data.
        unknown: Half-width on another GPU.
    """

    known: float
    unknown: float


@dataclass(frozen=True)
class StatedIntervals:
    """Intervals of one checkpoint.

    Attributes:
        checkpoint_sha256: SHA-256 of the checkpoint's file.
        half_widths: ``tpot`` (step time) and ``ttft`` -> log half-width of a held-out model.
        widths: Factors of half-widths by traits and metric; none before they are fitted.
        coefficients: ``beta.NAME`` and ``alpha.NAME`` -> log half-width of its own change.
        kinds: Errors of held-out rows by kind.
        errors: ``tpot`` -> values of an :class:`ErrorLaw`.
        belongs: ``recipe_sha256`` and ``data_sha256`` of the checkpoint.
        sources: Experiments behind the intervals, for the record.
        coverage: Rows of ``pinn.surrogate.uncertainty.interval_fit.coverage_table``: nested, never
            in-sample.
        level: Share of measurements that intervals are to cover.
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
        """Return the log half-width of ``tpot`` or ``ttft``.

        Args:
            metric: ``tpot`` or ``ttft``.
            deployment: Deployment that is predicted.
            gpu_known: Whether serving data of its GPU are in the checkpoint's training data.
        """
        return self.log_half_widths(deployment, gpu_known)[metric]

    def log_half_widths(self, deployment: Deployment, gpu_known: bool) -> dict[str, float]:
        """Return ``tpot`` and ``ttft`` -> :meth:`half_width`."""
        factor, levels = self.widths.of(deployment, gpu_known), self.widths.levels
        return {
            metric: levels.get(metric, 1.0) * factor * (half.known if gpu_known else half.unknown)
            for metric, half in self.half_widths.items()
        }

    def wider_for(self, deployment: Deployment, gpu_known: bool) -> str:
        """Return a sentence on the traits that widen a deployment's intervals; empty for none."""
        found = self.widths.reasons(deployment, gpu_known)
        named = ", ".join(
            f"{factor:.1f}x for {trait_words(name)}" for name, factor in found.items()
        )
        return f"Intervals are widened: {named}." if named else ""

    def error_law(self, metric: str) -> ErrorLaw:
        """Return the distribution of measured times around predicted ones."""
        return ErrorLaw(tuple(self.errors[metric]))

    def coefficient_intervals(
        self, values: Mapping[str, float], half_widths: Mapping[str, float]
    ) -> dict[str, Ends]:
        """Return the ends of the intervals of coefficients, such as ``beta.gemm``; 0 stays 0.

        Two parts add up in quadrature. One is the coefficient's own change when a group becomes
        known. The other is the error of the metric that it enters, TPOT for beta and TTFT for
        alpha.

        Args:
            values: Name -> coefficient.
            half_widths: Half-widths as :meth:`log_half_widths` returns them.
        """
        common = {kind: half_widths[metric] for kind, metric in _COMMON.items()}
        return {
            name: around(value, math.hypot(self.coefficients[name], common[name.partition(".")[0]]))
            for name, value in values.items()
        }


def around(value: float, half: float) -> Ends:
    """Return a value's ends at a log half-width."""
    return value * math.exp(-half), value * math.exp(half)


def calibration_path(checkpoint: Path) -> Path:
    """Return the path of a checkpoint's intervals."""
    return checkpoint.with_suffix(".intervals.json")


def write_calibration(found: StatedIntervals, path: Path) -> None:
    """Write the intervals' file; it appears whole or not at all."""
    values = dict(vars(found))
    files.write_json_file(path, {"schema": SCHEMA, **values.pop("belongs"), **values}, indent=1)


def read_calibration(checkpoint: Path) -> StatedIntervals:
    """Read the intervals of a checkpoint.

    Raises:
        PinnError: If there are none beside it, or they belong to another checkpoint or layout.
    """
    path = calibration_path(checkpoint)
    if not path.is_file():
        raise PinnError(f"no intervals at {path}: an experiment that holds models out writes them")
    tree = documents.read_json(path)
    try:
        if (
            tree.get("schema") != SCHEMA
            or set(tree["coefficients"]) != set(NAMES)
            or set(tree["half_widths"]) != set(METRICS)
            or not set(tree["widths"]["traits"]) <= set(TRAITS)
        ):
            raise PinnError(f"{path} is of another version: calibrate the checkpoint again")
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
        raise PinnError(f"{path} is damaged ({error}): calibrate the checkpoint again") from error


def step_half_width(half_widths: Mapping[str, float], batch: str) -> float:
    """Return the half-width of a step's interval in log units; with prefill work the wider of two.

    The half-width of steps with prompts comes from errors of TTFT, that of all steps from TPOT.

    Args:
        half_widths: Half-widths of the deployment (:meth:`StatedIntervals.log_half_widths`).
        batch: Text of the step's batch.

    Raises:
        PinnError: If the batch cannot be read.
    """
    metrics = ["tpot", "ttft"] if any(parse_batch(batch).is_prefill) else ["tpot"]
    return max(half_widths[metric] for metric in metrics)

"""Prediction intervals calibrated on held-out data, and their file in the checkpoint's folder.

The intervals are of TPOT (step time), TTFT and coefficients.
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

# A checkpoint's intervals are stored in a small JSON file in its folder.

SCHEMA = "pinn intervals 4"

#: Keys of a checkpoint's metadata that the file of its intervals repeats.
BELONGS = ("recipe_sha256", "data_sha256")

#: Metric whose half-width is added to those of the coefficients, by part of the coefficients (beta:
#: step, alpha: request).
_COMMON = {"beta": "tpot", "alpha": "ttft"}

#: Metrics with a fitted half-width; the half-width of E2E follows from them.
METRICS = ("tpot", "ttft")

Ends = tuple[float, float]


@dataclass(frozen=True)
class HalfWidth:
    """Half of an interval's width in log units, for two types of GPUs.

    Attributes:
        known: Half-width on a GPU with serving data in the training data.
        unknown: Half-width on any other GPU.
    """

    known: float
    unknown: float


@dataclass(frozen=True)
class StatedIntervals:
    """Intervals of one checkpoint.

    Attributes:
        checkpoint_sha256: SHA-256 of the checkpoint's file.
        half_widths: Log half-width of the interval, by metric: ``tpot`` (step time), ``ttft``.
        widths: Factors of half-widths by metric and by trait (property of a deployment, such as its
            engine); empty before they are fitted.
        coefficients: Log half-width of the change of each coefficient when its model or GPU is
            added to the training data, by ``beta.NAME`` or ``alpha.NAME``.
        kinds: Errors of held-out rows by type of weights and by what was measured on the GPU.
        errors: Values of an :class:`ErrorLaw`, by metric (``tpot``).
        belongs: Hashes of the checkpoint's settings and data, ``recipe_sha256`` and
            ``data_sha256``.
        sources: Experiments that the intervals were calibrated on.
        coverage: Rows of ``pinn.surrogate.uncertainty.interval_fit.coverage_table``, from nested
            calibrations.
        level: Share of measurements that intervals must cover.
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
        """Return the log half-width of a metric's interval for a deployment.

        Args:
            metric: ``tpot`` or ``ttft``.
            deployment: Deployment that is predicted.
            gpu_known: Whether the checkpoint's training data includes serving data for the GPU.
        """
        return self.log_half_widths(deployment, gpu_known)[metric]

    def log_half_widths(self, deployment: Deployment, gpu_known: bool) -> dict[str, float]:
        """Return the :meth:`half_width` of ``tpot`` and of ``ttft``, by metric."""
        factor, levels = self.widths.of(deployment, gpu_known), self.widths.levels
        return {
            metric: levels.get(metric, 1.0) * factor * (half.known if gpu_known else half.unknown)
            for metric, half in self.half_widths.items()
        }

    def wider_for(self, deployment: Deployment, gpu_known: bool) -> str:
        """Return a sentence on traits, such as the engine, that widen a deployment's intervals."""
        found = self.widths.reasons(deployment, gpu_known)
        named = ", ".join(
            f"{factor:.1f}x for {trait_words(name)}" for name, factor in found.items()
        )
        return f"Intervals are widened: {named}." if named else ""

    def error_law(self, metric: str) -> ErrorLaw:
        """Return the distribution of a metric's measured values relative to predicted ones."""
        return ErrorLaw(tuple(self.errors[metric]))

    def coefficient_intervals(
        self, values: Mapping[str, float], half_widths: Mapping[str, float]
    ) -> dict[str, Ends]:
        """Return the ends of each coefficient's interval; a coefficient of 0 has both ends at 0.

        Two half-widths are added in quadrature: of the coefficient's change when its model or GPU
        is added to the training data, and of the metric that it affects (TPOT for beta, TTFT for
        alpha).

        Args:
            values: Coefficients by name, such as ``beta.gemm``.
            half_widths: Half-widths as :meth:`log_half_widths` returns them.
        """
        common = {kind: half_widths[metric] for kind, metric in _COMMON.items()}
        return {
            name: around(value, math.hypot(self.coefficients[name], common[name.partition(".")[0]]))
            for name, value in values.items()
        }


def around(value: float, half: float) -> Ends:
    """Return both ends of an interval around a value, from its log half-width."""
    return value * math.exp(-half), value * math.exp(half)


def calibration_path(checkpoint: Path) -> Path:
    """Return the path of the file with a checkpoint's intervals."""
    return checkpoint.with_suffix(".intervals.json")


def write_calibration(found: StatedIntervals, path: Path) -> None:
    """Write intervals to a file, which is replaced atomically."""
    values = dict(vars(found))
    files.write_json_file(path, {"schema": SCHEMA, **values.pop("belongs"), **values}, indent=1)


def read_calibration(checkpoint: Path) -> StatedIntervals:
    """Return the intervals of a checkpoint.

    Raises:
        PinnError: If the checkpoint's folder has no intervals, or if the intervals belong to
            another checkpoint or have a different layout.
    """
    path = calibration_path(checkpoint)
    if not path.is_file():
        raise PinnError(
            f"the file of intervals {path} does not exist: run an experiment that holds out models"
        )
    tree = documents.read_json(path)
    try:
        if (
            tree.get("schema") != SCHEMA
            or set(tree["coefficients"]) != set(NAMES)
            or set(tree["half_widths"]) != set(METRICS)
            or not set(tree["widths"]["traits"]) <= set(TRAITS)
        ):
            raise PinnError(
                f"{path} has the format of another version: fit the checkpoint's intervals again"
            )
        if tree["checkpoint_sha256"] != files.file_sha256(checkpoint):
            other = f"{path} belongs to a checkpoint other than {checkpoint}"
            raise PinnError(f"{other}: fit the intervals of {checkpoint}")
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
        raise PinnError(
            f"{path} is damaged ({error}): fit the checkpoint's intervals again"
        ) from error


def step_half_width(half_widths: Mapping[str, float], batch: str) -> float:
    """Return the log half-width of a step time, from those of TPOT and TTFT.

    It is that of TPOT or, if the batch has prompts, the larger of the two.

    Args:
        half_widths: Half-widths of the deployment (:meth:`StatedIntervals.log_half_widths`).
        batch: Description of the step's batch.

    Raises:
        PinnError: If the batch cannot be read.
    """
    metrics = ["tpot", "ttft"] if any(parse_batch(batch).is_prefill) else ["tpot"]
    return max(half_widths[metric] for metric in metrics)

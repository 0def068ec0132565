"""What intervals need, as a small JSON file beside the checkpoint that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pinn.errors import PinnError
from pinn.features.request import REQUEST_FEATURES
from pinn.features.step import STEP_FEATURES
from pinn.observations.table import replace_atomically
from pinn.sources.report import file_sha256
from pinn.specs.data_folder import read_json
from pinn.uncertainty.conformal import LEVEL, HalfWidth

SCHEMA = "pinn intervals 1"

#: Every coefficient by its part and name.
NAMES: tuple[str, ...] = tuple(
    [f"beta.{name}" for name in STEP_FEATURES] + [f"alpha.{name}" for name in REQUEST_FEATURES]
)

#: Part of the coefficients -> metric whose error is common to all of them.
_COMMON = {"beta": "tpot", "alpha": "ttft"}


@dataclass(frozen=True)
class Band:
    """Left-out rows of about the same distance, and how wrong they were (TPOT).

    Attributes:
        nearest: Smallest distance.
        farthest: Largest.
        rows: Number of rows.
        groups: Number of models on GPUs among them.
        median: Median absolute relative error.
        p90: Its 90th percentile.
    """

    nearest: float
    farthest: float
    rows: int
    groups: int
    median: float
    p90: float


@dataclass(frozen=True)
class Calibration:
    """Intervals of one checkpoint.

    Attributes:
        checkpoint_sha256: Of the checkpoint's file.
        metrics: ``tpot``, ``ttft`` and ``e2e`` -> half-width.
        coefficients: ``beta.NAME`` and ``alpha.NAME`` -> half-width.
        bands: Left-out rows by distance, nearest first.
        sources: Experiments behind it: folder name, splits, SHA-256 of the predictions.
        coverage: Rows of ``pinn.uncertainty.coverage.coverage_table``: nested, never in-sample.
        auroc: Kind of split -> chance that a TPOT error above 20 % lies farther away.
        level: Share that intervals are to cover.
    """

    checkpoint_sha256: str
    metrics: Mapping[str, HalfWidth]
    coefficients: Mapping[str, HalfWidth]
    bands: Sequence[Band]
    sources: Sequence[Mapping[str, Any]] = ()
    coverage: Sequence[Mapping[str, Any]] = ()
    auroc: Mapping[str, float] = field(default_factory=dict)
    level: float = LEVEL

    def interval(self, metric: str, value: float, distance: float) -> tuple[float, float]:
        """Ends of the interval of a value of a metric."""
        half = float(self.metrics[metric].at(distance))
        return value * float(np.exp(-half)), value * float(np.exp(half))

    def coefficient_interval(self, name: str, value: float, distance: float) -> tuple[float, float]:
        """Ends of the interval of a coefficient, such as ``beta.gemm``; 0 stays 0.

        Its own change when a group becomes known and the error of the times that it makes, TPOT
        for beta and TTFT for alpha, add up in quadrature.
        """
        common = self.metrics[_COMMON[name.partition(".")[0]]].at(distance)
        half = float(np.hypot(self.coefficients[name].at(distance), common))
        return value * float(np.exp(-half)), value * float(np.exp(half))

    def band(self, distance: float) -> Band:
        """The left-out rows that lay about as far; the last band for whatever is farther."""
        return next((b for b in self.bands if distance <= b.farthest), self.bands[-1])


def calibration_path(checkpoint: Path) -> Path:
    """Where a checkpoint's intervals lie."""
    return checkpoint.with_suffix(".intervals.json")


def write_calibration(found: Calibration, path: Path) -> None:
    """Write the file; it appears whole or not at all."""
    tree = {
        "schema": SCHEMA,
        "level": found.level,
        "checkpoint_sha256": found.checkpoint_sha256,
        "sources": list(found.sources),
        "metrics": {k: vars(v) for k, v in found.metrics.items()},
        "coefficients": {k: vars(v) for k, v in found.coefficients.items()},
        "bands": [vars(band) for band in found.bands],
        "coverage": list(found.coverage),
        "auroc": dict(found.auroc),
    }
    text = json.dumps(tree, indent=1) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(path, lambda target: target.write_text(text))


def read_calibration(checkpoint: Path) -> Calibration:
    """The intervals of a checkpoint.

    Raises:
        PinnError: If there are none beside it, or they belong to another checkpoint or layout.
    """
    path = calibration_path(checkpoint)
    if not path.is_file():
        raise PinnError(
            f"no intervals at {path}: make them with 'python scripts/release.py RESULTS_FOLDER'"
        )
    tree = read_json(path)
    if tree.get("schema") != SCHEMA or set(tree["coefficients"]) != set(NAMES):
        raise PinnError(f"{path} is of another version: write it anew with scripts/release.py")
    if tree["checkpoint_sha256"] != file_sha256(checkpoint):
        raise PinnError(
            f"{path} belongs to another checkpoint than {checkpoint}: write it anew with "
            "scripts/release.py"
        )
    return Calibration(
        tree["checkpoint_sha256"],
        {k: HalfWidth(**v) for k, v in tree["metrics"].items()},
        {k: HalfWidth(**v) for k, v in tree["coefficients"].items()},
        tuple(Band(**band) for band in tree["bands"]),
        tuple(tree["sources"]),
        tuple(tree["coverage"]),
        tree["auroc"],
        tree["level"],
    )


def move_calibration(source: Path, target: Path) -> None:
    """Give a new checkpoint the intervals of the one that it was trained further from.

    The half-widths then say how well such training does on left-out groups, not how well this
    very network does.

    Raises:
        PinnError: If ``source`` has no intervals of its own.
    """
    found = replace(read_calibration(source), checkpoint_sha256=file_sha256(target))
    write_calibration(found, calibration_path(target))

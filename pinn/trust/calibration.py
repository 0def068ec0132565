"""What intervals need, as a small JSON file beside the checkpoint that it belongs to."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinn.coefficients.coefficients import NAMES
from pinn.errors import PinnError
from pinn.specs.documents import read_json
from pinn.specs.files.read_report import file_sha256
from pinn.specs.files.write import replace_atomically
from pinn.trust.chance import ErrorLaw, normal_law
from pinn.trust.conformal import LEVEL
from pinn.trust.kinds import KindErrors

SCHEMA = "pinn intervals 3"

#: What a checkpoint says of itself that its intervals repeat.
BELONGS = ("recipe_sha256", "data_sha256")

#: Part of the coefficients -> metric whose error is common to all of them.
_COMMON = {"beta": "tpot", "alpha": "ttft"}

#: Metrics whose half-widths are learned.
LEARNED = ("tpot", "ttft")

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

    def on(self, gpu_known: bool) -> float:
        """The one for a GPU."""
        return self.known if gpu_known else self.unknown


@dataclass(frozen=True)
class Calibration:
    """Intervals of one checkpoint.

    Attributes:
        checkpoint_sha256: Of the checkpoint's file.
        half_widths: ``tpot`` (step time) and ``ttft`` -> log half-width.
        coefficients: ``beta.NAME`` and ``alpha.NAME`` -> log half-width of its own change.
        kinds: Left-out rows by kind, and how wrong they were.
        belongs: ``recipe_sha256`` and ``data_sha256`` of the checkpoint.
        sources: Experiments behind it, for the record.
        coverage: Rows of ``pinn.trust.coverage.coverage_table``: nested, never in-sample.
        errors: ``tpot`` -> values of a ``pinn.trust.chance.ErrorLaw``; files of before have
            none.
        level: Share that intervals are to cover.
    """

    checkpoint_sha256: str
    half_widths: Mapping[str, HalfWidth]
    coefficients: Mapping[str, float]
    kinds: Sequence[KindErrors]
    belongs: Mapping[str, str] = field(default_factory=dict)
    sources: Sequence[Mapping[str, Any]] = ()
    coverage: Sequence[Mapping[str, Any]] = ()
    errors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    level: float = LEVEL

    def half_width(self, metric: str, gpu_known: bool) -> float:
        """Log half-width of ``tpot`` or ``ttft``.

        Args:
            metric: Which.
            gpu_known: Whether the checkpoint learned from serving data of the GPU.
        """
        return self.half_widths[metric].on(gpu_known)

    def error_law(self, metric: str) -> ErrorLaw:
        """How measured times lie around predicted ones; normal where that is not known."""
        known = self.errors.get(metric)
        return normal_law(self.level) if known is None else ErrorLaw(tuple(known))

    def coefficient_interval(self, name: str, value: float, gpu_known: bool) -> Ends:
        """Ends of the interval of a coefficient, such as ``beta.gemm``; 0 stays 0.

        Its own change when a group becomes known and the error of the times that it makes, TPOT
        for beta and TTFT for alpha, add up in quadrature.
        """
        common = self.half_width(_COMMON[name.partition(".")[0]], gpu_known)
        return around(value, math.hypot(self.coefficients[name], common))


def around(value: float, half: float) -> Ends:
    """A value's ends at a log half-width."""
    return value * math.exp(-half), value * math.exp(half)


def calibration_path(checkpoint: Path) -> Path:
    """Where a checkpoint's intervals lie."""
    return checkpoint.with_suffix(".intervals.json")


def write_calibration(found: Calibration, path: Path) -> None:
    """Write the file; it appears whole or not at all."""
    tree = {
        "schema": SCHEMA,
        "level": found.level,
        "checkpoint_sha256": found.checkpoint_sha256,
        **found.belongs,
        "sources": list(found.sources),
        "half_widths": {k: vars(v) for k, v in found.half_widths.items()},
        "coefficients": dict(found.coefficients),
        "kinds": [vars(kind) for kind in found.kinds],
        "coverage": list(found.coverage),
        "errors": {k: list(v) for k, v in found.errors.items()},
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
        raise PinnError(f"no intervals at {path}: an experiment that leaves models out writes them")
    tree = read_json(path)
    try:
        if not _is_current(tree):
            raise PinnError(f"{path} is of another version: calibrate the checkpoint anew")
        return _of_tree(tree, checkpoint, path)
    except (KeyError, TypeError, AttributeError) as error:
        raise PinnError(f"{path} is damaged ({error}): calibrate the checkpoint anew") from error


def _of_tree(tree: dict[str, Any], checkpoint: Path, path: Path) -> Calibration:
    if tree["checkpoint_sha256"] != file_sha256(checkpoint):
        raise PinnError(
            f"{path} belongs to another checkpoint than {checkpoint}: calibrate this one"
        )
    return Calibration(
        tree["checkpoint_sha256"],
        {k: HalfWidth(**v) for k, v in tree["half_widths"].items()},
        tree["coefficients"],
        tuple(KindErrors(**kind) for kind in tree["kinds"]),
        {name: tree[name] for name in BELONGS if name in tree},
        tuple(tree["sources"]),
        tuple(tree["coverage"]),
        tree.get("errors", {}),
        tree["level"],
    )


def _is_current(tree: Any) -> bool:
    """Whether this code wrote the layout, for the coefficients that it has."""
    return (
        tree.get("schema") == SCHEMA
        and set(tree["coefficients"]) == set(NAMES)
        and set(tree["half_widths"]) == set(LEARNED)
    )

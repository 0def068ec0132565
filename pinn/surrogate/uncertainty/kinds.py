"""Types of predictions by weight format and GPU, and errors on held-out data of each type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pinn.engines.deployment import Deployment
from pinn.specs.model import ModelSpec
from pinn.specs.precision import Precision

if TYPE_CHECKING:
    import pandas as pd
from pinn.surrogate.uncertainty.distance import KernelDistance, gpu_is_known, locate

# Types of predictions, as text, and errors of held-out rows of each type.

#: The kernels of a step's GPU count as measured if at most this share of the step's kernel time has
#: its nearest measurements on other GPUs.
_ELSEWHERE = 0.5

MEASURED = "a measured GPU"

UNSERVED = "a GPU without serving data"

UNMEASURED = "a GPU without such kernels or serving data"

#: Value of ``kind`` that means all types of weights, and of ``place`` that means all GPUs.
ANY = "any"


@dataclass(frozen=True)
class Situation:
    """Facts of a predicted step that are known before any measurement of it.

    Attributes:
        deployment: Model, GPU and engine configuration.
        distance: Distance of the step from measured kernels.
        gpu_known: Whether the training data includes serving data for this GPU.
    """

    deployment: Deployment
    distance: KernelDistance
    gpu_known: bool


@dataclass(frozen=True)
class KindErrors:
    """Errors of held-out rows with the same type of weights and similarly measured GPUs.

    Attributes:
        kind: Type of weights, such as ``4-bit experts``; or ``any``.
        place: Description of what was measured on the GPU, such as ``a measured GPU``; or ``any``.
        rows: Number of rows.
        models: Number of models among the rows.
        median: Median APE of TPOT, as a fraction.
        p90: P90 of the absolute relative error of TPOT, as a fraction.
        farthest: Maximum distance from measured kernels among the rows, in log units.
    """

    kind: str
    place: str
    rows: int
    models: int
    median: float
    p90: float
    farthest: float

    @property
    def words(self) -> str:
        """Describe the type of weights and what was measured on the GPU."""
        what = "all held-out data" if self.kind == ANY else self.kind
        return what if self.place == ANY else f"{what} on {self.place}"


def kind_of(model: ModelSpec) -> str:
    """Describe the bit width of most of a model's weights, and whether these are experts.

    >>> from pinn.specs.catalog import load_model
    >>> kind_of(load_model("openai/gpt-oss-120b")), kind_of(load_model("Qwen/Qwen3-8B"))
    ('4-bit experts', '16-bit dense weights')
    """
    if model.moe is not None:
        return f"{weight_bits(model.precisions.experts)}-bit experts"
    return f"{weight_bits(model.precisions.dense_ffn)}-bit dense weights"


def weight_bits(found: Precision) -> int:
    """Return a format's bits per weight without scales: 32, 16, 8 or 4."""
    return next(bits for bits in (32, 16, 8, 4) if 8 * found.bytes_per_weight >= bits)


def place_of(situation: Situation) -> str:
    """Return what was measured on a step's GPU, as text: servers, kernels or neither."""
    if situation.gpu_known:
        return MEASURED
    return UNMEASURED if situation.distance.elsewhere > _ELSEWHERE else UNSERVED


def kinds_of_errors(errors: pd.DataFrame) -> list[KindErrors]:
    """Return errors by type of weights and GPU, then by type of weights, then over all rows.

    Args:
        errors: Table with the columns ``kind`` (of weights), ``place`` (description of what was
            measured on the GPU), ``shape``, ``distance`` and ``tpot``, a log error.
    """
    parts = [
        *(((str(k), str(p)), part) for (k, p), part in errors.groupby(["kind", "place"])),
        *(((str(k), ANY), part) for k, part in errors.groupby("kind")),
        ((ANY, ANY), errors),
    ]
    return [_summed_up(kind, place, part) for (kind, place), part in parts]


def _summed_up(kind: str, place: str, part: pd.DataFrame) -> KindErrors:
    size = np.abs(np.expm1(-part["tpot"].to_numpy()))
    found = np.median(size), np.quantile(size, 0.9), part["distance"].max()
    median, p90, farthest = (round(float(value), 6) for value in found)
    models = int(part["shape"].nunique())
    return KindErrors(kind, place, len(part), models, median, p90, farthest)


def nearest_kind(kinds: Sequence[KindErrors], kind: str, place: str) -> KindErrors:
    """Return the errors for a type of weights and GPU, or else of weights, or else for all rows."""
    wanted = [(kind, place), (kind, ANY), (ANY, ANY)]
    of = {(k.kind, k.place): k for k in kinds}
    return next(of[key] for key in wanted if key in of)


# Facts about a step that are known before measuring, for commands.


def situation_of(checkpoint: Path, deployment: Deployment, batch: str) -> Situation:
    """Return the facts of a step, such as its distance from measured kernels, from a checkpoint."""
    distance = locate(checkpoint, deployment, batch)
    return Situation(deployment, distance, gpu_is_known(checkpoint, deployment))

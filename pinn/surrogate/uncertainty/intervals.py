"""Intervals that hold what they promise on what was left out, wider where less is known.

That of a step's time too, and what is said beside it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from pinn.common import documents, files
from pinn.common.store import remembered_value
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.batch import parse_batch
from pinn.specs.model import ModelSpec
from pinn.specs.precision import Precision
from pinn.surrogate.coefficients import NAMES

if TYPE_CHECKING:
    import pandas as pd


# A distance from the measured kernels, as commands pass it on; computing it is elsewhere.

#: Step by which a deployment as a whole is located.
REFERENCE_BATCH = "32 decode @ 2000"


@dataclass(frozen=True)
class KernelDistance:
    """How far one step lies from the measured kernels.

    Attributes:
        total: Mean distance of its kernels in log units, weighted by their time; 0 where each was
            measured itself, 0.69 where a size of each is twice or half of a measured one.
        by_operator: The same, split by operator; the parts add up to ``total``.
        elsewhere: Share of the time in kernels whose nearest measurement is of another GPU.
        gap: The part of ``total`` that is the difference of those GPUs' datasheets.
        shares: Operator -> share of the kernels' time; they add up to 1.
    """

    total: float
    by_operator: Mapping[str, float]
    elsewhere: float
    gap: float
    shares: Mapping[str, float]

    @property
    def factor(self) -> float:
        """The whole distance as a ratio of sizes."""
        return float(np.exp(self.total))


# Kinds of predictions in words, and how wrong left-out rows of each kind were.

#: Share of a step's kernel time measured on other GPUs from which a GPU's kernels are unmeasured.
_ELSEWHERE = 0.5

MEASURED = "a measured GPU"
UNSERVED = "a GPU without serving data"
UNMEASURED = "a GPU without such kernels or serving data"

#: Instead of a kind or a place: all of them.
ANY = "any"


@dataclass(frozen=True)
class Situation:
    """What is known of a step before it is measured.

    Attributes:
        deployment: Model, GPU and configuration.
        distance: Of the step from measured kernels.
        gpu_known: Whether serving data of this GPU were learned from.
    """

    deployment: Deployment
    distance: KernelDistance
    gpu_known: bool


@dataclass(frozen=True)
class KindErrors:
    """How wrong left-out rows of one kind were.

    Attributes:
        kind: Weights, such as ``4-bit experts``; or ``any``.
        place: What was known of the GPU; or ``any``.
        rows: Number of rows.
        models: Number of models among them.
        median: Median absolute relative error of TPOT.
        p90: Its 90th percentile.
        farthest: Largest distance from measured kernels among them.
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
        """The kind in words."""
        what = "all" if self.kind == ANY else self.kind
        return what if self.place == ANY else f"{what} on {self.place}"


def kind_of(model: ModelSpec) -> str:
    """Bits of the weights that most of a model is, and whether they are experts.

    >>> from pinn.specs.catalog import load_model
    >>> kind_of(load_model("openai/gpt-oss-120b")), kind_of(load_model("Qwen/Qwen3-8B"))
    ('4-bit experts', '16-bit dense weights')
    """
    if model.moe is not None:
        return f"{weight_bits(model.precisions.experts)}-bit experts"
    return f"{weight_bits(model.precisions.dense_ffn)}-bit dense weights"


def weight_bits(found: Precision) -> int:
    """Bits of a weight without its share of the scales: 32, 16, 8 or 4."""
    return next(bits for bits in (32, 16, 8, 4) if 8 * found.bytes_per_weight >= bits)


def place_of(situation: Situation) -> str:
    """What is known of the GPU."""
    if situation.gpu_known:
        return MEASURED
    return UNMEASURED if situation.distance.elsewhere > _ELSEWHERE else UNSERVED


def kinds_of_errors(errors: pd.DataFrame) -> list[KindErrors]:
    """Every kind at every place, then kinds at any place, then everything.

    Args:
        errors: Columns ``kind``, ``place``, ``shape``, ``distance`` and ``tpot``, a log error.
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
    """The kind itself, else the same weights at any place, else everything."""
    wanted = [(kind, place), (kind, ANY), (ANY, ANY)]
    of = {(k.kind, k.place): k for k in kinds}
    return next(of[key] for key in wanted if key in of)


# Quantiles of errors of left-out groups, in which every group counts once.
#
# A group is a model on a GPU; models of equal shape are one. Its rows differ only in load and
# share their error, so each group counts once, however many rows it has and however many splits
# left it out.
#
# What so few groups guarantee: split conformal prediction covers a new exchangeable group with
# 90 % only from nine groups on (``ceil(0.9 (n + 1)) <= n``), and a dozen of model x GPU are not
# exchangeable, since they share a few models. So 90 % holds on average over groups like these,
# not for each of them; an unseen model can lie outside in half of its rows.

#: Share of values that intervals are to cover.
LEVEL = 0.9

#: Half of such an interval over the standard deviation, where errors are normal.
NORMAL_QUANTILE = 1.645

Values = Float[np.ndarray, " n"]


def group_weights(groups: Iterable[Hashable], splits: Iterable[Hashable]) -> Values:
    """Weights that add up to 1: groups count the same, in a group its splits, in a split its rows.

    >>> group_weights(["a", "a", "a", "b"], [1, 1, 2, 1]).tolist()
    [0.125, 0.125, 0.25, 0.5]
    """
    group, split = _numbered(groups), _numbered(splits)
    part = _numbered(zip(group.tolist(), split.tolist(), strict=True))
    rows_of_part = np.bincount(part)[part]
    _, first_of_part = np.unique(part, return_index=True)
    parts_of_group = np.bincount(group[first_of_part])[group]
    weight = 1.0 / (rows_of_part * parts_of_group)
    return weight / weight.sum()


def _numbered(names: Iterable[Hashable]) -> Int[np.ndarray, " n"]:
    """Equal names get equal numbers, from 0 on."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(name, len(seen)) for name in names], dtype=np.int64)


def weighted_quantile(values: Values, weight: Values, level: float) -> float:
    """Smallest value up to which at least a share ``level`` of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.6)
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    first = int(np.searchsorted(reached, level - 1e-12))
    return float(values[order][min(first, len(values) - 1)])


# The chance that a predicted time holds its limit.
#
# Left-out rows tell how measured times lie around predicted ones: log(measured / predicted), in
# half-widths of each row's interval. A prediction's own half-width turns such an error into one
# of its own time, as a conformal predictive distribution does (Vovk et al. 2019, "Nonparametric
# predictive distributions based on conformal prediction"). So the chance of holding a limit
# falls gradually, where a margin would fall off a cliff, and no margin has to be chosen.

#: Equally likely errors that a law is kept as, each the middle of its share.
COUNT = 20

_SHARES = (np.arange(COUNT) + 0.5) / COUNT


@dataclass(frozen=True)
class ErrorLaw:
    """How measured times lie around predicted ones.

    Attributes:
        errors: Equally likely values of log(measured / predicted), in half-widths of the interval.
    """

    errors: Sequence[float]

    def chance(self, excess: Values, half: Values) -> Values:
        """Chance that a limit is held.

        Args:
            excess: Predicted time as a share of its limit.
            half: Log half-width of the prediction's interval.

        >>> ErrorLaw((-1.0, 0.0, 1.0, 2.0)).chance(np.array([0.9, 1.0]), np.array([0.1, 0.1]))
        array([0.75, 0.5 ])
        """
        times = excess[..., None] * np.exp(half[..., None] * np.asarray(self.errors))
        return (times <= 1).mean(axis=-1)

    def held(self, holds: Callable[[float], bool]) -> float:
        """Chance that limits are held that only a trial can judge; found by bisection.

        Args:
            holds: Whether they are held with times off by so many half-widths. If they are with
                some, they are with shorter times.

        >>> ErrorLaw((-1.0, 0.0, 1.0, 2.0)).held(lambda error: error < 1.5)
        0.75
        """
        errors = sorted(self.errors)
        return bisect_left(errors, True, key=lambda error: not holds(error)) / len(errors)


def error_law(errors: Values, half: Values, weight: Values) -> ErrorLaw:
    """The law of left-out rows.

    Args:
        errors: log(measured / predicted).
        half: Log half-widths of the rows' intervals.
        weight: What each row counts.
    """
    scaled = errors / half
    return ErrorLaw(tuple(weighted_quantile(scaled, weight, share) for share in _SHARES))


# What intervals need, as a small JSON file beside the checkpoint that it belongs to.

SCHEMA = "pinn intervals 3"

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
        half_widths: ``tpot`` (step time) and ``ttft`` -> log half-width.
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
    sources: Sequence[Mapping[str, Any]] = ()
    coverage: Sequence[Mapping[Hashable, Any]] = ()
    level: float = LEVEL

    def half_width(self, metric: str, gpu_known: bool) -> float:
        """Log half-width of ``tpot`` or ``ttft``.

        Args:
            metric: Which.
            gpu_known: Whether the checkpoint learned from serving data of the GPU.
        """
        half = self.half_widths[metric]
        return half.known if gpu_known else half.unknown

    def error_law(self, metric: str) -> ErrorLaw:
        """How measured times lie around predicted ones."""
        return ErrorLaw(tuple(self.errors[metric]))

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
        if not _is_current(tree):
            raise PinnError(f"{path} is of another version: calibrate the checkpoint anew")
        return _of_tree(tree, checkpoint, path)
    except (KeyError, TypeError, AttributeError) as error:
        raise PinnError(f"{path} is damaged ({error}): calibrate the checkpoint anew") from error


def _of_tree(tree: dict[str, Any], checkpoint: Path, path: Path) -> StatedIntervals:
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
    )


def _is_current(tree: Any) -> bool:
    """Whether this code wrote the layout, for the coefficients that it has."""
    return (
        tree.get("schema") == SCHEMA
        and set(tree["coefficients"]) == set(NAMES)
        and set(tree["half_widths"]) == set(METRICS)
    )


# Which GPUs a checkpoint learned serving data of.


def gpu_is_known(checkpoint: Path, deployment: Deployment) -> bool:
    """Whether the checkpoint learned from serving data of the deployment's GPU.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    return deployment.gpu.name in served_gpus(checkpoint)


def served_gpus(checkpoint: Path) -> list[str]:
    """Names of the GPUs whose serving data a checkpoint learned from.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    return remembered_value(_served, checkpoint)


def _served(checkpoint: Path) -> list[str]:
    from pinn.surrogate.inference import load_checkpoint

    names = [name.rpartition(" on ") for name in load_checkpoint(checkpoint).anchor_names]
    return sorted({gpu for _, _, gpu in names})


# Distances for commands: the surrogates that belong to a checkpoint, answers kept on disk.
#
# Loading what knows the measured kernels takes longer than a simulation, so its answer is
# remembered.


def locate(
    checkpoint: Path, deployment: Deployment, batch: str = REFERENCE_BATCH
) -> KernelDistance:
    """How far a step of a deployment lies from the kernels that a checkpoint learned from.

    Raises:
        PinnError: If there are no kernel surrogates, or the batch cannot be read.
    """
    return locate_each(checkpoint, deployment, [batch])[0]


def locate_each(
    checkpoint: Path, deployment: Deployment, batches: Sequence[str]
) -> list[KernelDistance]:
    """How far steps of a deployment lie from the kernels that a checkpoint learned from.

    Raises:
        PinnError: If there are no kernel surrogates, or the batch cannot be read.
    """
    folder = files.find_kernels(None, checkpoint)
    if folder is None:
        raise PinnError(
            "no kernel surrogates beside the checkpoint, so its distance from the data is unknown: "
            "fit them with 'python train.py kernels=on'"
        )
    # The JSON file holds the hash of the file beside it.
    found = remembered_value(_distances, folder / "kernels.json", deployment, list(batches))
    return [KernelDistance(**each) for each in found]


def outside_inputs(checkpoint: Path, deployment: Deployment) -> dict[str, float]:
    """Inputs beyond a checkpoint's training range, in standard deviations, farthest first.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    return remembered_value(_outside, checkpoint, deployment)


def _distances(kernels: Path, deployment: Deployment, batches: list[str]) -> list[dict[str, Any]]:
    from pinn.kernels.surrogates import KernelSurrogates  # imports torch
    from pinn.surrogate.uncertainty.kernel_distance import kernel_distance

    surrogates = KernelSurrogates.load(kernels.parent)
    return [vars(kernel_distance(surrogates, deployment, batch)) for batch in batches]


def _outside(checkpoint: Path, deployment: Deployment) -> dict[str, float]:
    from pinn.surrogate.inference import load_checkpoint
    from pinn.surrogate.surrogate import training_space

    space = training_space(load_checkpoint(checkpoint))
    return space.locate([deployment]).outside_names(0)


# How wide the interval of one step's time is.


def situation_of(checkpoint: Path, deployment: Deployment, batch: str) -> Situation:
    """Where a step lies from what was measured."""
    distance = locate(checkpoint, deployment, batch)
    return Situation(deployment, distance, gpu_is_known(checkpoint, deployment))


def step_half_width(calibration: StatedIntervals, gpu_known: bool, batch: str) -> float:
    """Half-width of a step's interval in log units; with prefill work the wider of two.

    TTFT teaches the half-width of steps with prompts, TPOT that of all.

    Args:
        calibration: Of the checkpoint.
        gpu_known: Whether it learned from serving data of the GPU.
        batch: Of the step.

    Raises:
        PinnError: If the batch cannot be read.
    """
    metrics = ["tpot", "ttft"] if any(parse_batch(batch).is_prefill) else ["tpot"]
    return max(calibration.half_width(metric, gpu_known) for metric in metrics)


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
    sentences = [
        _shown(situation, calibration), _distance_words(situation, farthest, beyond),
        "" if situation.deployment.model.is_plain else _UNTAUGHT, _outside_words(outside),
    ]  # fmt: skip
    return {
        "kind": kind_of(situation.deployment.model),
        "place": place_of(situation),
        "kernel_distance": situation.distance.total,
        "by_operator": dict(situation.distance.by_operator),
        "beyond_left_out": beyond,
        "sentence": " ".join(sentence for sentence in sentences if sentence),
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


def _outside_words(outside: Mapping[str, float]) -> str:
    if not outside:
        return ""
    named = ", ".join(f"{name} ({by:+.1f})" for name, by in list(outside.items())[:_NAMED])
    more = f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else ""
    return f"Inputs beyond the training range, in standard deviations: {named}{more}."

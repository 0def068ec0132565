"""Parts that several reports print: batches, recipe, memory, trust."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pinn.common.screen import Column, Grid
from pinn.engines.deployment import Deployment
from pinn.engines.recipe import ASSUMED, DESIGN, FLAG, unread_notice
from pinn.errors import PinnError
from pinn.physics.batch_sums import beyond_taught
from pinn.simulator import memory
from pinn.specs.batch import Batch
from pinn.specs.serving import ServingSpec
from pinn.surrogate import coefficients
from pinn.surrogate.coefficient_set import CoefficientSet
from pinn.surrogate.uncertainty import intervals
from pinn.surrogate.uncertainty.distance import REFERENCE_BATCH, gpu_is_known, locate_each
from pinn.surrogate.uncertainty.kinds import Situation
from pinn.surrogate.uncertainty.quantiles import LEVEL
from pinn.surrogate.uncertainty.trust import describe_trust

# Marks of batches that the engine never runs, or that lie beyond what was learned from.


def batch_marks(batches: Sequence[Batch], deployment: Deployment) -> list[list[str]]:
    """Limits of the engine and of the teaching that batches exceed, each in a few words.

    Args:
        batches: Of one replica.
        deployment: Whose flags they are held against.

    Returns:
        Of each, nothing if the engine can run it and it lies within what was taught.
    """
    limits = _limits(deployment)
    return [_never_run(batch, limits) + beyond_taught(batch) for batch in batches]


def marks_of_each(batch: Batch, deployments: Sequence[Deployment]) -> list[str]:
    """The marks of one batch on each deployment, as one text; those of the same limits share it."""
    limits = [_limits(deployment) for deployment in deployments]
    taught = beyond_taught(batch)
    marks = {each: "; ".join(_never_run(batch, each) + taught) for each in set(limits)}
    return [marks[each] for each in limits]


def _limits(deployment: Deployment) -> tuple[int, int, int]:
    """Requests and tokens of a step, and the longest context."""
    recipe = deployment.recipe
    return recipe.max_requests, recipe.token_budget, memory.max_model_len(deployment)


def _never_run(batch: Batch, limits: tuple[int, int, int]) -> list[str]:
    got = (
        ("requests", len(batch), "--max-num-seqs"),
        ("tokens", batch.tokens, "--max-num-batched-tokens"),
        ("tokens of context", batch.longest, "--max-model-len"),
    )
    return [
        f"{number:,} {what} exceed {flag} {most:,}"
        for (what, number, flag), most in zip(got, limits, strict=True)
        if number > most
    ]


def marks_lines(batches: list[dict[str, object]]) -> list[str]:
    """A line for each batch of a report that has marks."""
    return [
        f"{entry['batch']} is beyond limits: {'; '.join(map(str, marks))}."
        for entry in batches
        if isinstance(marks := entry.get("marks"), list) and marks
    ]


# The effective recipe for people: what runs, what set it, and what was assumed.

#: Sizes of CUDA graphs that are listed; the rest is told by the last one.
_LISTED = 4


def print_recipe(recipe: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Print a recipe as :meth:`EffectiveRecipe.described` gives it; JSON has the sources."""
    field, value = Column("field", True, folds=False), Column("value", True, most=44)
    table = Grid.of(field, value, Column("set by", True), caption="effective recipe")
    for name, entry in recipe.items():
        kind = entry["set_by"]
        said = {
            FLAG: entry["source"],
            ASSUMED: "ASSUMED: " + entry["source"],
            DESIGN: "engine's design",
        }.get(kind, kind)
        table.add(name, _shown(entry["value"]), said)
    console.print(table)
    console.print()


def notices(serving: ServingSpec) -> dict[str, list[str]]:
    """``notices`` of a report, where anything has to be said of the engine's release."""
    said = unread_notice(serving.engine, serving.engine_version)
    return {} if said is None else {"notices": [said]}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items() if each != "")
    if not isinstance(value, list):
        return str(value)
    if len(value) <= _LISTED:
        return " ".join(map(str, value)) or "-"
    return f"{' '.join(map(str, value[:_LISTED]))} .. {value[-1]}"


# Whether configurations fit their GPUs, for people, JSON and tables.

_SIZE = "tensor_parallel_size"
#: Flags that do not move memory: CUDA graphs are captured once the cache has its size.
_IDLE = {
    "enforce_eager", "max_cudagraph_capture_size", "enable_prefix_caching", "generation_config",
    "override_generation_config",
}  # fmt: skip


def memory_entry(deployment: Deployment) -> dict[str, Any]:
    """``fits``, ``kv_tokens`` of a replica's cache, the smallest size that fits, and the reason."""
    fit = memory.memory_fit(deployment)
    return {
        "fits": fit.fits,
        "kv_tokens": fit.kv_tokens,
        "smallest_tensor_parallel_size": memory.smallest_tensor_parallel_size(deployment),
        "reason": fit.reason or None,
    }


def memory_line(entry: Mapping[str, Any]) -> str:
    """Whether the model fits, in a sentence."""
    smallest = entry["smallest_tensor_parallel_size"]
    if entry["fits"]:
        fewest = f"; the smallest tensor-parallel size that fits is {smallest}" if smallest else ""
        return f"memory: fits, with a KV cache of {entry['kv_tokens']:,} tokens{fewest}"
    fewest = (
        f"--tensor-parallel-size {smallest} is the smallest that fits"
        if smallest
        else "no tensor-parallel size up to 32 fits"
    )
    return f"memory: DOES NOT FIT; {fewest}: {entry['reason']}"


def memory_columns(
    configurations: Sequence[Mapping[str, Any]], deployments: Sequence[Deployment]
) -> dict[str, Any]:
    """Columns ``fits``, ``kv_tokens`` and ``smallest_tensor_parallel_size`` of a table.

    Rows that differ in the tensor-parallel size alone share what is found.
    """
    import pyarrow as pa  # one configuration needs no tables

    alike: dict[tuple[Any, ...], dict[int, memory.MemoryFit]] = {}
    smallest: dict[tuple[Any, ...], int | None] = {}
    deciding = {name for configuration in configurations for name in configuration}
    deciding -= {_SIZE, *_IDLE}
    keys = [tuple(map(configuration.get, deciding)) for configuration in configurations]
    sizes = [deployment.serving.tensor_parallel_size for deployment in deployments]
    for key, size, deployment in zip(keys, sizes, deployments, strict=True):
        known = alike.setdefault(key, {})
        if size not in known:
            known[size] = memory.memory_fit(deployment)
    for key, deployment in zip(keys, deployments, strict=True):
        if key not in smallest:
            smallest[key] = memory.smallest_tensor_parallel_size(deployment, alike[key])
    fits = [alike[key][size] for key, size in zip(keys, sizes, strict=True)]
    return {
        "fits": [fit.fits for fit in fits],
        "kv_tokens": pa.array([fit.kv_tokens for fit in fits], pa.int64()),
        "smallest_tensor_parallel_size": pa.array([smallest[key] for key in keys], pa.int64()),
    }


# Intervals of coefficients and what left-out data showed, added to a coefficient report.

#: Metric -> what people call it.
METRICS = {"tpot": "step time", "ttft": "TTFT"}


def with_trust(report: dict[str, Any], checkpoint: Path, deployment: Deployment) -> dict[str, Any]:
    """A coefficient report with the ends of its intervals and what left-out data showed.

    Entries get ``low`` and ``high``, batches ``step_time_low_us``, ``step_time_high_us`` and
    perhaps a further mark; alphas that no data taught have no ends.
    Where the checkpoint has no intervals, ``intervals`` says why and nothing else changes.
    """
    try:
        calibration = intervals.read_calibration(checkpoint)
        texts = [entry["batch"] for entry in report["batches"]]
        distance, *far = locate_each(checkpoint, deployment, [REFERENCE_BATCH, *texts])
        known = gpu_is_known(checkpoint, deployment)
        situation = Situation(deployment, distance, known)
        halves = [intervals.step_half_width(calibration, known, text) for text in texts]
    except PinnError as error:
        return report | {"intervals": {"missing": str(error)}}
    outside = report["distance"]["outside_training_range"]
    described = describe_trust(situation, outside, calibration)
    sentence = described.pop("sentence")
    nearest = report["distance"]["nearest_measured"]
    if nearest is not None:
        sentence += f" The nearest measured deployment is {nearest}."
    ends = {
        name: calibration.coefficient_interval(name, entry["value"], known)
        for name, entry in _coefficients(report).items()
        if entry.get("taught", True)
    }
    found = _bounded(report, ends, halves)
    for entry, each in zip(found["batches"], far, strict=True):
        entry["marks"] += _far(calibration, each.total)
    return found | {
        "distance": report["distance"] | described | {"sentence": sentence},
        "intervals": {
            "level": calibration.level,
            **{m: intervals.around(1.0, calibration.half_width(m, known)) for m in METRICS},
        },
    }


def with_posterior(
    report: dict[str, Any], found: CoefficientSet, deployment: Deployment
) -> dict[str, Any]:
    """The report of a calibrated file with the ends that its posterior gives."""
    from pinn.calibration.posterior import (
        posterior_coefficient_ends,
        posterior_step_half_widths,
    )

    pairs = zip(coefficients.NAMES, posterior_coefficient_ends(found).T.tolist(), strict=True)
    ends = {name: pair for name, pair in pairs if not math.isnan(pair[0])}
    texts = [entry["batch"] for entry in report["batches"]]
    *halves, usual = posterior_step_half_widths(found, deployment, [*texts, REFERENCE_BATCH])
    stated = {"level": LEVEL, "tpot": intervals.around(1.0, float(usual))}
    return _bounded(report, ends, map(float, halves)) | {"intervals": stated}


def _coefficients(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of a report under the names of ``NAMES``."""
    parts = ("beta", "alpha")
    return {f"{part}.{name}": entry for part in parts for name, entry in report[part].items()}


def _bounded(
    report: dict[str, Any], ends: Mapping[str, Sequence[float]], halves: Iterable[float]
) -> dict[str, Any]:
    """The report with the ends of coefficients, where they are known, and of step times."""
    for name, entry in _coefficients(report).items():
        if name in ends:
            entry["low"], entry["high"] = ends[name]
    for entry, half in zip(report["batches"], halves, strict=True):
        low, high = intervals.around(entry["step_time_us"], half)
        entry |= {"step_time_low_us": low, "step_time_high_us": high}
    return report


def _far(calibration: intervals.StatedIntervals, distance: float) -> list[str]:
    """A mark where a batch's kernels lie farther from measured ones than all that was left out."""
    farthest = max(kind.farthest for kind in calibration.kinds)
    if distance <= farthest:
        return []
    return [
        "its kernels' sizes and GPU differ from measured ones by a factor of "
        f"{math.exp(distance):.2f}, those of left-out rows by {math.exp(farthest):.2f} at most"
    ]


def intervals_line(stated: Mapping[str, Any]) -> str:
    """The intervals of every metric in one sentence, or why there are none."""
    if "missing" in stated:
        return f"No intervals: {stated['missing']}."
    named = ", ".join(
        f"{label} {100 * (stated[m][0] - 1):+.0f} % to {100 * (stated[m][1] - 1):+.0f} %"
        for m, label in METRICS.items()
        if m in stated
    )
    return (
        f"{100 * stated['level']:.0f} % intervals below saturation, of {REFERENCE_BATCH}: {named}."
    )

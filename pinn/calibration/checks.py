"""Checks that measurements match the deployment that the user specified."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from pinn.calibration.calibrate import Intervals, read_intervals
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.refusals import refusal_of
from pinn.errors import PinnError
from pinn.measurements.traces.trace_tables import TraceTables
from pinn.memory.kv_cache import kv_layout
from pinn.memory.kv_layout import max_model_len
from pinn.memory.logged_cache import logged_blocks
from pinn.memory.startup_log import StartupLog
from pinn.specs.catalog import load_model
from pinn.specs.flags import FlagValue, specified
from pinn.specs.gpu import list_gpus, load_gpu
from pinn.specs.model import ModelSpec
from pinn.specs.model_names import find_in_catalog
from pinn.specs.model_variants import with_precision
from pinn.surrogate.coefficients import Coefficients
from pinn.surrogate.deployment_features import padded_features
from pinn.surrogate.step_features import step_time

# Checks before a fit. Each finding is a sentence with the measured value, the expected value and
# the likely mistake, such as a wrong flag.
#
# A fit to measurements of the wrong server would look good, because the fitted constants absorb the
# difference. The checks cover the KV cache size, the token budget and request limit, a single model
# and server per file, the roofline lower bound, units, clocks, and the consistency of metrics.


#: Function that returns the coefficients of a deployment, or of a variant with one changed flag.
CoefficientsOf = Callable[[Deployment], Coefficients]


def refuse(findings: Sequence[str], force: bool = False) -> Sequence[str]:
    """Raise an error if checks found that measurements do not match the flags.

    Args:
        findings: Findings of :func:`~pinn.calibration.checks.check_traces` or
            :func:`~pinn.calibration.checks_benchmarks.check_benchmarks`.
        force: Whether to continue despite findings.

    Returns:
        The findings, to be printed if the fit continues.

    Raises:
        PinnError: If there are findings and ``force`` is false.
    """
    if findings and not force:
        text = f"the measurements do not match the flags: {'; '.join(findings)}"
        end = "" if text.endswith("?") else "."
        raise PinnError(f"{text}{end} If the flags are right, calibrate anyway with --force")
    return findings


def check_engine(deployment: Deployment) -> Iterator[str]:
    """Yield a finding if the engine would reject to start with the flags of a measured server."""
    found = refusal_of(deployment)
    if found is not None:
        yield f"the engine would not start, because {found.reason} ({found.source}): {found.remedy}"


# Checks of flags against the size of the KV cache and the speed of the server.

#: Values to try for each flag, one of which may explain a mismatch.
_VALUES = {
    "tensor_parallel_size": (1, 2, 4, 8, 16),
    "pipeline_parallel_size": (1, 2, 4),
    "kv_cache_dtype": ("auto", "fp8"),
    "block_size": (8, 16, 32, 64, 128),
    "gpu_memory_utilization": (0.7, 0.75, 0.8, 0.85, 0.88, 0.92, 0.95, 0.97),
    "precision": ("bf16", "fp8", "nvfp4", "int4"),
}

#: Tolerance of the number of KV blocks: ``_KV_SHARE`` of this number, plus ``_MEMORY_SHARE`` of the
#: GPU's memory. The memory model only estimates what vLLM measures at start-up: activations and, in
#: some versions, CUDA graphs.
_KV_SHARE, _MEMORY_SHARE = 0.08, 0.03
#: Tolerance for the logged value of ``--gpu-memory-utilization``, which is rounded to two decimals.
_SAME_SHARE = 0.005

#: Ratios of measured to predicted times, or their inverses, above which a mistake is assumed.
#: ``FAR`` always applies; it is at least twice the error on any held-out model. ``OFF`` applies
#: only if changing a single flag explains the difference.
FAR, OFF = 2.0, 1.5

#: Maximum ratio of measured to predicted times, or its inverse, with a changed flag for that flag
#: to count as the explanation.
_EXPLAINED = 1.2


def alternatives(
    deployment: Deployment, flags: tuple[str, ...]
) -> Iterator[tuple[str, Deployment]]:
    """Yield variants of a deployment with one flag changed, each with the changed flag as a string.

    Args:
        deployment: Deployment as the user specified it.
        flags: Flags to change, one at a time: fields of ``ServingSpec``, ``precision`` or ``gpu``.
    """
    values_of = {**_VALUES, "gpu": list_gpus()}
    for name in flags:
        option = "--quantization" if name == "precision" else f"--{name.replace('_', '-')}"
        for value in values_of[name]:
            with suppress(PinnError):
                changed = _changed(deployment, name, value)
                if changed != deployment:
                    yield f"{option} {value}", changed


def _changed(deployment: Deployment, name: str, value: FlagValue) -> Deployment:
    if name == "precision":
        return replace(deployment, model=with_precision(deployment.model, str(value)))
    if name == "gpu":
        return replace(deployment, gpu=load_gpu(str(value)))
    serving = specified(partial(replace, deployment.serving), {name: value})
    return replace(deployment, serving=serving)


def check_kv_blocks(blocks: int, deployment: Deployment) -> Iterator[str]:
    """Yield a finding if a server's number of KV blocks contradicts the memory model.

    Args:
        blocks: Number of KV blocks that the server reports.
        deployment: Deployment as the user specified it.
    """
    expected, room = _blocks_and_room(deployment)
    if expected is not None and abs(blocks - expected) <= room:
        return
    near = []
    for option, changed in alternatives(deployment, (*_VALUES, "gpu")):
        found, room = _blocks_and_room(changed)
        if found is not None and abs(blocks - found) <= room:
            near.append((abs(np.log(found / blocks)), option))
    typed = f"--tensor-parallel-size {deployment.serving.tensor_parallel_size}"
    fits = "the model does not fit" if expected is None else f"{expected:,} fit {typed}"
    card = deployment.gpu.name
    mismatch = f"the server has {blocks:,} KV cache blocks per GPU, but {fits} on {card}"
    if not near:
        yield (
            f"{mismatch}: check --model, because changing a single flag does not explain the "
            f"difference"
        )
        return
    # List a wrong number of GPUs first, because it is the most frequent mistake.
    shown = [option for _, option in sorted(near, key=lambda pair: pair[0])[:2]]
    parallel = [o for _, o in near if o.startswith("--tensor-parallel-size")]
    shown = list(dict.fromkeys(parallel[:1] + shown))
    yield f"{mismatch}: they fit {' or '.join(shown)}"


def check_memory_log(log: StartupLog, deployment: Deployment) -> Iterator[str]:
    """Yield a finding if the KV cache in a start-up log contradicts the memory model.

    Args:
        log: Start-up log of the measured server.
        deployment: Deployment as the user specified it.

    Raises:
        PinnError: If the log belongs to another server or to a failed start.
    """
    blocks = logged_blocks(deployment, log)
    share, taken = log.memory_share, deployment.recipe.memory_share
    if share is not None and abs(share - taken) > _SAME_SHARE:
        option = f"--gpu-memory-utilization {share:g}"
        yield (
            f"according to its log, the server ran with {option}, but the flag is {taken:g}: did "
            f"you mean {option}?"
        )
    else:
        yield from check_kv_blocks(blocks, deployment)


def _blocks_and_room(deployment: Deployment) -> tuple[int | None, float]:
    """Return the predicted number of KV blocks and its tolerance.

    The number is None if the model does not fit into GPU memory.
    """
    try:
        # A maximum request length of 1 token skips the check that the longest request fits the KV
        # cache.
        serving = replace(deployment.serving, max_model_len=1)
        layout = kv_layout(replace(deployment, serving=serving), EngineSpec())
    except PinnError:
        return None, 0.0
    room = _KV_SHARE * layout.blocks
    room += _MEMORY_SHARE * deployment.gpu.memory_bytes / layout.block_bytes
    return layout.blocks or None, room


def check_speed(
    ratio: Callable[[Deployment], float], deployment: Deployment, what: str
) -> Iterator[str]:
    """Yield a finding if measured times differ too much from predicted ones.

    Flags are considered wrong if times differ by more than a factor of ``FAR``, which far exceeds
    the error on any held-out model, or if changing a single flag explains the difference.

    Args:
        ratio: Function of a deployment that returns the median ratio of measured to predicted
            times.
        deployment: Deployment as the user specified it.
        what: Subject and verb of the finding, such as ``steps take``.
    """
    got = ratio(deployment)
    if not np.isfinite(got) or (size := max(got, 1 / got)) < OFF:
        return
    shown = f"{size:.2g}" if size < 100 else f"{size:.0f}"
    mismatch = f"{what} {shown} times as {'long' if got > 1 else 'short'} as predicted"
    scale = next((s for s in (1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9) if 1 / 3 < got / s < 3), None)
    if scale is not None:
        factor = f"{1 / scale:,.0f} times" if scale < 1 else f"1/{scale:,.0f} of"
        yield (
            f"{mismatch}: check the unit of the file's times, which seems to be {factor} the "
            "expected unit"
        )
        return
    near = []
    for each, changed in alternatives(deployment, ("tensor_parallel_size", "precision", "gpu")):
        with suppress(PinnError):
            found = ratio(changed)
            if np.isfinite(found) and max(found, 1 / found) < _EXPLAINED:
                near.append((abs(np.log(found)), each))
    if near:
        yield f"{mismatch}: {' or '.join(o for _, o in sorted(near)[:3])} would explain it"
    elif size >= FAR:
        yield f"{mismatch}: check --model, --gpu, --tensor-parallel-size and --quantization"


# Checks of traces against the flags that the user gave to ``pinn ingest``.

#: Maximum share of implausible rows in a step table. The sampler may write a few faulty rows.
_STRAY = 1e-3

#: Two processes in a file count as two servers if their speeds differ by at least this ratio.
_TWO_SERVERS = 1.3

#: Remedy for a file with traces of several servers.
_SEPARATELY = "ingest the traces of each server separately"

#: The maximum number of tokens or requests per step counts as a limit of the server if at least
#: ``_AT_LIMIT`` steps reach it, with at least ``_MIXES`` distinct numbers of decodes.
_AT_LIMIT, _MIXES = 20, 3

#: Step times below this share of the roofline lower bound must have another unit, because no flag
#: changes the bound by such a factor.
_OTHER_UNIT = 0.02

#: A value in the token column above this multiple of the token budget is implausible.
_ABSURD = 100


def check_traces(
    traces: TraceTables, deployment: Deployment, coefficients_of: CoefficientsOf
) -> list[str]:
    """Return findings about mismatches between traces and deployment.

    Args:
        traces: Ingested trace tables (steps, cycles, requests, snapshots).
        deployment: Deployment as the user specified it.
        coefficients_of: Function of a deployment or its variant that returns its coefficients
            before calibration.

    Raises:
        PinnError: If the speed cannot be checked, because the traces have no usable interval
            between steps, and no other check yields a finding.
    """
    steps = traces.steps
    found = [
        *_models(traces, deployment), *_kv_cache(traces, steps, deployment),
        *_budget(steps, deployment), *_seats(steps, deployment), *_requests(traces, deployment),
        *_refused(traces), *_clock(traces),
    ]  # fmt: skip
    found = found or list(_below_floor(traces))
    if found:
        return found
    base = coefficients_of(deployment)
    intervals = read_intervals(traces, deployment, base.beta[0])

    def ratio(other: Deployment) -> float:
        features = padded_features(other, intervals.sums)
        predicted_s = step_time(features, coefficients_of(other).beta[0])
        return float(np.median(intervals.seconds / predicted_s))

    two = list(_two_servers(traces, intervals, base))
    return two or list(check_speed(ratio, deployment, "steps take"))


def _models(traces: TraceTables, deployment: Deployment) -> Iterator[str]:
    named = traces.table("requests", ["model"])["model"].drop_null().unique().to_pylist()
    names = sorted({str(name) for name in named if name})
    if len(names) > 1:
        yield f"the file has requests to {len(names)} models ({', '.join(names)}): {_SEPARATELY}"
    elif names:
        yield from other_model(names[0], deployment)


def other_model(name: str, deployment: Deployment) -> Iterator[str]:
    """Yield a finding if a file names a model whose layers differ from the deployment's.

    Args:
        name: Model name in the file; unknown names yield no finding.
        deployment: Deployment as the user specified it.
    """
    stated, given = _known_model(name), deployment.model
    if stated is None:
        return
    shapes = [(m.hidden_size, m.vocab_size, m.layer_groups) for m in (stated, given)]
    if shapes[0] != shapes[1]:
        yield (
            f"the file names the model {name}, but --model is {given.name}: did you mean "
            f"--model {name}?"
        )


def unknown_model(name: str, deployment: Deployment) -> str | None:
    """Return a warning if a file's model name is unknown, such as an alias; otherwise None.

    Args:
        name: Model name in the file; empty if the file has none.
        deployment: Deployment as the user specified it.
    """
    given = deployment.model
    names = {_bare(given.name), _bare(given.title)}
    if not name or _bare(name) in names or _known_model(name) is not None:
        return None
    return (
        f"the file names the model {name}, which is unknown and was not compared with --model "
        f"{given.title}: check that the server ran this model"
    )


def _known_model(name: str) -> ModelSpec | None:
    """Return the catalog model of a name or of a path's last part; None if there is none."""
    for spelled in (name, _bare(name)):
        with suppress(PinnError):  # a bare name that fits several models
            if found := find_in_catalog(spelled):
                return load_model(found.name)
    return None


def _bare(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _kv_cache(traces: TraceTables, steps: pd.DataFrame, deployment: Deployment) -> Iterator[str]:
    percent = int((traces.manifest.get("implausible") or {}).get("kv_usage above 1", 0))
    if percent > _STRAY * len(steps):
        yield (
            f"KV cache usage is above 1 in {percent:,} of {len(steps):,} steps, expected a "
            f"fraction from 0 to 1: if the column is in percent, divide it by 100 and ingest again"
        )
    blocks = steps["kv_blocks_total"].dropna()
    blocks = blocks[blocks > 0]
    if not len(blocks):
        return
    counts = blocks.value_counts()
    common = counts[counts > _STRAY * len(blocks)]
    if common.index.max() > 1.01 * common.index.min():
        sizes = ", ".join(f"{int(n):,}" for n in common.index[:3])
        yield f"the file has several KV cache sizes ({sizes} blocks): {_SEPARATELY}"
    else:
        yield from check_kv_blocks(int(counts.index[0]), deployment)


def _budget(steps: pd.DataFrame, deployment: Deployment) -> Iterator[str]:
    budget = deployment.recipe.token_budget
    tokens = (steps["prefill_tokens"].fillna(0) + steps["decode_tokens"].fillna(0)).to_numpy(float)
    most = int(tokens.max(initial=0))
    absurd = tokens > _ABSURD * budget
    full = steps[(tokens == most) & (steps["prefill_tokens"] > 0).to_numpy()]
    is_limit = len(full) >= _AT_LIMIT and full["decode_requests"].nunique() >= _MIXES
    if absurd.any():
        yield (
            f"{int(absurd.sum()):,} of {len(tokens):,} steps have up to {most:,} tokens, which is "
            f"implausible: correct or drop these rows"
        )
    elif (tokens > budget).mean() > _STRAY:
        yield (
            f"steps have up to {most:,} tokens, but --max-num-batched-tokens is {budget}: did you "
            f"mean --max-num-batched-tokens {most}?"
        )
    elif is_limit and most < budget:
        yield (
            f"{len(full):,} steps have {most:,} tokens and no step has more, but "
            f"--max-num-batched-tokens is {budget}: did you mean "
            f"--max-num-batched-tokens {most}?"
        )


def _seats(steps: pd.DataFrame, deployment: Deployment) -> Iterator[str]:
    seats = deployment.recipe.max_requests
    scheduled = steps["prefill_requests"].fillna(0) + steps["decode_requests"].fillna(0)
    running = np.asarray(np.maximum(steps["running_depth"].fillna(0), scheduled), float)
    most = int(running.max(initial=0))
    tokens = steps["prefill_tokens"].fillna(0) + steps["decode_tokens"].fillna(0)
    waits = (steps["waiting_depth"].fillna(0) > 0) & (steps["kv_usage"].fillna(1) < 0.9)
    waits &= tokens < 0.9 * deployment.recipe.token_budget
    held = running[waits.to_numpy()]
    if (running > seats).mean() > _STRAY:
        yield (
            f"up to {most:,} requests run at once, but --max-num-seqs is {seats}: did you "
            f"mean --max-num-seqs {most:,}?"
        )
    elif len(held) >= _AT_LIMIT and (held == most).mean() > 0.9 and most < seats:
        yield (
            f"in {len(held):,} steps, requests wait although at most {most} run and the KV cache "
            f"is not full, but --max-num-seqs is {seats}: did you mean "
            f"--max-num-seqs {most}?"
        )


def _requests(traces: TraceTables, deployment: Deployment) -> Iterator[str]:
    columns = ["prompt_tokens", "cached_tokens", "output_tokens"]
    rows = traces.table("requests", columns).to_pandas()
    if not len(rows):
        return
    serving = deployment.serving
    longest = max_model_len(deployment)
    length = (rows["prompt_tokens"] + rows["output_tokens"].fillna(0)).max()
    if length > longest:
        option = f"--max-model-len {longest}" if serving.max_model_len else deployment.model.name
        yield (
            f"a request has {int(length):,} tokens, more than {option} allows: check --model and "
            "--max-model-len"
        )
    cached = rows["cached_tokens"].fillna(0) > 0
    if not serving.enable_prefix_caching and cached.mean() > _STRAY:
        yield (
            f"{int(cached.sum()):,} prompts hit the prefix cache, but prefix caching is off: "
            f"remove --no-enable-prefix-caching"
        )


def _clock(traces: TraceTables) -> Iterator[str]:
    intervals = traces.manifest.get("intervals") or {}
    still = int(intervals.get("set aside: clock does not advance", 0))
    total = sum(map(int, intervals.values()))
    if still > _STRAY * max(total, 1):
        yield (
            f"the clock stops or runs backwards in {still:,} of {total:,} intervals: use start "
            f"times in ns from the monotonic clock of one host"
        )


def _refused(traces: TraceTables) -> Iterator[str]:
    """Yield a finding if the trace reader dropped many steps with implausible counts."""
    report = (traces.manifest.get("reports") or {}).get("steps") or {}
    reason = "a count is negative or implausibly large"
    odd = int((report.get("refused") or {}).get(reason, 0))
    if odd > _STRAY * max(int(report.get("read", 0)), 1):
        yield (
            f"in {odd:,} of {report['read']:,} steps {reason}: check that each column's content "
            "matches its name"
        )


def _below_floor(traces: TraceTables) -> Iterator[str]:
    """Yield a finding if most step times are unusable because they are below the roofline bound."""
    check = (traces.manifest.get("targets") or {}).get("step_s") or {}
    if check.get("is_target", True) or not check["rows"]:
        return
    median, floor = check["median_s"], check["floor_median_s"]
    remedy = "check --tensor-parallel-size, --quantization, --model and --gpu"
    if median < _OTHER_UNIT * floor:
        remedy = "check that start times are in ns"
    yield (
        f"the median step takes {median * 1000.0:.3g} ms, but reading the weights and the KV "
        f"cache alone takes "
        f"{floor * 1e3:.3g} ms: {remedy}"
    )


def _two_servers(traces: TraceTables, intervals: Intervals, base: Coefficients) -> Iterator[str]:
    """Yield a finding if one engine process is much slower than another under equal load."""
    segment = traces.steps["segment"].to_numpy()[intervals.row]
    ratio = intervals.seconds / (intervals.features @ base.beta[0])
    segments, steps = np.unique(segment, return_counts=True)
    medians = [np.median(ratio[segment == s]) for s in segments[steps >= _AT_LIMIT]]
    if len(medians) > 1 and max(medians) > _TWO_SERVERS * min(medians):
        slower = max(medians) / min(medians)
        yield (
            f"the file has {len(medians)} processes, of which one is {slower:.2f} times as slow as "
            f"another: {_SEPARATELY}"
        )

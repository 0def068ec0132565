"""Whether measurements are of the server that they are said to be of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from pinn.coefficients.coefficients import Coefficients
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics.costs import step_costs
from pinn.physics.step import step_features
from pinn.server.calibration.calibrate import Intervals, read_intervals
from pinn.server.traces.trace_tables import TraceTables
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.memory import kv_layout
from pinn.specs.catalog import load_model
from pinn.specs.gpu import list_gpus, load_gpu
from pinn.specs.model_names import find_in_catalog
from pinn.specs.model_variants import with_precision

# Does a file match the flags? Findings before a fit, each with what would explain it.
#
# A fit to the wrong server looks fine: its constants take up the difference. So what can be
# known beforehand is checked beforehand: the size of the KV cache, budget and seats, one model
# and one server a file, the physical floor, units, clocks, and figures against each other.


@dataclass(frozen=True)
class Finding:
    """Something that does not fit.

    Attributes:
        text: What was got and what was expected.
        remedy: The likely mistake: a flag that would explain it, or what to look at.
    """

    text: str
    remedy: str

    def __str__(self) -> str:
        """Both in one sentence."""
        return f"{self.text}: {self.remedy}"


def refuse(findings: Sequence[Finding], force: bool = False) -> tuple[str, ...]:
    """Stop before a fit to files that do not match their flags.

    Args:
        findings: Of :func:`~pinn.server.calibration.checks.check_traces` or
            :func:`~pinn.server.calibration.checks_benchmarks.check_benchmarks`.
        force: Go on all the same.

    Returns:
        The findings as text, to be printed where the fit goes on.

    Raises:
        PinnError: If there are any and ``force`` is not given.
    """
    texts = tuple(map(str, findings))
    if texts and not force:
        raise PinnError(
            f"the files do not match the flags: {'; '.join(texts)}. If they do, go on with --force"
        )
    return texts


# What the size of a KV cache and the speed of a server say about its flags.

#: Flag -> values that are tried as an explanation.
_VALUES = {
    "tensor_parallel_size": (1, 2, 4, 8, 16),
    "pipeline_parallel_size": (1, 2, 4),
    "kv_cache_dtype": ("auto", "fp8"),
    "block_size": (8, 16, 32, 64, 128),
    "gpu_memory_utilization": (0.7, 0.75, 0.8, 0.85, 0.88, 0.92, 0.95, 0.97),
}
_PRECISIONS = ("bf16", "fp8", "nvfp4", "int4")

#: Share by which a count of KV blocks may differ, and share of the GPU's memory on top: what
#: vLLM measures at start (activations, CUDA graphs of some versions) is estimated here.
_KV_SHARE, _MEMORY_SHARE = 0.08, 0.03

#: Measured over predicted times beyond this factor are a mistake whatever the cause, since no
#: left-out model was off by half as much; from the smaller one on if a single flag explains it.
FAR, OFF = 2.0, 1.5

#: A flag explains a time if it brings the prediction this near.
_EXPLAINED = 1.2


def alternatives(
    deployment: Deployment, flags: tuple[str, ...]
) -> Iterator[tuple[str, Deployment]]:
    """The deployment with one flag changed, and the flag as typed.

    Args:
        deployment: As the user gave it.
        flags: Fields of ``ServingSpec``, ``precision`` or ``gpu``.
    """
    for name in flags:
        for value in {"precision": _PRECISIONS, "gpu": list_gpus()}.get(
            name, _VALUES.get(name, ())
        ):
            try:
                changed = _changed(deployment, name, value)
            except PinnError:
                continue
            if changed != deployment:
                option = "--quantization" if name == "precision" else f"--{name.replace('_', '-')}"
                yield f"{option} {value}", changed


def _changed(deployment: Deployment, name: str, value: Any) -> Deployment:
    if name == "precision":
        return replace(deployment, model=with_precision(deployment.model, str(value)))
    if name == "gpu":
        return replace(deployment, gpu=load_gpu(str(value)))
    return replace(deployment, serving=replace(deployment.serving, **dict[str, Any]({name: value})))


def check_kv_blocks(blocks: int, deployment: Deployment) -> Finding | None:
    """A server's KV blocks against the memory model.

    Args:
        blocks: As the server tells them.
        deployment: As the user gave it.
    """
    expected = _blocks(deployment)
    if expected is not None and _fits(blocks, deployment):
        return None
    flags = (*_VALUES, "precision", "gpu")
    near = [
        (abs(np.log(found / blocks)), option)
        for option, changed in alternatives(deployment, flags)
        if (found := _blocks(changed)) and _fits(blocks, changed)
    ]
    typed = f"--tensor-parallel-size {deployment.serving.tensor_parallel_size}"
    fits = "the model does not fit" if expected is None else f"{expected:,} fit {typed}"
    text = f"{blocks:,} KV blocks on each GPU, but {fits} on {deployment.gpu.name}"
    if not near:
        return Finding(text, "no single flag explains it: is --model the one that was served?")
    # The number of GPUs goes first: that is what people mistake.
    shown = [option for _, option in sorted(near, key=lambda pair: pair[0])[:2]]
    parallel = [o for _, o in near if o.startswith("--tensor-parallel-size")]
    shown = list(dict.fromkeys(parallel[:1] + shown))
    return Finding(text, f"they fit {' or '.join(shown)}")


def _blocks(deployment: Deployment) -> int | None:
    try:
        # The longest request that the cache must hold is no matter here.
        serving = replace(deployment.serving, max_model_len=1)
        return kv_layout(replace(deployment, serving=serving), EngineSpec()).blocks or None
    except PinnError:
        return None


def _fits(blocks: int, deployment: Deployment) -> bool:
    expected = _blocks(deployment)
    if expected is None:
        return False
    block_bytes = kv_layout(
        replace(deployment, serving=replace(deployment.serving, max_model_len=1)), EngineSpec()
    ).block_bytes
    room = _KV_SHARE * expected + _MEMORY_SHARE * deployment.gpu.memory_bytes / block_bytes
    return abs(blocks - expected) <= room


def check_speed(
    ratio: Callable[[Deployment], float], deployment: Deployment, what: str
) -> Finding | None:
    """Measured over predicted times: a factor that no model was ever off by is a mistake.

    Args:
        ratio: Median of measured over predicted times, as served by a deployment.
        deployment: As the user gave it.
        what: What was measured, for the text.
    """
    got = ratio(deployment)
    if not np.isfinite(got) or max(got, 1 / got) < OFF:
        return None
    text = f"{what} {_times(got)} as predicted"
    scale = next((s for s in (1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9) if 1 / 3 < got / s < 3), None)
    if scale is not None:
        return Finding(text, f"are its times in a unit {_unit(scale)} what it should be?")
    near = []
    for each, changed in alternatives(deployment, ("tensor_parallel_size", "precision", "gpu")):
        try:
            found = ratio(changed)
        except PinnError:
            continue
        if np.isfinite(found) and max(found, 1 / found) < _EXPLAINED:
            near.append((abs(np.log(found)), each))
    if near:
        return Finding(text, f"{' or '.join(o for _, o in sorted(near)[:3])} would explain it")
    if max(got, 1 / got) < FAR:
        return None
    return Finding(text, "check --model, --gpu, --tensor-parallel-size and --quantization")


def _times(ratio: float) -> str:
    size = max(ratio, 1 / ratio)
    shown = f"{size:.2g}" if size < 100 else f"{size:.0f}"
    return f"{shown} times as {'long' if ratio > 1 else 'short'}"


def _unit(scale: float) -> str:
    return f"{1 / scale:,.0f} times" if scale < 1 else f"1/{scale:,.0f} of"


# Do traces match the flags they were ingested with?

#: Rows of a step table that may be odd without a finding: a share, one bad line of a sampler.
_STRAY = 1e-3

#: Speeds of two parts of a file that differ by more than this factor are of two servers.
_TWO_SERVERS = 1.3

#: Steps that must show a limit before it is believed, and distinct numbers of decodes in them.
_AT_LIMIT, _MIXES = 20, 3

#: Steps that take less than this share of their floor have times in another unit: no flag changes
#: the floor by so much.
_OTHER_UNIT = 0.02

#: A step with so many times the token budget holds no token count.
_ABSURD = 100


def check_traces(
    traces: TraceTables,
    deployment: Deployment,
    coefficients_of: Callable[[Deployment], Coefficients],
) -> list[Finding]:
    """What does not fit.

    Args:
        traces: Canonical tables.
        deployment: As the user gave it.
        coefficients_of: Coefficients before calibration, for alternatives too.

    Raises:
        PinnError: If all fits so far and no interval is left to judge the speed by.
    """
    steps = traces.steps
    found = [
        *_models(traces, deployment),
        *_kv_cache(traces, steps, deployment),
        *_budget(steps, deployment),
        *_seats(steps, deployment),
        *_requests(traces, deployment),
        *_refused(traces),
        *_clock(traces),
    ]
    found = found or _below_floor(traces)
    if found:
        return found
    intervals = read_intervals(traces, deployment)
    two = _two_servers(traces, intervals, coefficients_of(deployment))
    speed = check_speed(_ratio(intervals, coefficients_of), deployment, "steps take")
    return two or ([speed] if speed else [])


def _models(traces: TraceTables, deployment: Deployment) -> list[Finding]:
    named = traces.table("requests", ["model"])["model"].drop_null().unique().to_pylist()
    names = sorted({str(name) for name in named if name})
    if len(names) > 1:
        return [Finding(f"requests of {len(names)} models ({', '.join(names)})",
                        "ingest the traces of one server by themselves")]  # fmt: skip
    return [f for name in names if (f := other_model(name, deployment))]


def other_model(name: str, deployment: Deployment) -> Finding | None:
    """Whether a name that a file gives is that of a model of other shapes; unknown names are not.

    Args:
        name: As the file has it.
        deployment: As the user gave it.
    """
    if find_in_catalog(name) is None:
        return None
    stated, given = load_model(name), deployment.model
    same = (stated.layers, stated.hidden_size, stated.vocab_size) == (
        given.layers, given.hidden_size, given.vocab_size,
    )  # fmt: skip
    if same:
        return None
    return Finding(f"the file is of {name}, --model of {given.name}", f"--model {name}?")


def _kv_cache(traces: TraceTables, steps: pd.DataFrame, deployment: Deployment) -> list[Finding]:
    found = []
    percent = int((traces.manifest.get("implausible") or {}).get("kv_usage above 1", 0))
    if percent > _STRAY * len(steps):
        found.append(Finding(f"KV usage above 1 in {percent:,} of {len(steps):,} steps",
                             "is it in percent? Divide it by 100 and ingest anew"))  # fmt: skip
    blocks = steps["kv_blocks_total"].dropna()
    blocks = blocks[blocks > 0]
    if not len(blocks):
        return found
    counts = blocks.value_counts()
    common = counts[counts > _STRAY * len(blocks)]
    if common.index.max() > 1.01 * common.index.min():
        sizes = ", ".join(f"{int(n):,}" for n in common.index[:3])
        found.append(Finding(f"KV caches of {sizes} blocks in one file",
                             "ingest the traces of one server by themselves"))  # fmt: skip
    else:
        finding = check_kv_blocks(int(counts.index[0]), deployment)
        found += [finding] if finding else []
    return found


def _budget(steps: pd.DataFrame, deployment: Deployment) -> list[Finding]:
    budget = deployment.recipe.token_budget
    tokens = (steps["prefill_tokens"].fillna(0) + steps["decode_tokens"].fillna(0)).to_numpy(float)
    absurd = tokens > _ABSURD * budget
    if absurd.any():
        return [Finding(f"{int(absurd.sum()):,} of {len(tokens):,} steps of {tokens.max():,.0f} "
                        "tokens", "no step holds so many: mend or drop these rows")]  # fmt: skip
    if (tokens > budget).mean() > _STRAY:
        most = int(tokens.max())
        return [Finding(f"steps of up to {most:,} tokens, --max-num-batched-tokens {budget}",
                        f"--max-num-batched-tokens {most}?")]  # fmt: skip
    most = int(tokens.max()) if len(tokens) else 0
    full = steps[(tokens == most) & (steps["prefill_tokens"] > 0).to_numpy()]
    is_limit = len(full) >= _AT_LIMIT and full["decode_requests"].nunique() >= _MIXES
    if is_limit and most < budget:
        return [Finding(f"{len(full):,} steps hold {most:,} tokens and none more, "
                        f"--max-num-batched-tokens {budget}",
                        f"--max-num-batched-tokens {most}?")]  # fmt: skip
    return []


def _seats(steps: pd.DataFrame, deployment: Deployment) -> list[Finding]:
    seats = deployment.recipe.max_requests
    scheduled = steps["prefill_requests"].fillna(0) + steps["decode_requests"].fillna(0)
    running = np.asarray(np.maximum(steps["running_depth"].fillna(0), scheduled), float)
    if (running > seats).mean() > _STRAY:
        return [Finding(f"up to {int(running.max()):,} requests at once, --max-num-seqs {seats}",
                        f"--max-num-seqs {int(running.max())}?")]  # fmt: skip
    tokens = steps["prefill_tokens"].fillna(0) + steps["decode_tokens"].fillna(0)
    waits = (steps["waiting_depth"].fillna(0) > 0) & (steps["kv_usage"].fillna(1) < 0.9)
    waits &= tokens < 0.9 * deployment.recipe.token_budget
    most = running.max(initial=0)
    held = running[waits.to_numpy()]
    if len(held) >= _AT_LIMIT and (held == most).mean() > 0.9 and most < seats:
        return [Finding(f"{len(held):,} steps leave requests waiting beside {int(most)} running "
                        f"ones and a cache that is not full, --max-num-seqs {seats}",
                        f"--max-num-seqs {int(most)}?")]  # fmt: skip
    return []


def _requests(traces: TraceTables, deployment: Deployment) -> list[Finding]:
    columns = ["prompt_tokens", "cached_tokens", "output_tokens"]
    rows = traces.table("requests", columns).to_pandas()
    if not len(rows):
        return []
    found, serving = [], deployment.serving
    longest = serving.max_model_len or deployment.model.max_position
    length = (rows["prompt_tokens"] + rows["output_tokens"].fillna(0)).max()
    if length > longest:
        option = f"--max-model-len {longest}" if serving.max_model_len else deployment.model.name
        found.append(Finding(f"a request of {int(length):,} tokens, more than {option} allows",
                             "check --model and --max-model-len"))  # fmt: skip
    cached = rows["cached_tokens"].fillna(0) > 0
    if not serving.enable_prefix_caching and cached.mean() > _STRAY:
        found.append(Finding(f"{int(cached.sum()):,} prompts were found in the prefix cache, "
                             "--no-enable-prefix-caching", "leave it out"))  # fmt: skip
    return found


def _clock(traces: TraceTables) -> list[Finding]:
    intervals = traces.manifest.get("intervals") or {}
    still = int(intervals.get("set aside: clock does not advance", 0))
    total = sum(map(int, intervals.values()))
    if still > _STRAY * max(total, 1):
        return [Finding(f"the clock stands still or runs back in {still:,} of {total:,} intervals",
                        "are start times of one host's monotonic clock, in ns?")]  # fmt: skip
    return []


def _refused(traces: TraceTables) -> list[Finding]:
    """Steps with counts that no engine writes, left out when the traces were read."""
    report = (traces.manifest.get("reports") or {}).get("steps") or {}
    reason = "a count is negative or absurd"
    odd = int((report.get("refused") or {}).get(reason, 0))
    if odd > _STRAY * max(int(report.get("read", 0)), 1):
        text = f"in {odd:,} of {report['read']:,} steps {reason}"
        return [Finding(text, "are its columns what their names say?")]
    return []


def _below_floor(traces: TraceTables) -> list[Finding]:
    """Step times that were refused as a target, since most are impossible."""
    check = (traces.manifest.get("targets") or {}).get("step_s") or {}
    if check.get("is_target", True) or not check["rows"]:
        return []
    median, floor = check["median_s"], check["floor_median_s"]
    text = (
        f"steps of {median * 1e3:.3g} ms, but reading weights and cache takes {floor * 1e3:.3g} ms"
    )
    if median < _OTHER_UNIT * floor:
        return [Finding(text, "are start times in another unit than ns?")]
    return [Finding(text, "check --tensor-parallel-size, --quantization, --model and --gpu")]


def _two_servers(traces: TraceTables, intervals: Intervals, base: Coefficients) -> list[Finding]:
    """Segments (processes) whose steps are slower than others' by a factor at the same load."""
    segment = traces.steps["segment"].to_numpy()[intervals.row]
    ratio = intervals.seconds / (intervals.features @ base.beta[0])
    medians = {
        int(s): float(np.median(ratio[segment == s]))
        for s in np.unique(segment)
        if (segment == s).sum() >= _AT_LIMIT
    }
    if len(medians) > 1 and max(medians.values()) > _TWO_SERVERS * min(medians.values()):
        slow = max(medians.values()) / min(medians.values())
        return [Finding(f"{len(medians)} processes in one file, one {slow:.2f} times as slow as "
                        "another", "ingest the traces of one server by themselves")]  # fmt: skip
    return []


def _ratio(
    intervals: Intervals, coefficients_of: Callable[[Deployment], Coefficients]
) -> Callable[[Deployment], float]:
    def ratio(deployment: Deployment) -> float:
        features = step_features(step_costs([deployment]), intervals.sums)
        return float(
            np.median(intervals.seconds / (features @ coefficients_of(deployment).beta[0]))
        )

    return ratio

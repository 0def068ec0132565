"""Do traces match the flags they were ingested with?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from pinn.coefficients.coefficients import Coefficients
from pinn.data.traces.trace_tables import TraceTables
from pinn.physics.costs import step_costs
from pinn.physics.step import step_features
from pinn.specs.catalog import load_model
from pinn.specs.deployment import Deployment
from pinn.specs.model_names import find_in_catalog
from pinn.training.calibration.checks import Finding
from pinn.training.calibration.checks_server import check_kv_blocks, check_speed
from pinn.training.calibration.intervals import Intervals, read_intervals

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

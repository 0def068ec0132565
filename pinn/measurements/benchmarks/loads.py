"""Benchmark load as a simulator workload, and client metrics of its simulation."""

from collections.abc import Iterable
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import (
    FIGURES,
    BenchmarkRun,
    Lengths,
    Load,
    SharedPrefix,
)
from pinn.simulator.run import Run
from pinn.simulator.statistics import statistic
from pinn.simulator.workloads.arrivals import draw_gaps, draw_lengths
from pinn.simulator.workloads.workload import Workload, share_prompts
from pinn.specs.flags import specified

# Load of a benchmark run as a workload for the simulator.


def benchmark_workload(run: BenchmarkRun, seed: int = 0) -> Workload:
    """Return the workload that a benchmark sent; lengths and times not listed are sampled.

    Gaps between sends are scaled so that the mean request rate equals the stated rate, as in vLLM's
    client (``vllm/benchmarks/serve.py: get_request``).

    Args:
        run: Benchmark run.
        seed: Random seed.
    """
    load, rng = run.load, np.random.default_rng(seed)
    prompt = _draw(load.prompt, load.requests, rng)
    output = _draw(load.output, load.requests, rng)
    offsets = _offsets(load, rng)
    more: dict[str, np.ndarray] = {}
    if load.prefix is not None:
        prompt, more = _repeat(load.prefix, prompt, rng)
    if load.timeout_s is not None:
        more["timeout_s"] = np.full(len(prompt), load.timeout_s)
    made = partial(Workload, run.name, prompt, output, offsets, concurrency=load.concurrency)
    return specified(made, more)


def _draw(lengths: Lengths, count: int, rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    if lengths.each:
        return np.maximum(np.array(lengths.each, np.int64), 1)
    if lengths.std:
        given = {"mean": lengths.mean, "std_dev": lengths.std}
        given |= {} if lengths.low is None else {"min": float(lengths.low)}
        given |= {} if lengths.high is None else {"max": float(lengths.high)}
        return draw_lengths("gaussian", given, count, rng)
    if lengths.low is not None and lengths.high is not None:
        low, high = max(round(lengths.low), 1), max(round(lengths.high), 1)
        return rng.integers(low, high + 1, count)
    return _spread(lengths.mean, count)


def _spread(mean: float, count: int) -> Int[np.ndarray, " n"]:
    """Return ``count`` integer lengths, rounded up or down so that their mean is ``mean``.

    >>> _spread(2.5, 4).tolist()
    [2, 3, 2, 3]
    """
    return np.diff(np.floor(np.arange(count + 1) * mean)).astype(np.int64)


def _offsets(load: Load, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
    if load.offsets_s:
        return np.sort(np.array(load.offsets_s, float))
    if load.rate_per_s is None:
        return np.zeros(load.requests)
    gaps = draw_gaps(load.process, load.rate_per_s, load.requests, rng, load.cv)
    return np.cumsum(gaps) * (load.requests / load.rate_per_s / gaps.sum())


def _repeat(
    prefix: SharedPrefix, prompt: Int[np.ndarray, " n"], rng: np.random.Generator
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the prompts' lengths in tokens, and the workload columns for their shared prefixes.

    The columns contain, for each prompt, the earlier prompt whose prefix it repeats.
    """
    prompts = prefix.groups * prefix.prompts_per_group
    which = rng.permutation(prompts)[np.arange(len(prompt)) % prompts]
    length = prompt[: min(prompts, len(prompt))]
    tokens = length[which % len(length)]
    shared = np.minimum(prefix.tokens, tokens)
    return tokens, share_prompts(which // prefix.prompts_per_group, shared, which, tokens)


# Metrics of a simulated run, computed as benchmark clients do.


def benchmark_figures(run: Run, names: Iterable[str] = FIGURES) -> dict[str, float]:
    """Return the clients' metrics over a simulated run's completed requests, by metric.

    Args:
        run: Simulated run of a workload of ``benchmark_workload``.
        names: Names of ``pinn.measurements.benchmarks.benchmark_run.FIGURES``.

    Returns:
        Values in seconds or per second; NaN if no request completed (or, for gaps, if none has a
        second token).

    Raises:
        PinnError: If a name is unknown.
    """
    return {name: _figure(run, name) for name in names}


def _figure(run: Run, name: str) -> float:
    if name not in FIGURES:
        raise PinnError(f"the metric {name!r} is unknown: use one of {', '.join(FIGURES)}")
    r = run.requests
    done = r.finished
    if not done.any():
        return float("nan")
    if name.endswith("_per_s"):
        seconds = float(r.finish_s[done].max() - r.arrival_s.min())
        counted = done.sum() if name.startswith("requests") else r.output_tokens[done].sum()
        return float(counted) / seconds
    latency, of_all, _ = name.split("_")
    if latency == "itl":
        values, counts = run.gaps.seconds, run.gaps.count
    else:
        # A request with a single token has no TPOT.
        tpot_s = (r.e2e_s - r.ttft_s) / np.where(r.output_tokens > 1, r.output_tokens - 1.0, np.nan)
        values = {"ttft": r.ttft_s, "e2e": r.e2e_s, "tpot": tpot_s}[latency][done]
        values = values[~np.isnan(values)]
        counts = np.ones(len(values), np.int64)
    return statistic(values, counts, of_all)

"""The load of a benchmark run as a workload that the simulator serves."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from pinn.data.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load, SharedPrefix
from pinn.simulator.workloads.arrivals import draw_gaps
from pinn.simulator.workloads.lengths import draw_lengths
from pinn.simulator.workloads.sharing import share_prompts
from pinn.simulator.workloads.workload import Workload


def benchmark_workload(run: BenchmarkRun, seed: int = 0) -> Workload:
    """What the benchmark sent, drawn anew where the file tells a distribution only.

    Gaps between sends are scaled so that the stated mean rate holds exactly, as vLLM's client does
    (``vllm/benchmarks/serve.py: get_request``).

    Args:
        run: The run.
        seed: Of the random draws.
    """
    load, rng = run.load, np.random.default_rng(seed)
    prompt = _draw(load.prompt, load.requests, rng)
    output = _draw(load.output, load.requests, rng)
    offsets = _offsets(load, rng)
    donor, shared = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if load.prefix is not None:
        prompt, donor, shared = _repeat(load.prefix, prompt, rng)
    return Workload(
        run.name,
        prompt,
        output,
        offsets,
        shares_with=donor,
        shared_tokens=shared,
        concurrency=load.concurrency,
    )


def _draw(lengths: Lengths, count: int, rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    if lengths.each:
        return np.maximum(np.array(lengths.each, np.int64), 1)
    bounds = {
        name: float(value)
        for name, value in (("min", lengths.low), ("max", lengths.high))
        if value is not None
    }
    if lengths.std:
        given = {"mean": lengths.mean, "std_dev": lengths.std, **bounds}
        return draw_lengths("gaussian", given, count, rng)
    if lengths.low is not None and lengths.high is not None:
        low, high = max(round(lengths.low), 1), max(round(lengths.high), 1)
        return rng.integers(low, high + 1, count)
    return _spread(lengths.mean, count)


def _spread(mean: float, count: int) -> Int[np.ndarray, " n"]:
    """Whole lengths next to the mean, evenly mixed, whose mean it is.

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
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompt lengths, donors and shared tokens of prompts sent over and over in one order."""
    prompts = prefix.groups * prefix.prompts_per_group
    which = rng.permutation(prompts)[np.arange(len(prompt)) % prompts]
    length = prompt[: min(prompts, len(prompt))]
    tokens = length[which % len(length)]
    shared = np.minimum(prefix.tokens, tokens)
    return tokens, *share_prompts(which // prefix.prompts_per_group, shared, which, tokens)

"""Training entries for llm-d's latency predictor: states and latencies of a simulated pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Real

from pinn.engines.engine_spec import EngineSpec
from pinn.memory.kv_cache import kv_layout
from pinn.memory.kv_layout import max_model_len
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run
from pinn.simulator.simulate import Job, map_runs
from pinn.simulator.workloads.arrivals import POISSON, Stage, stage_arrivals
from pinn.simulator.workloads.workload import Workload
from pinn.specs.batch import Batch
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE
from pinn.units import MILLISECOND

#: Fields of a training entry, as documented by llm-d-latency-predictor's training server (main of
#: 2026-08-10). In the exported file, ``timestamp`` follows as the last field.
FIELDS = (
    "kv_cache_percentage", "input_token_length", "num_request_waiting", "num_request_running",
    "num_tokens_generated", "prefix_cache_score", "prefill_tokens_in_flight",
    "decode_tokens_in_flight", "encoder_matched_size", "encoder_input_size", "pod_type",
    "actual_ttft_ms", "actual_tpot_ms",
)  # fmt: skip

# Loads of a simulated pod, at points of a regular sequence over lengths, requests in flight and
# shared prompts.

#: Number of training entries sampled from each simulated load.
ENTRIES_OF_LOAD = 32
#: Base of the steps of the four-dimensional sequence: the root of x^5 = x + 1 (Roberts' R
#: sequence).
_STEP_BASE = 1.1673039782614187
#: ``_PROMPTS``: range of a load's longest prompt, in tokens. ``_PROMPT_RANGE``: ratio of a load's
#: longest to its shortest prompt. Prompt lengths are log-uniform.
_PROMPTS = (512.0, 32_768.0)
_PROMPT_RANGE = 64.0
#: ``_OUTPUTS``: range of a load's mean output, in tokens. ``_OUTPUT_RANGE``: range of a single
#: output, relative to the load's mean output.
_OUTPUTS, _OUTPUT_RANGE = (64.0, 1024.0), (0.2, 1.8)
#: Shares of the model's maximum length. ``_PROMPT_SHARE``: maximum prompt length.
#: ``_OUTPUT_SHARE``: maximum mean output length.
_PROMPT_SHARE, _OUTPUT_SHARE = 0.75, 0.125
#: ``_LIGHTEST``: mean number of requests in flight per replica in the lightest load. ``_COUNTS``:
#: number of grid points from which a load's number of requests in flight is interpolated.
_LIGHTEST, _COUNTS = 0.25, 24
#: ``_BUSY``: share of the time that prompts take in the heaviest sustainable load. ``_SUSTAINED``:
#: share of sustainable loads among all loads. ``_OVERLOAD``: maximum rate of an overloaded load,
#: relative to the saturation rate.
_BUSY, _SUSTAINED, _OVERLOAD = 0.7, 0.9, 1.25
#: ``_UNSHARED``: share of loads without shared prefixes. ``_RECENT``: maximum distance, in
#: requests, to the earlier request whose prefix a request repeats.
_UNSHARED, _RECENT = 1 / 3, 50
#: Maximum share of an output that is generated before a mid-output training entry. The rest of the
#: output determines the entry's mean ITL.
_FURTHEST = 0.5
#: ``_EACH``: number of requests of a load per request in flight, in addition to one per training
#: entry. ``_MOST_REQUESTS``: maximum number of requests of a load.
_EACH, _MOST_REQUESTS = 4.0, 1500


def seed_loads(latency: LinearLatency, count: int, seed: int) -> list[Workload]:
    """Return loads that range from an idle to an overloaded pod, with short to long prompts.

    Args:
        latency: Latency model of the deployment.
        count: Number of loads.
        seed: Random seed.
    """
    steps = _STEP_BASE ** -np.arange(1.0, 5.0)
    places = (0.5 + np.outer(np.arange(1, count + 1), steps)) % 1
    return [_load(latency, place, seed, i) for i, place in enumerate(places)]


def _load(
    latency: LinearLatency, place: Float[np.ndarray, " 4"], seed: int, index: int
) -> Workload:
    """Return the load for a point in the four-dimensional unit cube.

    The coordinates, each from 0 to 1, represent the longest prompt, the mean output, the requests
    in flight and the share of repeated prefixes.
    """
    rng, longest = np.random.default_rng([seed, index]), max_model_len(latency.deployment)
    top = _geometric(_PROMPTS[0], min(_PROMPTS[1], _PROMPT_SHARE * longest), place[0])
    bottom = max(top / _PROMPT_RANGE, 1.0)
    output = _geometric(_OUTPUTS[0], min(_OUTPUTS[1], _OUTPUT_SHARE * longest), place[1])
    prompt = (top - bottom) / np.log(top / bottom)
    counts, rates, busy = _steady_rates(latency, prompt, output)
    sustained = max(int((busy <= _BUSY).sum()) - 1, 0)
    in_flight = _geometric(counts[0], counts[sustained], min(place[2] / _SUSTAINED, 1.0))
    rate = float(np.interp(in_flight, counts, rates))
    if place[2] > _SUSTAINED:
        beyond = (place[2] - _SUSTAINED) / (1 - _SUSTAINED)
        rate = float(rates.max()) * (1 + beyond * (_OVERLOAD - 1))
    wanted = min(ENTRIES_OF_LOAD + _EACH * in_flight, _MOST_REQUESTS)
    offset, stage = stage_arrivals([Stage(rate, wanted / rate)], POISSON, rng)
    n = len(offset)
    prompts = np.exp(rng.uniform(np.log(bottom), np.log(top), n)).astype(np.int64)
    outputs = (output * rng.uniform(*_OUTPUT_RANGE, n)).astype(np.int64)
    share = max(place[3] - _UNSHARED, 0.0) / (1 - _UNSHARED)
    donor, shared = _shared_prompts(prompts, share, rng)
    return Workload(
        f"seed load {index + 1}", np.maximum(prompts, 1), np.maximum(outputs, 2), offset, stage,
        shares_with=donor, shared_tokens=shared,
    )  # fmt: skip


def _geometric(low: float, high: float, place: float) -> float:
    """Return the value at fraction ``place`` of a logarithmic scale from ``low`` to ``high``."""
    return low * max(high / low, 1.0) ** place


def _most_running(latency: LinearLatency, tokens: float) -> float:
    """Return the maximum number of running requests of ``tokens`` tokens each on one replica."""
    deployment, layout = latency.deployment, kv_layout(latency.deployment, EngineSpec())
    blocks = int(layout.request_blocks(round(tokens), deployment.recipe.block_tokens))
    return float(max(min(deployment.recipe.max_requests, layout.blocks // max(blocks, 1)), 1))


def _steady_rates(
    latency: LinearLatency, prompt: float, output: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return numbers of in-flight requests, the request rates that sustain them, and prompt loads.

    Counts and rates (requests per second) are totals over replicas. The prompt load is the share of
    step time due to prompts or, if larger, the share of the token budget used by prompts; at 1,
    every step is full of prompt tokens.

    Args:
        latency: Latency model of the deployment.
        prompt: Mean prompt tokens.
        output: Mean output tokens.
    """
    recipe = latency.deployment.recipe
    counts = np.geomspace(_LIGHTEST, _most_running(latency, prompt + output), _COUNTS)
    decodes = [Batch.decode(max(round(n), 1), round(prompt + output / 2)) for n in counts]
    room = np.maximum([recipe.token_budget - len(each) for each in decodes], 1)
    alone_s = latency.step_times(decodes)
    chunk, full = (
        [each + Batch.prefill(1, int(n)) for each, n in zip(decodes, tokens, strict=True)]
        for tokens in (np.minimum(round(prompt), room), room)
    )
    chunks = np.maximum(prompt / room, 1.0)
    prompt_s = (latency.step_times(chunk) - alone_s) * chunks
    life_s, replicas = output * alone_s + counts * prompt_s, recipe.data_parallel_size
    # With a small token budget, prompt tokens fill all steps before prompts dominate the step time.
    full_s = latency.step_times(full) * prompt / room
    rates = np.minimum(counts / life_s, 1 / full_s)
    return counts * replicas, rates * replicas, rates * np.maximum(prompt_s, full_s)


def _shared_prompts(
    prompts: Int[np.ndarray, " n"], share: float, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Return which earlier request's prefix each request repeats, and the length of the prefix.

    Requests are identified by index; lengths are in tokens. A random ``share`` of the requests
    repeats a prefix; for all others the index is -1 and the length 0.
    """
    n = len(prompts)
    donor = np.arange(n) - rng.integers(1, _RECENT + 1, n)
    donor = np.where((donor >= 0) & (rng.random(n) < share), donor, -1)
    common = np.minimum(prompts, prompts[np.maximum(donor, 0)])
    return donor, np.where(donor >= 0, rng.random(n) * common, 0).astype(np.int64)


# State of the simulated pod at a moment, as a gateway observes it.


@dataclass(frozen=True)
class _Since:
    """Running sums of a value over requests, in the order of an event such as the first token.

    Attributes:
        moments: Sorted times of the event, one per request, in seconds.
        sums: Sums of the value over the first 0, 1, ... n requests.
    """

    moments: Float[np.ndarray, " n"]
    sums: Float[np.ndarray, " m"]

    @classmethod
    def of(cls, moments: np.ndarray, values: np.ndarray | float = 1.0) -> _Since:
        """Return the running sums of a value over requests, in order of the requests' events."""
        order = np.argsort(moments)
        each = np.broadcast_to(np.asarray(values, float), moments.shape)[order]
        return cls(moments[order], np.concatenate([[0.0], np.cumsum(each)]))

    def at(self, moments: np.ndarray) -> np.ndarray:
        """Return the sums over the requests whose event precedes each of the given times."""
        return self.sums[np.searchsorted(self.moments, moments, side="left")]


def pod_states(run: Run, moments: Float[np.ndarray, " n"]) -> dict[str, Real[np.ndarray, " n"]]:
    """Return the fields of training entries that describe the pod just before the given times.

    Until its first token, a request contributes its prompt tokens to the token counts. After that,
    it contributes the tokens that it has generated so far.

    Args:
        run: Simulated run without failed requests.
        moments: Times in seconds.
    """
    r = run.requests
    first, last = r.engine_first_token_s, r.engine_finish_s
    running = _Since.of(r.scheduled_s).at(moments) - _Since.of(last).at(moments)
    waiting = _Since.of(r.arrival_s).at(moments) - _Since.of(r.scheduled_s).at(moments)
    prompts = _Since.of(r.arrival_s, r.prompt_tokens).at(moments)
    prompts = prompts - _Since.of(first, r.prompt_tokens).at(moments)
    per_s = r.output_tokens / np.maximum(last - first, np.finfo(float).tiny)
    speed, begun = (
        _Since.of(first, values).at(moments) - _Since.of(last, values).at(moments)
        for values in (per_s, per_s * first)
    )
    return {
        "kv_cache_percentage": np.where(running > 0, _kv_use(run, moments), 0.0),
        "num_request_waiting": waiting.astype(np.int64),
        "num_request_running": running.astype(np.int64),
        "prefill_tokens_in_flight": prompts.astype(np.int64),
        "decode_tokens_in_flight": np.maximum(np.rint(speed * moments - begun), 0).astype(np.int64),
    }


def _kv_use(run: Run, moments: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return the used share of the KV cache at given times, averaged over replicas.

    The use at a given time is that of each replica's latest step before it.
    """
    used = np.zeros(len(moments))
    for group in range(run.groups):
        mine = run.steps["group"] == group
        if mine.any():
            latest = np.searchsorted(run.steps["start_s"][mine], moments, side="right") - 1
            blocks = run.steps["used_blocks"][mine][np.maximum(latest, 0)]
            used += np.where(latest >= 0, blocks, 0.0)
    return np.clip(used / (run.kv_blocks * run.replicas), 0.0, 1.0)


# Half of the training entries state a TTFT, the other half a TPOT. Half of the TPOT entries
# describe the pod when a request arrives, the other half in the middle of its output.


def seed_entries(
    latency: LinearLatency, half_widths: Mapping[str, float], count: int, seed: int
) -> pd.DataFrame:
    """Return training entries of a deployment, in random order, with the columns in ``FIELDS``.

    Normal noise is added to the logarithms of latencies, with 90 % intervals of the given
    half-widths.

    Args:
        latency: Latency model of the deployment.
        half_widths: Half-width of the 90 % interval of the log latency, by metric (``tpot`` and
            ``ttft``); empty for no noise.
        count: Number of entries.
        seed: Random seed.

    Raises:
        PinnError: If the deployment cannot serve the loads.
    """
    loads = seed_loads(latency, -(-count // ENTRIES_OF_LOAD), seed)
    jobs = [Job(latency.deployment, load, latency) for load in loads]
    draws = np.random.default_rng([seed, len(loads)]).spawn(len(loads) + 1)
    own = {load.name: stream for load, stream in zip(loads, draws, strict=False)}
    parts = map_runs(lambda job, run: run_entries(run, own[job.workload.name]), jobs)
    rng, found = draws[-1], pd.concat(parts, ignore_index=True)
    found = found.iloc[rng.permutation(len(found))[:count]].reset_index(drop=True)
    for metric in ("ttft", "tpot"):
        noise = half_widths.get(metric, 0.0) / NORMAL_QUANTILE * rng.standard_normal(len(found))
        found[f"actual_{metric}_ms"] = (found[f"actual_{metric}_ms"] * np.exp(noise)).round(3)
    # Some gateways do not count decode tokens in flight and report 0. Half of the training entries
    # therefore have 0.
    found.loc[rng.random(len(found)) < 0.5, "decode_tokens_in_flight"] = 0
    return found


def run_entries(run: Run, rng: np.random.Generator) -> pd.DataFrame:
    """Return the training entries from one simulated load, without noise.

    Entries are sampled from requests in the middle half of the run, where the pod neither fills up
    nor drains.
    """
    r, n = run.requests, len(run.requests)
    known = np.flatnonzero(r.finished & (r.output_tokens > 1))
    known = known[(known >= n // 4) & (known < n - n // 4)]
    chosen = rng.permutation(known)[: ENTRIES_OF_LOAD // 2]
    amid = chosen[len(chosen) // 2 :]
    tokens, moments, later_s = _amid_output(run, amid, rng.uniform(0.0, _FURTHEST, len(amid)))
    early = chosen[: len(chosen) // 2]
    nothing = np.zeros(len(chosen))
    parts = [
        (chosen, r.arrival_s[chosen], nothing, r.ttft_s[chosen], nothing),
        (early, r.arrival_s[early], nothing[: len(early)], 0.0, r.mean_itl_s[early]),
        (amid, moments, tokens, 0.0, later_s),
    ]
    return pd.concat([_table(run, *part) for part in parts], ignore_index=True)


def _amid_output(
    run: Run, chosen: Int[np.ndarray, " n"], share: Float[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return the states of requests at the time when a given share of their output is generated.

    The states are: tokens generated so far, time in seconds, and mean ITL of the remaining tokens
    in seconds. The tokens of an output are assumed to be evenly spread over the steps from its
    first to its last token.
    """
    r = run.requests
    tokens = 1 + (share * (r.output_tokens[chosen] - 1)).astype(np.int64)
    moments = np.empty(len(chosen))
    group = r.replica[chosen] * run.groups // run.replicas
    for each in np.unique(group):
        mine, steps = group == each, run.steps["group"] == each
        ends = np.sort(run.steps["start_s"][steps] + run.steps["duration_s"][steps])
        first, last = (
            np.searchsorted(ends, moment[chosen[mine]], side="left")
            for moment in (r.engine_first_token_s, r.engine_finish_s)
        )
        part = (tokens[mine] - 1) / (r.output_tokens[chosen[mine]] - 1)
        place = first + np.rint(part * (last - first)).astype(np.int64)
        moments[mine] = ends[np.minimum(place, len(ends) - 1)]
    left = r.output_tokens[chosen] - tokens
    return tokens, moments, (r.engine_finish_s[chosen] - moments) / left


def _table(
    run: Run, chosen: np.ndarray, moments: np.ndarray, tokens: np.ndarray, *seconds: object
) -> pd.DataFrame:
    """Return training entries for chosen requests at given times, with their latencies.

    ``seconds`` are the TTFT and the TPOT of the requests.
    """
    r = run.requests
    ttft_s, tpot_s = (np.broadcast_to(np.asarray(each, float), moments.shape) for each in seconds)
    columns = pod_states(run, moments) | {
        "input_token_length": r.prompt_tokens[chosen],
        "num_tokens_generated": tokens.astype(np.int64),
        "prefix_cache_score": (r.cached_tokens[chosen] / r.prompt_tokens[chosen]).round(6),
        "encoder_matched_size": 0,
        "encoder_input_size": 0,
        "pod_type": "",
        "actual_ttft_ms": ttft_s / MILLISECOND,
        "actual_tpot_ms": tpot_s / MILLISECOND,
    }
    found = pd.DataFrame(columns)[list(FIELDS)]
    found["kv_cache_percentage"] = found["kv_cache_percentage"].round(6)
    return found

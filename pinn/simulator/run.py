"""A finished run: its requests, its steps and its timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from pinn.common.files import replace_atomically
from pinn.physics.batch_sums import BatchSums
from pinn.simulator import state
from pinn.simulator.transfers import NO_TRANSFERS, TierUse, TransferRecords
from pinn.simulator.workloads.workload import Workload

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes


# What a simulated run leaves behind: a record per request and per step.

STATUSES = {
    state.FINISHED: "finished",
    state.TIMED_OUT: "timed_out",
    state.REJECTED: "rejected",
    state.LOST: "lost",
}


@dataclass(frozen=True)
class RequestRecords:
    """Per request, in the order of sending; times in seconds, NaN for what did not happen.

    Attributes:
        status: ``finished``, ``timed_out``, ``rejected``, or ``lost`` with a server that failed.
        stage: Load stage.
        replica: Data-parallel replica.
        prompt_tokens: Prompt length.
        output_tokens: Tokens generated; 0 where none is asked for.
        cached_tokens: Prompt tokens found in the prefix cache at its first scheduling.
        reused_tokens: Tokens found in the cache over all its schedulings.
        computed_tokens: Tokens computed, recomputation included but drafts that were rejected.
        preemptions: How often it was preempted.
        arrival_s: When the client sent it.
        handed_s: When the front end put it into the engine's input queue.
        queued_s: When the scheduler learnt of it (the QUEUED event).
        scheduled_s: When it was first scheduled.
        first_token_s: When the client saw its first token, or the result without output.
        finish_s: When the client saw its last token, or gave up.
        engine_first_token_s: End of the step that made its first token.
        engine_finish_s: End of the step that made its last token.
        early_preemptions: Preemptions before its first token.
        recomputed_tokens: Tokens known at each of its preemptions, added up.
        handed_work: What its API server had done since it was last idle when the request was handed
            over: requests taken in, their prompt tokens, tokens streamed.
        first_work: Work of the engine when its first token was sent.
        last_work: Work of the engine when its last token was sent.
        drafted_tokens: Drafted tokens that steps verified for it; 0 without speculative decoding.
        accepted_tokens: Of those, what the model would have said, beyond its output's end too.
        warmup: 1 for a request that came before the measurement, else 0.
        loaded_tokens: Of ``cached_tokens``, those that were loaded from host memory.
        stored_tokens: Tokens that it has stored in host memory.
        load_wait_s: How long it has waited for loads, over all its schedulings.
        completion_s: PostDecodeFixedOverhead, the same for all.
    """

    status: Shaped[np.ndarray, " requests"]
    stage: Int[np.ndarray, " requests"]
    replica: Int[np.ndarray, " requests"]
    prompt_tokens: Int[np.ndarray, " requests"]
    output_tokens: Int[np.ndarray, " requests"]
    cached_tokens: Int[np.ndarray, " requests"]
    reused_tokens: Int[np.ndarray, " requests"]
    computed_tokens: Int[np.ndarray, " requests"]
    preemptions: Int[np.ndarray, " requests"]
    arrival_s: Float[np.ndarray, " requests"]
    handed_s: Float[np.ndarray, " requests"]
    queued_s: Float[np.ndarray, " requests"]
    scheduled_s: Float[np.ndarray, " requests"]
    first_token_s: Float[np.ndarray, " requests"]
    finish_s: Float[np.ndarray, " requests"]
    engine_first_token_s: Float[np.ndarray, " requests"]
    engine_finish_s: Float[np.ndarray, " requests"]
    early_preemptions: Int[np.ndarray, " requests"]
    recomputed_tokens: Int[np.ndarray, " requests"]
    handed_work: Float[np.ndarray, "requests 3"]
    first_work: Float[np.ndarray, "requests 3"]
    last_work: Float[np.ndarray, "requests 3"]
    drafted_tokens: Int[np.ndarray, " requests"]
    accepted_tokens: Int[np.ndarray, " requests"]
    warmup: Int[np.ndarray, " requests"]
    loaded_tokens: Int[np.ndarray, " requests"]
    stored_tokens: Int[np.ndarray, " requests"]
    load_wait_s: Float[np.ndarray, " requests"]
    completion_s: float = 0.0

    def __len__(self) -> int:
        return len(self.status)

    def of_stage(self, stage: int | None) -> Bool[np.ndarray, " requests"]:
        """Mask of the measured requests of a stage; of all without one."""
        measured: Bool[np.ndarray, " requests"] = self.warmup == 0
        return measured if stage is None else measured & (self.stage == stage)

    @property
    def finished(self) -> Bool[np.ndarray, " requests"]:
        """Mask of the requests that were served to the end."""
        return self.status == "finished"

    @property
    def ttft_s(self) -> Float[np.ndarray, " requests"]:
        """Time to first token, as the client sees it."""
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> Float[np.ndarray, " requests"]:
        """End-to-end latency; for a client that gave up, its patience."""
        return self.finish_s - self.arrival_s

    @property
    def mean_itl_s(self) -> Float[np.ndarray, " requests"]:
        """Return a request's mean ITL, without completion; NaN below two tokens."""
        return (self.last_token_s - self.first_token_s) / self.token_gaps

    @property
    def token_gaps(self) -> Float[np.ndarray, " requests"]:
        """Return the ITL gaps; NaN below two tokens."""
        return np.where(self.output_tokens > 1, self.output_tokens - 1.0, np.nan)

    @property
    def last_token_s(self) -> Float[np.ndarray, " requests"]:
        """When the client saw the last token, before completion."""
        return self.finish_s - self.completion_s


@dataclass(frozen=True)
class GapRuns:
    """Gaps between the steps that give a request tokens, runs of equal ones together.

    Attributes:
        seconds: Length of the gaps of each run.
        count: How many gaps the run has.
        tokens: Tokens that come together at the end of each of its gaps; 1 without speculative
            decoding.
    """

    seconds: Float[np.ndarray, " runs"]
    count: Int[np.ndarray, " runs"]
    tokens: Int[np.ndarray, " runs"]

    @property
    def per_token(self) -> tuple[Float[np.ndarray, " runs"], Int[np.ndarray, " runs"]]:
        """Inter-token latencies and their counts; tokens that come together share the gap."""
        return self.seconds / self.tokens, self.count * self.tokens


@dataclass(frozen=True)
class StepRecords:
    """Per step, in the order of launching.

    Attributes:
        table: Columns ``STEP_COLUMNS``; sums are of the replica that took longest, but for the
            shared ones.
    """

    table: Float[np.ndarray, "steps columns"]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, name: str) -> Float[np.ndarray, " steps"]:
        """One column by its name."""
        return self.table[:, state.STEP_COLUMNS.index(name)]

    @property
    def sums(self) -> BatchSums:
        """Batch sums of shape ``[steps]``, as the step features take them."""
        return self.whole_sums.without_reread(self[state.REREAD_TOKENS])

    @property
    def whole_sums(self) -> BatchSums:
        """Return the sums with keys that decodes share counted for each of them."""
        return BatchSums(*(self.table[:, state.FIRST_SUM + i] for i in range(len(state.SUMS))))

    @property
    def shared_sums(self) -> BatchSums:
        """Return the experts' work of a group's replicas, per replica, without contexts."""
        known = {name: self[f"shared_{name}"] for name in state.SHARED_SUMS}
        nothing = dict.fromkeys(state.SUMS, np.zeros(len(self)))
        return BatchSums(**(nothing | known))


@dataclass(frozen=True)
class Run:
    """A simulated run.

    Attributes:
        workload: What was sent.
        requests: Per request.
        steps: Per step.
        gaps: Gaps between steps' tokens, over all measured requests that generated any.
        kv_blocks: KV cache blocks of one replica.
        replicas: Data-parallel replicas of all servers together.
        groups: Of replicas that step together, alike in size.
        copies: Servers alike that they belong to, one after another.
        transfers: Between GPU and host.
        tier: A second tier of keys and values at its end; None without one.
    """

    workload: Workload
    requests: RequestRecords
    steps: StepRecords
    gaps: GapRuns
    kv_blocks: int
    replicas: int = 1
    groups: int = 1
    copies: int = 1
    transfers: TransferRecords = NO_TRANSFERS
    tier: TierUse | None = None

    @property
    def step_replicas(self) -> int:
        """Replicas that a recorded step is of: a group's."""
        return self.replicas // self.groups

    @property
    def step_blocks(self) -> int:
        """KV cache blocks of those together."""
        return self.kv_blocks * self.step_replicas


# The requests of a run as a table, one row each.


def request_table(run: Run) -> pa.Table:
    """The plain columns of ``RequestRecords``, ``ttft_s``, ``e2e_s``, ``mean_itl_s``, ``turn``."""
    import pyarrow as pa

    requests = run.requests
    names = [*(f.name for f in fields(requests)), "ttft_s", "e2e_s", "mean_itl_s"]
    columns = {name: getattr(requests, name) for name in names}
    plain = {name: column for name, column in columns.items() if np.ndim(column) == 1}
    return pa.table({"request": range(len(requests)), **plain, "turn": run.workload.turns})


def write_requests(
    run: Run, path: Path, further: Mapping[str, Shaped[np.ndarray, " requests"]] | None = None
) -> None:
    """Write that table, with more columns where they are given.

    Raises:
        OSError: If the file cannot be written.
    """
    import pyarrow.parquet as pq

    table = request_table(run)
    for name, column in (further or {}).items():
        table = table.append_column(name, [column])
    replace_atomically(path, lambda target: pq.write_table(table, target))


# A run over time as a picture: queue, KV cache, tokens and latencies.

_BINS = 240
_BLUE, _ORANGE, _GREEN, _GREY = "#1f77b4", "#ff7f0e", "#2ca02c", "#7f7f7f"


def plot_timeline(run: Run, path: Path) -> None:
    """Draw requests running and waiting, KV cache use, tokens per second and latencies.

    Steps are averaged, weighted by their time, over 240 equal spans; latencies are the median and
    the 90th percentile of the requests that arrived in a span. With a second tier of keys and
    values, its transfers are drawn too.

    Raises:
        OSError: If the file cannot be written.
    """
    from matplotlib.figure import Figure

    rows = 4 if run.tier is None else 5
    figure = Figure(figsize=(11, 2.25 * rows), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True)
    edges = np.linspace(0.0, float(run.requests.finish_s.max()), _BINS + 1)
    _draw_steps(axes, run, edges)
    _draw_latencies(axes[3], run, edges)
    if run.tier is not None:
        _draw_transfers(axes[4], run, run.tier, edges)
    labels = ("requests", "KV cache (%)", "tokens/s", "latency (s)", "host link (GB/s)")
    for axis, label in zip(axes, labels[:rows], strict=True):
        axis.set_ylabel(label)
        axis.grid(alpha=0.25)
        axis.set_ylim(bottom=0)
        axis.legend(loc="upper left", fontsize=8)
    axes[-1].set_xlabel("time (s)")
    done = int(run.requests.finished.sum())
    figure.suptitle(f"{run.workload.name}: {done:,} of {len(run.requests):,} requests served")
    replace_atomically(path, lambda target: figure.savefig(target, format="png", dpi=110))


def _draw_steps(axes: Sequence[Axes], run: Run, edges: np.ndarray) -> None:
    """Means over each span's steps, weighted by their time (0 where none runs), and rates."""
    steps, centres = run.steps, (edges[1:] + edges[:-1]) / 2
    where = _span(steps["start_s"], edges)
    busy = np.bincount(where, steps["duration_s"], _BINS)
    running, waiting, used = (
        np.bincount(where, steps[name] * steps["duration_s"], _BINS) / np.where(busy > 0, busy, 1.0)
        for name in ("running", "waiting", "used_blocks")
    )
    tokens, prompts, lost = (
        np.bincount(where, steps[name], _BINS) / np.diff(edges)
        for name in ("tokens", "prefill_tokens", "preempted")
    )
    queue, cache, flow = axes[:3]
    areas = ((0.0, running, _BLUE, "running"), (running, running + waiting, _ORANGE, "waiting"))
    for low, high, color, name in areas:
        queue.fill_between(centres, low, high, color=color, alpha=0.55, lw=0, label=name)
    cache.plot(centres, 100 * used / run.step_blocks, color=_GREEN, label="KV cache in use")
    if lost.any():
        twin = cache.twinx()
        twin.plot(centres, lost, color=_ORANGE, lw=1)
        twin.set_ylabel("preemptions/s", color=_ORANGE)
        twin.set_ylim(bottom=0)
    prompts = np.minimum(prompts, tokens)
    flow.plot(centres, tokens - prompts, color=_BLUE, label="decode tokens/s")
    flow.plot(centres, prompts, color=_ORANGE, label="prefill tokens/s")


def _draw_transfers(axis: Axes, run: Run, use: TierUse, edges: np.ndarray) -> None:
    """Draw what the links to the host carry, by when a transfer begins."""
    moved, centres = run.transfers, (edges[1:] + edges[:-1]) / 2
    for name, mine, color in (("loads", moved.load, _GREEN), ("stores", ~moved.load, _GREY)):
        sizes = moved.blocks[mine] * use.block_bytes / 1e9
        rate = np.bincount(_span(moved.start_s[mine], edges), sizes, _BINS) / np.diff(edges)
        axis.plot(centres, rate, color=color, label=name)


def _span(moments: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the index of the span that each moment lies in."""
    return np.clip(np.digitize(moments, edges) - 1, 0, _BINS - 1)


def _draw_latencies(axis: Axes, run: Run, edges: np.ndarray) -> None:
    requests = run.requests
    done = requests.finished
    where = _span(requests.arrival_s[done], edges)
    order = np.argsort(where, kind="stable")
    spans, first = np.unique(where[order], return_index=True)
    centres = ((edges[1:] + edges[:-1]) / 2)[spans]
    shown = (("E2E", requests.e2e_s, _BLUE), ("TTFT", requests.ttft_s, _ORANGE))
    for name, seconds, color in shown:
        groups = np.split(seconds[done][order], first)[1:]
        for percent, style in ((50, "-"), (90, ":")):
            values = [np.percentile(group, percent) for group in groups]
            axis.plot(centres, values, style, color=color, label=f"{name} p{percent}")
    failed = requests.status == "timed_out"
    if failed.any():
        moments, lost_s = requests.arrival_s[failed], requests.e2e_s[failed]
        axis.plot(moments, lost_s, "x", color=_GREY, ms=2, label="timed out")

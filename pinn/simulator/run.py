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


# Records of a simulated run: one per request, and one per step.

STATUSES = {
    state.FINISHED: "finished",
    state.TIMED_OUT: "timed_out",
    state.REJECTED: "rejected",
    state.LOST: "lost",
}


@dataclass(frozen=True)
class RequestRecords:
    """Records of requests in sending order; times in seconds, NaN for events that did not happen.

    Attributes:
        status: ``finished``, ``timed_out``, ``rejected``, or ``lost`` if its server failed.
        stage: Index of the load stage.
        replica: Index of the data-parallel replica.
        prompt_tokens: Prompt length.
        output_tokens: Tokens generated; 0 for a request without output.
        cached_tokens: Prompt tokens found in the prefix cache when the request was first scheduled.
        reused_tokens: Tokens found in the prefix cache, summed over all times the request was
            scheduled.
        computed_tokens: Tokens computed, including recomputed ones, excluding rejected draft
            tokens.
        preemptions: Number of preemptions of the request.
        arrival_s: Time when the client sent the request.
        handed_s: Time when the API server put the request into the engine's input queue.
        queued_s: Time when the scheduler received the request (vLLM's event QUEUED).
        scheduled_s: Time when the request was first scheduled.
        first_token_s: Time when the client saw the first token, or the result of a request without
            output.
        finish_s: Time when the client saw the last token, or gave up.
        engine_first_token_s: End of the step that generated the first token.
        engine_finish_s: End of the step that generated the last token.
        early_preemptions: Number of preemptions before the first token.
        recomputed_tokens: Prompt and generated tokens at each preemption of the request, summed
            over preemptions.
        handed_work: Work of the API server from its last idle time to ``handed_s``: numbers of
            accepted requests, of their prompt tokens, and of streamed tokens.
        first_work: Work of the API server from its last idle time to the sending of the first
            token.
        last_work: Work of the API server from its last idle time to the sending of the last token.
        drafted_tokens: Draft tokens that steps verified; 0 without speculative decoding.
        accepted_tokens: Accepted draft tokens, including tokens beyond the end of the output.
        warmup: 1 for a warm-up request, which is not measured, else 0.
        loaded_tokens: Part of ``cached_tokens`` that was loaded from host memory.
        stored_tokens: Tokens that the request has stored in host memory.
        load_wait_s: Total time that the request waited for loads from host memory.
        completion_s: Time from a request's last token to its end (PostDecodeFixedOverhead), equal
            for all requests.
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
        """Return a mask of the measured requests of a stage; of all stages if ``stage`` is None."""
        measured: Bool[np.ndarray, " requests"] = self.warmup == 0
        return measured if stage is None else measured & (self.stage == stage)

    @property
    def finished(self) -> Bool[np.ndarray, " requests"]:
        """Mask of the requests with status ``finished``."""
        return self.status == "finished"

    @property
    def ttft_s(self) -> Float[np.ndarray, " requests"]:
        """Time to first token as the client sees it, in seconds."""
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> Float[np.ndarray, " requests"]:
        """End-to-end latency in seconds; the client timeout if the client gave up."""
        return self.finish_s - self.arrival_s

    @property
    def mean_itl_s(self) -> Float[np.ndarray, " requests"]:
        """Mean ITL of each request in seconds; NaN for requests with fewer than two tokens."""
        return (self.last_token_s - self.first_token_s) / self.token_gaps

    @property
    def token_gaps(self) -> Float[np.ndarray, " requests"]:
        """Each request's number of ITL gaps; NaN for fewer than two tokens."""
        return np.where(self.output_tokens > 1, self.output_tokens - 1.0, np.nan)

    @property
    def last_token_s(self) -> Float[np.ndarray, " requests"]:
        """Time in seconds when the client saw the last token, excluding ``completion_s``."""
        return self.finish_s - self.completion_s


@dataclass(frozen=True)
class GapRuns:
    """Gaps between the steps that generate a request's tokens, as runs of equal gaps.

    Attributes:
        seconds: Length of each gap of a run, in seconds.
        count: Number of equal gaps in a run.
        tokens: Tokens that arrive together at the end of each gap; 1 without speculative decoding.
        stage: Load stage of the requests.
    """

    seconds: Float[np.ndarray, " runs"]
    count: Int[np.ndarray, " runs"]
    tokens: Int[np.ndarray, " runs"]
    stage: Int[np.ndarray, " runs"]

    def of_stage(self, stage: int | None) -> GapRuns:
        """Return the gaps of a load stage's requests; of all stages if ``stage`` is None."""
        if stage is None:
            return self
        mine = self.stage == stage
        return GapRuns(*(getattr(self, f.name)[mine] for f in fields(GapRuns)))

    @property
    def per_token(self) -> tuple[Float[np.ndarray, " runs"], Int[np.ndarray, " runs"]]:
        """Return the ITL in seconds of each run of equal gaps, and its number of tokens.

        Tokens that arrive together share their gap equally.
        """
        return self.seconds / self.tokens, self.count * self.tokens


@dataclass(frozen=True)
class StepRecords:
    """Records of engine steps, in the order in which the steps were launched.

    Attributes:
        table: One row per step, with the columns ``STEP_COLUMNS``. Batch sums are those of the
            slowest replica, except the sums of work that replicas share.
    """

    table: Float[np.ndarray, "steps columns"]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, name: str) -> Float[np.ndarray, " steps"]:
        """Return one column of the table of steps by its name."""
        return self.table[:, state.STEP_COLUMNS.index(name)]

    @property
    def sums(self) -> BatchSums:
        """Batch sums of shape ``[steps]`` for step features, excluding KV reads from L2 cache."""
        return self.whole_sums.without_reread(self[state.REREAD_TOKENS])

    @property
    def whole_sums(self) -> BatchSums:
        """Batch sums of shape ``[steps]``; keys that decodes share count once per decode."""
        return BatchSums(*(self.table[:, state.FIRST_SUM + i] for i in range(len(state.SUMS))))

    @property
    def shared_sums(self) -> BatchSums:
        """Batch sums of the experts' work, of shape ``[steps]``, as means per replica.

        All replicas of a group share this work. Sums over contexts are 0.
        """
        known = {name: self[f"shared_{name}"] for name in state.SHARED_SUMS}
        nothing = dict.fromkeys(state.SUMS, np.zeros(len(self)))
        return BatchSums(**(nothing | known))


@dataclass(frozen=True)
class Run:
    """Records of a simulated run.

    Attributes:
        workload: Requests that were sent.
        requests: Records of all requests.
        steps: Records of all engine steps.
        gaps: ITL gaps of all measured requests that generated tokens.
        kv_blocks: KV cache blocks of one replica.
        replicas: Data-parallel replicas of all servers together.
        groups: Number of groups of replicas that step together; all groups have equal size.
        copies: Number of identical servers; the replicas are numbered server by server.
        transfers: KV transfers between GPU and host memory.
        tier: State of the second KV tier at the end of the run; None if there is no second tier.
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
        """Number of replicas in a group; a recorded step covers all of them."""
        return self.replicas // self.groups

    @property
    def step_blocks(self) -> int:
        """Number of KV cache blocks of all replicas in a group, which a recorded step covers."""
        return self.kv_blocks * self.step_replicas


# Table of a run's requests, one row per request.


def request_table(run: Run) -> pa.Table:
    """Return one row per request: the columns of ``RequestRecords``, and latencies."""
    import pyarrow as pa

    requests = run.requests
    names = [*(f.name for f in fields(requests)), "ttft_s", "e2e_s", "mean_itl_s"]
    columns = {name: getattr(requests, name) for name in names}
    plain = {name: column for name, column in columns.items() if np.ndim(column) == 1}
    return pa.table({"request": range(len(requests)), **plain, "turn": run.workload.turns})


def write_requests(
    run: Run, path: Path, further: Mapping[str, Shaped[np.ndarray, " requests"]] | None = None
) -> None:
    """Write the table of requests, with the additional columns ``further``, to a Parquet file.

    Raises:
        OSError: If the file cannot be written.
    """
    import pyarrow.parquet as pq

    table = request_table(run)
    for name, column in (further or {}).items():
        table = table.append_column(name, [column])
    replace_atomically(path, lambda target: pq.write_table(table, target))


# Plot of a run over time: queue, KV cache, tokens and latencies.

_BINS = 240
_BLUE, _ORANGE, _GREEN, _GREY = "#1f77b4", "#ff7f0e", "#2ca02c", "#7f7f7f"


def plot_timeline(run: Run, path: Path) -> None:
    """Plot running and waiting requests, KV cache use, tokens per second, and latencies over time.

    The plot has 240 time spans of equal length. Steps are averaged within a span, weighted by their
    duration. Latencies are the median and the 90th percentile of the requests that arrived in a
    span. Transfers to and from a second KV tier are plotted if there is one.

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
    """Plot, per time span, requests and KV cache use (time-weighted means), and tokens/s."""
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
    """Plot the transfer rates between GPU and host memory, by each transfer's start time."""
    moved, centres = run.transfers, (edges[1:] + edges[:-1]) / 2
    for name, mine, color in (("loads", moved.load, _GREEN), ("stores", ~moved.load, _GREY)):
        sizes = moved.blocks[mine] * use.block_bytes / 1e9
        rate = np.bincount(_span(moved.start_s[mine], edges), sizes, _BINS) / np.diff(edges)
        axis.plot(centres, rate, color=color, label=name)


def _span(moments: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the index of the time span that contains each point in time."""
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

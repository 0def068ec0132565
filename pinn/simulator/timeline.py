"""A run over time as a picture: queue, KV cache, tokens and latencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pinn.simulator.run import Run
from pinn.specs.files.write import replace_atomically

_BINS = 240
_BLUE, _ORANGE, _GREEN, _GREY = "#1f77b4", "#ff7f0e", "#2ca02c", "#7f7f7f"


def plot_timeline(run: Run, path: Path) -> None:
    """Draw requests running and waiting, KV cache use, tokens per second and latencies.

    Steps are averaged, weighted by their time, over 240 equal spans; latencies are the median and
    the 90th percentile of the requests that arrived in a span.

    Raises:
        OSError: If the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(4, 1, figsize=(11, 9), sharex=True, layout="constrained")
    edges = np.linspace(0.0, float(run.requests.finish_s.max()), _BINS + 1)
    _draw_queue(axes[0], run, edges)
    _draw_cache(axes[1], run, edges)
    _draw_tokens(axes[2], run, edges)
    _draw_latencies(axes[3], run, edges)
    axes[3].set_xlabel("time (s)")
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.set_ylim(bottom=0)
        axis.legend(loc="upper left", fontsize=8)
    done = int(run.requests.finished.sum())
    figure.suptitle(f"{run.workload.name}: {done:,} of {len(run.requests):,} requests served")
    replace_atomically(path, lambda target: figure.savefig(target, format="png", dpi=110))
    plt.close(figure)


def _over_time(run: Run, name: str, edges: np.ndarray, *, rate: bool = False) -> np.ndarray:
    """Mean of a step column in each span, or its sum per second; 0 where no step runs."""
    steps = run.steps
    where = np.clip(np.digitize(steps["start_s"], edges) - 1, 0, len(edges) - 2)
    weight = np.ones(len(steps)) if rate else steps["duration_s"]
    total = np.bincount(where, steps[name] * weight, len(edges) - 1)
    if rate:
        return total / np.diff(edges)
    busy = np.bincount(where, weight, len(edges) - 1)
    return np.divide(total, busy, out=np.zeros(len(total)), where=busy > 0)


def _draw_queue(axis: Any, run: Run, edges: np.ndarray) -> None:
    centres = (edges[1:] + edges[:-1]) / 2
    running, waiting = _over_time(run, "running", edges), _over_time(run, "waiting", edges)
    axis.fill_between(centres, running, color=_BLUE, alpha=0.5, lw=0, label="running")
    axis.fill_between(
        centres, running, running + waiting, color=_ORANGE, alpha=0.6, lw=0, label="waiting"
    )
    axis.set_ylabel("requests")


def _draw_cache(axis: Any, run: Run, edges: np.ndarray) -> None:
    centres = (edges[1:] + edges[:-1]) / 2
    used = _over_time(run, "used_blocks", edges) / run.step_blocks
    axis.plot(centres, 100 * used, color=_GREEN, label="KV cache in use")
    lost = _over_time(run, "preempted", edges, rate=True)
    if lost.any():
        twin = axis.twinx()
        twin.plot(centres, lost, color=_ORANGE, lw=1)
        twin.set_ylabel("preemptions/s", color=_ORANGE)
        twin.set_ylim(bottom=0)
    axis.set_ylabel("KV cache (%)")


def _draw_tokens(axis: Any, run: Run, edges: np.ndarray) -> None:
    centres = (edges[1:] + edges[:-1]) / 2
    tokens = _over_time(run, "tokens", edges, rate=True)
    prefill = np.minimum(_over_time(run, "prefill_tokens", edges, rate=True), tokens)
    axis.plot(centres, tokens - prefill, color=_BLUE, label="decode tokens/s")
    axis.plot(centres, prefill, color=_ORANGE, label="prefill tokens/s")
    axis.set_ylabel("tokens/s")


def _draw_latencies(axis: Any, run: Run, edges: np.ndarray) -> None:
    requests = run.requests
    done = requests.finished
    where = np.clip(np.digitize(requests.arrival_s[done], edges) - 1, 0, len(edges) - 2)
    order = np.argsort(where, kind="stable")
    spans, first = np.unique(where[order], return_index=True)
    centres = ((edges[1:] + edges[:-1]) / 2)[spans]
    for name, seconds, color in (
        ("E2E", requests.e2e_s, _BLUE),
        ("TTFT", requests.ttft_s, _ORANGE),
    ):
        groups = np.split(seconds[done][order], first)[1:]
        for percent, style in ((50, "-"), (90, ":")):
            values = [np.percentile(group, percent) for group in groups]
            axis.plot(centres, values, style, color=color, label=f"{name} p{percent}")
    failed = requests.status == "timed_out"
    if failed.any():
        axis.plot(
            requests.arrival_s[failed], requests.e2e_s[failed], "x", color=_GREY, ms=2,
            label="timed out",
        )  # fmt: skip
    axis.set_ylabel("latency (s)")

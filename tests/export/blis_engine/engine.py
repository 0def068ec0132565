"""Runs of BLIS's engine, by its model in the folder simulator and the Go toolchain."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from go_command import go

from blis_engine.config import Inputs
from blis_engine.formula import formula
from pinn.simulator.run import Run
from pinn.simulator.workloads.workload import Workload


@dataclass(frozen=True)
class Seen:
    """Means over the clients of a run, in seconds."""

    e2e: float
    ttft: float
    itl: float

    def over(self, other: Seen) -> np.ndarray:
        """Return the relative differences from another run, in the order of the fields."""
        mine, theirs = (np.array(list(asdict(each).values())) for each in (self, other))
        return mine / theirs - 1


def seen_of(run: Run) -> Seen:
    """Return the means of a run of ``pinn simulate``."""
    r = run.requests
    gaps = run.gaps
    itl = float(gaps.seconds @ gaps.count / gaps.count.sum())
    return Seen(float(r.e2e_s.mean()), float(r.ttft_s.mean()), itl)


def step_ahead_us(run: Run) -> int:
    """Return the mean step time of a run where a newcomer mostly waits for a step, else 0."""
    steps = run.steps
    busy = steps["duration_s"].sum() / np.nanmax(run.requests.finish_s)
    return round(1e6 * busy * float(steps["duration_s"].mean()))


def load_values(workload: Workload) -> dict[str, list[int]]:
    """Return an open-loop load as the engine's input."""
    due = np.array(workload.stage_starts_s)[workload.stage] + workload.offset_s
    return {
        "arrival_us": np.round(due * 1e6).astype(int).tolist(),
        "prompt": workload.prompt_tokens.tolist(),
        "output": workload.output_tokens.tolist(),
        "shares_with": workload.shares_with.tolist(),
        "shared": workload.shared_tokens.tolist(),
    }


def run_values(inputs: Inputs, load: str, row: int, adapter_step_us: int = -1) -> dict[str, Any]:
    """Return a run as the engine's input: with the adapter where its load's mean step is given."""
    f, flags = formula(inputs), inputs.flags
    own = {
        "alpha": inputs.alpha, "beta": inputs.beta, "token_us": f.token_flop_us,
        "pair_us": f.pair_us, "weights_us": f.weights_us, "layers": f.layers,
        "interleaved": f.interleaved, "reduce_us": f.reduce_us, "kv_us": f.kv_us,
        "dispatch_us": f.dispatch_us,
    }  # fmt: skip
    return {
        "load": load, "row": row, "formula": own if adapter_step_us < 0 else None,
        "step_ahead_us": max(adapter_step_us, 0),
        "blocks": flags.total_kv_blocks, "block_size": flags.block_size_in_tokens,
        "max_num_seqs": flags.max_num_seqs, "max_model_len": flags.max_model_len,
        "max_num_batched_tokens": flags.max_num_batched_tokens,
    }  # fmt: skip


def serve(
    runs: list[dict[str, Any]], loads: dict[str, dict[str, list[int]]], table: Path
) -> list[Seen]:
    """Serve all runs.

    Args:
        runs: Runs as of ``run_values``.
        loads: Loads as of ``load_values``, by the name that runs give them.
        table: Coefficient table whose rows the adapter uses.
    """
    path = table.with_name("runs.json")
    path.write_text(json.dumps({"table": str(table), "loads": loads, "runs": runs}))
    go("blis", "test", "-count=1", "-run", "Python", ".", PINN_BLIS_RUNS=str(path))
    found = json.loads(Path(f"{path}.out").read_text())
    return [_seen(each, run, loads[run["load"]]) for each, run in zip(found, runs, strict=True)]


def _seen(outcome: dict[str, list[float]], run: dict[str, Any], load: dict[str, list[int]]) -> Seen:
    ttft, e2e = (np.array(outcome[name]) / 1e6 for name in ("ttft_us", "e2e_us"))
    assert (ttft > 0).all()
    gaps = np.array(load["output"]) - 1
    # Completion is part of E2E alone.
    completion = run["completion_us"] / 1e6
    return Seen(
        float(e2e.mean()), float(ttft.mean()), float((e2e - ttft - completion).sum() / gaps.sum())
    )

"""A recorded server's schedule, and what the simulator's scheduler makes of the same requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.workload import Workload
from pinn.specs.batch import Batch

#: Tokens scheduled and computed before, of each request of a step.
Rows = list[tuple[int, int]]

#: A request that came while a step ran came before its end: any time less than a step's.
_BEFORE_S = 1e-6


@dataclass(frozen=True)
class Recorded:
    """Events of the engine's loop, in order.

    Attributes:
        workload: Its requests, sent at the moments at which the scheduler learned of them in time
            for the step that they were first looked at for.
        batches: Batches of every step.
        starts_s: When each was scheduled, from the first.
        busy_s: From a step's scheduling to the next one's, or to its result where nothing was left.
    """

    workload: Workload
    batches: list[Rows]
    starts_s: np.ndarray
    busy_s: np.ndarray


def read_events(path: Path) -> list[dict[str, Any]]:
    """The lines of ``engine_recorder``."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def recorded_schedule(events: Sequence[dict[str, Any]]) -> Recorded:
    """A recording with one batch in flight, as a workload and its steps.

    Moments are the loop's own: a request is sent when its first step was scheduled if the engine
    was idle, else just before, so that nothing hangs on how long the loop itself takes.
    """
    steps = [event for event in events if "step" in event]
    first = steps[0]["at"]
    asked, left, offsets, waiting, ends = [], {}, [], 0, []
    idle = True
    for event in events:
        if "add" in event:
            asked.append(event)
            left[event["add"]] = len(event["prompt"]) + event["output"] - 1
            waiting += 1
            continue
        offsets += [event["at"] - first - (0.0 if idle else _BEFORE_S)] * waiting
        waiting = 0
        for request, new, computed in event["step"]:
            if computed + new == left[request]:
                del left[request]
        idle = not left
        ends.append(event["end"] if idle else None)
    prompts = [event["prompt"] for event in asked[: len(offsets)]]
    outputs = np.array([event["output"] for event in asked[: len(offsets)]])
    donors, shared = _shared(prompts)
    workload = Workload(
        "recorded", np.array([len(prompt) for prompt in prompts]), outputs, np.array(offsets),
        shares_with=donors, shared_tokens=shared,
    )  # fmt: skip
    starts = np.array([step["at"] for step in steps])
    until = [*starts[1:], steps[-1]["end"]]
    busy = [then if end is None else end for then, end in zip(until, ends, strict=True)] - starts
    return Recorded(workload, [rows_of(step) for step in steps], starts - first, busy)


def rows_of(step: dict[str, Any]) -> Rows:
    """Tokens of a step's requests, in an order of their own."""
    return sorted((new, computed) for _, new, computed in step["step"])


def _shared(prompts: Sequence[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """For each prompt the earlier one that begins most alike, -1 for none, and how many tokens."""
    donors, shared = np.full(len(prompts), -1), np.zeros(len(prompts), np.int64)
    for i, prompt in enumerate(prompts):
        for j, other in enumerate(prompts[:i]):
            if prompt[: shared[i] + 1] == other[: shared[i] + 1] and len(other) > shared[i]:
                same = [a == b for a, b in zip(prompt, other, strict=False)]
                donors[i], shared[i] = j, same.index(False) if False in same else len(same)
    return donors, shared


class _Replayed:
    """A latency model whose steps take what was recorded, and which writes down its batches."""

    def __init__(self, recorded: Recorded) -> None:
        self.left, self.batches = list(recorded.busy_s), list[Rows]()

    def step_time(self, batch: Batch) -> float:
        self.batches.append(sorted(zip(batch.new_tokens, batch.cached_tokens, strict=True)))
        return float(self.left.pop(0)) if self.left else 1.0

    def queueing_time(self, _: object) -> float:
        return 0.0

    def output_token_processing_time(self) -> float:
        return 0.0


def replay(recorded: Recorded, deployment: Deployment, engine: EngineSpec) -> list[Rows]:
    """The batches of the simulator's own scheduler, given arrivals and how long steps take."""
    replayed = _Replayed(recorded)
    simulate(deployment, recorded.workload, replayed, engine)
    return replayed.batches


def equal_steps(recorded: Sequence[Rows], simulated: Sequence[Rows]) -> int:
    """How many steps are alike before the first that is not; all if both are equally long."""
    pairs = zip(recorded, simulated, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(recorded), len(simulated)))
    return int(same)


def step_kinds(recorded: Recorded, latency: Any) -> list[dict[str, Any]]:
    """Median milliseconds of steps of a kind, from start to start, and as a latency model says.

    Kinds are decodes alone, by their number, and steps with prompts, by tokens to the next 256;
    those with 20 steps or more are told. A median hardly knows of what else the machine did.
    """
    kinds: dict[str, list[tuple[float, float]]] = {}
    for rows, seconds in zip(recorded.batches, recorded.busy_s, strict=True):
        new, computed = zip(*rows, strict=True)
        prompts = tuple(n > 1 for n in new)
        kind = f"{len(rows)} decodes"
        if any(prompts):
            kind = f"prompts, about {256 * max(round(sum(new) / 256), 1)} tokens"
        predicted = latency.step_time(Batch(new, computed, prompts))
        kinds.setdefault(kind, []).append((seconds, predicted))
    table = []
    for kind, pairs in kinds.items():
        measured, predicted = 1e3 * np.median(pairs, axis=0)
        row = {"kind": kind, "steps": len(pairs), "median_ms": measured, "predicted_ms": predicted}
        table += [row] if len(pairs) >= 20 else []
    return sorted(table, key=lambda row: -row["steps"])

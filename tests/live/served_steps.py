"""The live server's own steps as a table for ``pinn calibrate --steps``.

    python tests/live/served_steps.py build/live

writes ``build/live/served``: what steps take in a server, beside its front end.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
from live_engine import CPU_FLAGS, FLAGS, RELEASE
from live_schedule import Recorded, Rows, read_events, recorded_schedule

from pinn.measurements.program.table import FACTS_FILE, STEPS_FILE
from pinn.measurements.traces.step_table import COUNTS, LATENCY

#: Steps of a batch, and tokens within which prompts and contexts count as one batch.
_LEAST, _PROMPT, _CONTEXT = 8, 64, 100


def _counts(rows: Rows) -> tuple[int, int, int, int, int]:
    """A step in the order of ``COUNTS``."""
    prompts = [row for row in rows if row[0] > 1]
    contexts = [computed for new, computed in rows if new == 1]
    return (len(prompts), sum(new for new, _ in prompts), sum(c for _, c in prompts),
            len(contexts), sum(contexts))  # fmt: skip


def batches(recorded: Recorded) -> list[tuple[np.ndarray, list[float]]]:
    """Mean counts and milliseconds of the steps that are about alike."""
    alike: dict[tuple[float, ...], list[tuple[tuple[int, ...], float]]] = {}
    for rows, seconds in zip(recorded.batches, recorded.busy_s, strict=True):
        found = _counts(rows)
        prompts, tokens, _, decodes, context = found
        key = (prompts, round(tokens / _PROMPT), decodes,
               round(context / max(decodes, 1) / _CONTEXT))  # fmt: skip
        alike.setdefault(key, []).append((found, 1e3 * seconds))
    return [
        (np.mean([found for found, _ in each], axis=0).round().astype(int), [ms for _, ms in each])
        for each in alike.values()
        if len(each) >= _LEAST
    ]


def main(folder: Path) -> None:
    """Write the table and what is known of the server."""
    target = folder / "served"
    target.mkdir(exist_ok=True)
    found = batches(recorded_schedule(read_events(folder / "steps.jsonl")))
    with (target / STEPS_FILE).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["batch", *COUNTS, LATENCY])
        table.writerows([i, *counts, ms] for i, (counts, each) in enumerate(found) for ms in each)
    facts = {"model": str(folder / "model"), "gpu": str(folder / "core.json"),
             "engine_version": RELEASE, "flags": [*FLAGS, *CPU_FLAGS],
             "async_scheduling": False}  # fmt: skip
    (target / FACTS_FILE).write_text(json.dumps(facts))
    print(f"wrote {target}: {len(found)} batches")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

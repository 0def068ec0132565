"""Loads of serving runs that a file holds, in place of a built-in name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from pinn.data.serving_runs import WORKLOADS, Stage, Workload
from pinn.simulator.workloads.load import load_workload


def find_workloads(names: Iterable[object], folder: Path) -> dict[str, Workload]:
    """The built-in loads, and those of names that are files.

    Args:
        names: Of a column ``workload``.
        folder: Where relative paths begin: that of the CSV.

    Raises:
        PinnError: If a file is no workload.
    """
    found = dict(WORKLOADS)
    for name in dict.fromkeys(str(name) for name in names):
        path = folder / name
        if name not in found and path.is_file():
            found[name] = _of_file(name, path)
    return found


def _of_file(name: str, path: Path) -> Workload:
    """Mean lengths and rates of a file's requests; what is sent is the file's own."""
    sent = load_workload(path)
    stages = []
    for stage in range(sent.stages):
        mine = sent.stage == stage
        duration_s = float(np.ptp(sent.offset_s[mine])) or float("nan")
        stages.append(Stage(float(mine.sum() - 1) / duration_s, duration_s))
    return Workload(
        name,
        tuple(stages),
        prompt_tokens=round(float(sent.prompt_tokens.mean())),
        output_tokens=round(float(sent.output_tokens.mean())),
        file=path,
    )

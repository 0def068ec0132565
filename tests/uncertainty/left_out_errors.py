"""Made-up errors of left-out groups, with a known law."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

Sizes = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def left_out_errors(
    models: int,
    gpus: int = 3,
    rows: int = 20,
    seed: int = 0,
    size: Sizes = lambda distance, draw: draw.normal(0, 0.1, len(distance)),
    split: str = "leave-one-model-out",
) -> pd.DataFrame:
    """Errors of every model on every GPU; rows of a group share most of their error.

    Args:
        models: Number of models.
        gpus: Number of GPUs.
        rows: Per group.
        seed: Of the draws.
        size: Distances of the groups and a generator -> log error of each group.
        split: Kind of split that left them out.
    """
    draw = np.random.default_rng(seed)
    model, gpu = (x.ravel() for x in np.meshgrid(range(models), range(gpus), indexing="ij"))
    distance = draw.uniform(0.0, 1.0, models * gpus)
    of_group = {metric: size(distance, draw) for metric in ("tpot", "ttft", "e2e")}
    of_row = np.repeat(np.arange(models * gpus), rows)
    table = pd.DataFrame(
        {
            "split": split,
            "row_id": [f"row {i}" for i in range(len(of_row))],
            "model": [f"model {i}" for i in model[of_row]],
            "gpu": [f"gpu {i}" for i in gpu[of_row]],
            "distance": distance[of_row],
        }
    )
    table["group"] = table["model"] + " on " + table["gpu"]
    for metric, errors in of_group.items():
        table[metric] = errors[of_row] * draw.uniform(0.95, 1.0, len(of_row))
    return table

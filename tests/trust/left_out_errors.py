"""Made-up errors of held-out groups, with a known distribution."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pinn.surrogate.uncertainty.interval_fit import GAINS, METRICS
from pinn.surrogate.uncertainty.kinds import MEASURED

LOMO, LOGO = "leave-one-model-out", "leave-one-gpu-out"


def left_out_errors(
    models: int,
    law: Mapping[str, float],
    gpus: int = 3,
    rows: int = 20,
    seed: int = 0,
    split: str = LOMO,
) -> pd.DataFrame:
    """Return errors of every model on every GPU, normal with a spread that a group's rows share.

    Half of the models have experts, which take up to all of the time of their steps.

    Args:
        models: Number of models.
        law: Terms of the standard deviation: ``base``, and ``experts`` per share of the time.
        gpus: Number of GPUs.
        rows: Number of rows per group.
        seed: Seed of the errors.
        split: Kind of split that held the groups out.
    """
    draw = np.random.default_rng(seed)
    model, gpu = (x.ravel() for x in np.meshgrid(range(models), range(gpus), indexing="ij"))
    of_row = np.repeat(np.arange(models * gpus), rows)
    table = pd.DataFrame(
        {
            "split": split,
            "row_id": [f"row {i}" for i in range(len(of_row))],
            "model": [f"model {i}" for i in model[of_row]],
            "gpu": [f"gpu {i}" for i in gpu[of_row]],
            "kind": [("4-bit experts", "16-bit dense weights")[i % 2] for i in model[of_row]],
            "place": MEASURED,
            "distance": draw.uniform(0, 1, models * gpus)[of_row],
            "ttft_share": 0.1,
        }
    )
    table["shape"] = table["model"]
    table["group"] = table["model"] + " on " + table["gpu"]
    share = np.where(model % 2, 0.0, draw.uniform(0.2, 1.0, models * gpus))[of_row]
    table = table.assign(**dict.fromkeys(GAINS, 1.0))
    spread = law.get("base", 0.0) + law.get("experts", 0.0) * share
    return table.assign(**{m: draw.normal(0.0, 1.0, len(table)) * spread for m in METRICS})

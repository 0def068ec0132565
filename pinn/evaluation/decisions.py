"""What choosing a deployment by predictions costs, priced by what was measured.

Of the measured deployments of a model on a GPU under one prompt and output length, each with its
number of clients, the one with the best throughput per GPU is wanted whose TPOT holds a limit. A
method picks by its predictions; the pick is priced by its measurement.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from pinn.evaluation.metrics import read_table

#: Limits of the mean TPOT for which picks are made.
LIMITS_S = (0.010, 0.015, 0.020, 0.030, 0.050)

#: A pick whose measured TPOT is beyond its limit by more than this share is worth nothing.
SLACK = 0.05

#: A decision needs so many measured deployments that hold the limit, of so many parallelisms.
_LEAST_HOLDING, _LEAST_SIZES = 3, 2

_SITUATION = ["model", "gpu", "prompt_tokens", "output_tokens"]
_KNOWN = ["row_id", *_SITUATION, "concurrency", "tensor_parallel_size"]

COLUMNS = ("split", "method", *_SITUATION, "limit_s", "picked", "loss", "missed")
TABLE_COLUMNS = ("split", "held_out", "method", "decisions", "loss", "missed")


def read_predictions(path: Path) -> pd.DataFrame:
    """Read the predictions of an experiment.

    Raises:
        PinnError: If the file cannot be read or lacks a column.
    """
    times = (f"{metric}{end}" for metric in ("tpot", "ttft") for end in ("_s", "_measured_s"))
    needed = sorted({"split", "held_out", "row_id", "method", *times})
    return read_table(path, needed, "holds no predictions")


def throughput(rows: pd.DataFrame, tpot: str, ttft: str) -> pd.Series:
    """Output tokens per second and GPU of a closed loop: clients / (TPOT + TTFT / output) / GPUs.

    Args:
        rows: With the columns ``concurrency``, ``output_tokens`` and ``tensor_parallel_size``.
        tpot: Column of the mean time per output token, seconds.
        ttft: Column of the mean time to the first token, seconds.
    """
    per_token_s = rows[tpot] + rows[ttft] / rows["output_tokens"]
    return rows["concurrency"] / per_token_s / rows["tensor_parallel_size"]


def decide(predictions: pd.DataFrame, observations: pd.DataFrame) -> pd.DataFrame:
    """Pick and price, for every situation, limit, method and split.

    Args:
        predictions: As ``pinn.evaluation.crossvalidation.read_cells`` returns them; of splits
            that leave models or GPUs out, others are passed over.
        observations: The measured deployments.

    Returns:
        Table with ``COLUMNS``, one row per decision. The loss is 1 - measured throughput of the
        pick / the best measured one that holds the limit, 0 where the slack makes it negative and
        1 where the pick is worth nothing or there is none (``picked`` is then None).
    """
    judged = predictions["split"].str.startswith(("leave-one-model-out", "leave-one-gpu-"))
    rows = predictions[judged].merge(observations[_KNOWN], on="row_id")
    rows["predicted"] = throughput(rows, "tpot_s", "ttft_s")
    rows["measured"] = throughput(rows, "tpot_measured_s", "ttft_measured_s")
    found = []
    for key, offered in rows.groupby(["split", "method", *_SITUATION], sort=False):
        for limit_s in LIMITS_S:
            holding = offered[offered["tpot_measured_s"] <= limit_s]
            sizes = holding["tensor_parallel_size"].nunique()
            if len(holding) >= _LEAST_HOLDING and sizes >= _LEAST_SIZES:
                best = float(holding["measured"].max())
                found.append((*key, limit_s, *_pick(offered, limit_s, best)))
    return pd.DataFrame(found, columns=list(COLUMNS))


def _pick(offered: pd.DataFrame, limit_s: float, best: float) -> tuple[str | None, float, bool]:
    """Row id of the most predicted throughput within the limit, loss, whether that was missed."""
    within = np.where(offered["tpot_s"] <= limit_s, offered["predicted"], 0.0)
    values = np.nan_to_num(within)
    if not values.max() > 0:
        return None, 1.0, False
    pick = offered.iloc[int(values.argmax())]
    missed = bool(pick["tpot_measured_s"] > (1 + SLACK) * limit_s)
    loss = 1.0 if missed else max(0.0, 1 - float(pick["measured"]) / best)
    return str(pick["row_id"]), loss, missed


def decision_table(decided: pd.DataFrame) -> pd.DataFrame:
    """Mean loss and share of missed limits in percent, over all decisions and for each model.

    Returns:
        Table with ``TABLE_COLUMNS``; ``held_out`` is ``all`` or a model.
    """
    rows = []
    for (split, method), part in decided.groupby(["split", "method"], sort=False):
        parts = [("all", part), *part.groupby("model", sort=True)]
        rows += [
            (split, name, method, len(of_name), 100 * of_name["loss"].mean(),
             100 * of_name["missed"].mean())
            for name, of_name in parts
        ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(TABLE_COLUMNS))

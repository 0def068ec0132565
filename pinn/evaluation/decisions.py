"""Throughput lost by choosing deployments from predictions instead of measurements.

A decision is made for each model, GPU and pair of prompt and output lengths. A decision is a choice
among the measured deployments, each with its number of clients. The best choice has the highest
throughput per GPU among deployments whose TPOT is within a limit. A method picks a deployment based
on its predictions. The loss is computed from the measured throughput of this pick.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from pinn.evaluation.metrics import read_table

#: Limits of mean TPOT, in seconds. Every method picks a deployment for each limit.
LIMITS_S = (0.010, 0.015, 0.020, 0.030, 0.050)

#: A picked deployment counts as a miss, with a loss of 1, if its measured TPOT exceeds the limit by
#: more than this share.
SLACK = 0.05

#: A decision is evaluated only if at least ``_LEAST_HOLDING`` measured deployments meet the TPOT
#: limit, with at least ``_LEAST_SIZES`` different tensor-parallel sizes among them. With fewer,
#: there is little choice.
_LEAST_HOLDING, _LEAST_SIZES = 3, 2

_SITUATION = ["model", "gpu", "prompt_tokens", "output_tokens"]
_KNOWN = ["row_id", *_SITUATION, "concurrency", "tensor_parallel_size"]

COLUMNS = ("split", "method", *_SITUATION, "limit_s", "picked", "loss", "missed")
TABLE_COLUMNS = ("split", "held_out", "method", "decisions", "loss", "missed")


def read_predictions(path: Path) -> pd.DataFrame:
    """Read an experiment's predicted and measured TPOT and TTFT from a table.

    Raises:
        PinnError: If the file cannot be read or lacks a column.
    """
    times = (f"{metric}{end}" for metric in ("tpot", "ttft") for end in ("_s", "_measured_s"))
    needed = sorted({"split", "held_out", "row_id", "method", *times})
    return read_table(path, needed, "is no table of predictions")


def throughput(rows: pd.DataFrame, tpot: str, ttft: str) -> pd.Series:
    """Return the closed-loop throughput of each row, in output tokens per second per GPU.

    Formula: clients / (TPOT + TTFT / output tokens) / GPUs, with TPOT and TTFT in seconds.

    Args:
        rows: Table with the columns ``concurrency``, ``output_tokens`` and
            ``tensor_parallel_size``.
        tpot: Name of the column of mean TPOT, seconds.
        ttft: Name of the column of mean TTFT, seconds.
    """
    per_token_s = rows[tpot] + rows[ttft] / rows["output_tokens"]
    return rows["concurrency"] / per_token_s / rows["tensor_parallel_size"]


def decide(predictions: pd.DataFrame, observations: pd.DataFrame) -> pd.DataFrame:
    """Pick a deployment and compute its throughput loss, for each case, limit, method and split.

    A case is a model, a GPU, and a pair of prompt and output lengths. A limit is one of
    ``LIMITS_S`` of mean TPOT.

    Args:
        predictions: Predictions as ``pinn.evaluation.crossvalidation.read_cells`` returns them.
            Splits that hold out neither models nor GPUs are ignored.
        observations: Table of measured deployments.

    Returns:
        Table with ``COLUMNS``, one row per decision. The loss is 1 - (measured throughput of the
        pick) / (best measured throughput within the limit), at least 0. The loss is 1 if the pick
        exceeds the limit by more than ``SLACK``, or if nothing is picked (``picked`` is None).
    """
    held_out = predictions["split"].str.startswith(("leave-one-model-out", "leave-one-gpu-"))
    rows = predictions[held_out].merge(observations[_KNOWN], on="row_id")
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
    """Return the picked deployment's row id, its loss, and whether it exceeds the TPOT limit.

    The pick has the highest predicted throughput among the deployments whose predicted TPOT is
    within the limit.
    """
    within = np.where(offered["tpot_s"] <= limit_s, offered["predicted"], 0.0)
    values = np.nan_to_num(within)
    if not values.max() > 0:
        return None, 1.0, False
    pick = offered.iloc[int(values.argmax())]
    missed = bool(pick["tpot_measured_s"] > (1 + SLACK) * limit_s)
    loss = 1.0 if missed else max(0.0, 1 - float(pick["measured"]) / best)
    return str(pick["row_id"]), loss, missed


def decision_table(decided: pd.DataFrame) -> pd.DataFrame:
    """Return each method's mean throughput loss and share of decisions that miss the TPOT limit.

    Both are computed over all decisions of a split, and over the decisions for each model.

    Returns:
        Table with ``TABLE_COLUMNS``, in percent; ``held_out`` is ``all`` or a model.
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

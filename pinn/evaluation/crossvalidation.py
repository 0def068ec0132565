"""Every method on every split, each cell kept on disk so that an interrupted run goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.evaluation.methods import Method, Prediction
from pinn.kernels.exclusion import Exclusion
from pinn.observations.splits import Split
from pinn.observations.table import replace_atomically
from pinn.training.serving_rows import ServingRows


def cross_validate(
    rows: ServingRows,
    splits: Mapping[str, Sequence[Split]],
    methods: Sequence[Method],
    folder: Path,
    fingerprint: str,
) -> pd.DataFrame:
    """Predict the test rows of every split with every method.

    Args:
        rows: All rows.
        splits: Name of a kind of split, such as ``leave-one-model-out``, -> its splits.
        methods: What to compare.
        folder: Where cells and training logs are kept.
        fingerprint: Of everything a cell depends on beside its own split and method; cells that
            were made under another one are made anew.

    Returns:
        One row per (kind of split, row, method): ``split``, ``held_out``, ``row_id``, ``method``,
        ``tpot_s``, ``ttft_s``, ``tpot_measured_s``, ``ttft_measured_s``.
    """
    cells = [
        _cell(rows, kind, split, method, folder, fingerprint)
        for kind, of_kind in splits.items()
        for split in of_kind
        for method in methods
    ]
    return pd.concat(cells, ignore_index=True)


def _cell(
    rows: ServingRows, kind: str, split: Split, method: Method, folder: Path, fingerprint: str
) -> pd.DataFrame:
    key = json.dumps([fingerprint, kind, method.name, split.train_ids, split.test_ids])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = folder / "cells" / f"{digest}.parquet"
    if path.is_file():
        return pd.read_parquet(path)
    train, test = (
        rows.take(np.isin(rows.row_id, ids)) for ids in (split.train_ids, split.test_ids)
    )
    exclude = held_out_kernels(kind, test)
    logs = hashlib.sha256(f"{fingerprint} {kind} {split.name}".encode()).hexdigest()[:16]
    predictor = method.learn(train, exclude, folder / "logs" / logs / method.logs)
    cell = _table(kind, split, method, test, predictor(test))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(path, lambda target: cell.to_parquet(target, index=False))
    return cell


def held_out_kernels(kind: str, test: ServingRows) -> Exclusion:
    """What a kind of split holds out of the kernels beside its serving rows.

    A held-out model's kernels always go. A GPU's stay where only its serving rows are held out, as
    for a GPU whose kernels somebody measured.
    """
    if kind == "leave-one-model-out":
        models = {d.model.name: d.model for d in test.deployments}
        return Exclusion(models=tuple(models[name] for name in sorted(models)))
    if kind == "leave-one-gpu-and-its-kernels-out":
        return Exclusion(gpus=tuple(sorted({d.gpu.name for d in test.deployments})))
    return Exclusion()


def _table(
    kind: str, split: Split, method: Method, test: ServingRows, prediction: Prediction
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "split": kind,
            "held_out": ", ".join(split.held_out),
            "row_id": list(test.row_id),
            "method": method.name,
            "tpot_s": prediction[0],
            "ttft_s": prediction[1],
            "tpot_measured_s": test.tpot_s,
            "ttft_measured_s": test.ttft_s,
        }
    )

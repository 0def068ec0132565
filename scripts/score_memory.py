"""Compare memory sizes that servers logged at startup with predictions.

    python scripts/score_memory.py CASES.csv            # compare
    python scripts/score_memory.py CASES.csv --write    # and write data/engines/memory_errors.csv

Prints a row for each server start and part of memory, in GiB on one GPU. Then it prints the errors
for releases from 0.10.2 on: KV memory relative to the server's usable memory, KV tokens and weights
relative to logged values. Columns of the table: ``case``, ``engine``, ``release``, ``pinn_model``,
``gpu``, ``tensor_parallel``, flags by their names, and ``weights_gib``, ``kv_gib``, ``kv_tokens``,
``starts`` as logged.
"""

import math
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import typer

from pinn.common.files import data_folder
from pinn.engines.configurations import canonical, make_deployment
from pinn.engines.deployment import Deployment
from pinn.engines.recipe import release
from pinn.errors import PinnError
from pinn.memory.kv_cache import memory_fit
from pinn.memory.ledger import OTHER, kinds_of, memory_ledger
from pinn.specs.serving import SGLANG, VLLM
from pinn.units import GIB

#: Engine flags, by column of the input table.
FLAGS = {
    "tensor_parallel": "tensor_parallel_size",
    "pipeline_parallel": "pipeline_parallel_size",
    "data_parallel": "data_parallel_size",
    "memory_share": "gpu_memory_utilization",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "precision",
}
WHOLE = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len",
         "max_num_seqs", "max_num_batched_tokens", "block_size"}  # fmt: skip
#: First vLLM release for which errors are scored.
SINCE = "0.10.2"


def configuration_of(case: "pd.Series[Any]") -> dict[str, Any]:
    """Return the model, GPU and engine flags of a server whose start was logged."""
    given: dict[str, Any] = {
        "model": case["pinn_model"],
        "gpu": case["gpu"],
        "engine": case["engine"],
        "engine_version": case["release"],
    }
    for column, flag in FLAGS.items():
        if pd.notna(case[column]):
            given[flag] = int(case[column]) if flag in WHOLE else case[column]
    if case["expert_parallel"] == 1:
        given["enable_expert_parallel"] = True
    if case["enforce_eager"] == 1:
        given["enforce_eager"] = True
    return given


def deployment_of(case: "pd.Series[Any]") -> Deployment:
    """Return the deployment of a server whose start was logged."""
    return make_deployment(canonical(configuration_of(case)))


def scored(case: "pd.Series[Any]") -> dict[str, Any]:
    """Return the logged and the predicted memory sizes of a server's start."""
    found = {
        "case": case["case"], "engine": case["engine"], "release": case["release"],
        "model": case["pinn_model"], "gpu": case["gpu"], "tp": case["tensor_parallel"],
        "weights_logged": case["weights_gib"], "kv_logged": case["kv_gib"],
        "tokens_logged": case["kv_tokens"], "starts": case["starts"],
    }  # fmt: skip
    try:
        deployment = deployment_of(case)
    except PinnError as error:
        return found | {"error": str(error)}
    ledger, fit = memory_ledger(deployment), memory_fit(deployment)
    return found | {
        "weights": ledger.weights / GIB,
        "peak": max(ledger.reserve.forward, ledger.reserve.sampler) / GIB,
        "kv": ledger.left_bytes / GIB,
        "tokens": fit.kv_tokens,
        "usable": ledger.usable_bytes / GIB,
        "visible": ledger.visible / GIB,
        "kinds": kinds_of(deployment),
        "fits": fit.fits,
    }


def half_widths(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each deployment type's maximum error of KV memory, as an interval half-width.

    Errors are in percent of the GPU memory that the server sees. A half-width is at least the 90th
    percentile of vLLM's errors.
    """
    errors = 100 * ((rows["kv"] - rows["kv_logged"]) / rows["visible"]).abs()
    vllm = errors[rows["engine"] == VLLM].sort_values()
    # Conformal quantile: given n past errors, a new error is below this value with a probability of
    # 90 %.
    least = vllm.iloc[min(math.ceil(0.9 * (len(vllm) + 1)), len(vllm)) - 1]
    found = {OTHER: (len(errors), errors.max())}
    for kind in sorted({kind for kinds in rows["kinds"] for kind in kinds}):
        own = errors[[kind in kinds for kinds in rows["kinds"]]]
        found[kind] = (len(own), max(own.max(), least))
    table = [(kind, n, round(half, 2)) for kind, (n, half) in found.items()]
    return pd.DataFrame(table, columns=["kind", "start_ups", "half_percent"])


def scored_table(cases: Path) -> pd.DataFrame:
    """Return logged and predicted memory of each server start whose model is known, one per row.

    The column ``scored`` is true for vLLM from release ``SINCE`` on.
    """
    table = pd.read_csv(cases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = table[table["pinn_model"].notna()]
        rows = pd.DataFrame([scored(case) for _, case in known.iterrows()])
    of_release = zip(rows["engine"], rows["release"], strict=True)
    return rows.assign(scored=[e == VLLM and release(v) >= release(SINCE) for e, v in of_release])


def errors(rows: pd.DataFrame) -> dict[str, "pd.Series[float]"]:
    """Return errors of the scored server starts in percent, by part of memory."""
    own = rows[rows["scored"]]
    tokens = own["tokens"].astype(float)
    found = {
        "KV memory": (own["kv"] - own["kv_logged"]) / own["usable"],
        "tokens": tokens / own["tokens_logged"] - 1,
        "weights": own["weights"] / own["weights_logged"] - 1,
    }
    return {name: 100 * each[each.notna()].abs() for name, each in found.items()}


def main(cases: Path, write: bool = False) -> None:
    """Print logged and predicted memory of every server start, and the prediction errors."""
    rows = scored_table(cases)
    print(rows.drop(columns=["kinds", "scored"]).round(2).to_string(index=False))
    for name, each in errors(rows).items():
        high = each.quantile(0.9)
        print(f"{name}: median {each.median():.2f} %, 90th percentile {high:.2f}, n {len(each)}")
    sglang = rows[(rows["engine"] == SGLANG) & rows["kv_logged"].notna()]
    print(f"SGLang's KV memory: {(sglang['kv'] - sglang['kv_logged']).abs().mean():.2f} GiB off")
    widths = half_widths(pd.concat([rows[rows["scored"] & rows["kv_logged"].notna()], sglang]))
    print(widths.to_string(index=False))
    if write:
        widths.to_csv(data_folder("engines") / "memory_errors.csv", index=False)
    told = rows[rows["fits"].notna()]
    wrong = told[told["fits"].astype(bool) != (told["starts"] == 1)]
    print(f"starts or not: {len(told) - len(wrong)} of {len(told)}; wrong: {list(wrong['case'])}")


if __name__ == "__main__":
    typer.run(main)

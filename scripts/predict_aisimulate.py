"""Predict every vLLM row of ``silicon_sample.csv`` with AISimulate, AIConfigurator's successor.

    python scripts/predict_aisimulate.py data/peers

AISimulate simulates the benchmark of a row as this project does: identical requests in a closed
loop, with the flags of the row's launch script. Step times are summed from AISimulate's own kernel
times (``op_level``; from its newest complete tables, vLLM 0.24.0). The script requires the version
stated below, installed with ``pip install --pre`` in a separate environment with this project. It
runs for about twenty minutes. ``pinn.training.data.released`` reads the result.
"""

from concurrent.futures import ProcessPoolExecutor
from itertools import chain, count, islice
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import typer
from predict_aiconfigurator import COLUMNS, RECIPES, kind_of_failure, need_peer, request

from pinn.common.tables import write_frame
from pinn.measurements.deployments.measured import measured_deployment
from pinn.simulator.workloads.workload import Workload
from pinn.training.data.released import PEERS
from pinn.training.data.silicon import read_silicon
from pinn.units import MILLISECOND

PACKAGE, VERSION = "aisimulate", "0.13.0.dev202610270000000085"
#: Number of tokens per hash in a Mooncake trace (the package's default). Prompts with equal hashes
#: share these tokens.
TRACE_BLOCK = 512
#: Value of ``max_num_seqs`` if a row states none: vLLM's default on these GPUs
#: (data/engines/defaults.csv).
SEATS = 1024


def predict(observations: pd.DataFrame) -> list[tuple[str, float, float, str, str]]:
    """Return a row of ``COLUMNS`` per observation, in order, with predicted mean TTFT and TPOT.

    Raises:
        PinnError: If the package is missing or has another version.
    """
    need_peer(PACKAGE, VERSION)
    return [_predict_row(row) for _, row in observations.iterrows()]


def trace(load: Workload) -> str:
    """Return the requests of a closed loop as Mooncake's JSON lines, without shared prefixes."""
    blocks = count()
    prompts, outputs = load.prompt_tokens, load.output_tokens
    ids = [list(islice(blocks, ceil(tokens / TRACE_BLOCK))) for tokens in prompts]
    columns = {"timestamp": 0, "input_length": prompts, "output_length": outputs, "hash_ids": ids}
    return pd.DataFrame(columns).to_json(orient="records", lines=True)


def config(row: pd.Series, recipe: str, requests: Path) -> dict[str, object] | None:
    """Return AISimulate's ``CorePredictionConfig`` for an observation and a recipe.

    Args:
        row: Observation to predict.
        recipe: One of ``predict_aiconfigurator.RECIPES``.
        requests: File with the observation's :func:`trace`.

    Returns:
        Configuration; None if an earlier recipe gives the same configuration for this row.
    """
    asked = request(row, recipe)
    if asked is None:
        return None
    return {
        "traffic": {
            "source": {"type": "trace", "paths": [str(requests)], "format": "mooncake"},
            "load": {"type": "concurrency", "concurrency": int(row["concurrency"])},
        },
        "engine": {
            "model": asked["model_path"],
            "hardware": asked["system_name"],
            "backend": asked["backend_name"],
            "backend_version": "current",  # newest release with complete kernel tables
            "estimation_mode": "op_level",
            "workers": {"aggregated": _worker(row, asked)},
        },
    }


def _worker(row: pd.Series, asked: dict[str, object]) -> dict[str, object]:
    """Return AISimulate's settings of the server; missing ones have the package's defaults."""
    names = {
        "tp_size": "tensor", "attention_dp_size": "attention_data",
        "moe_tp_size": "moe_tensor", "moe_ep_size": "moe_expert",
    }  # fmt: skip
    scheduler = {"max_sequences": int(row["max_num_seqs"] or SEATS)}
    if row["max_num_batched_tokens"]:
        scheduler["max_batched_tokens"] = int(row["max_num_batched_tokens"])
    share = row["gpu_memory_utilization"]
    capacity = {"capacity": {"memory_fraction": float(share)}} if share else {}
    return {
        "parallelism": {names[name]: size for name, size in asked.items() if name in names},
        "scheduler": scheduler,
        "kv_cache": {"prefix_caching": row["enable_prefix_caching"] != "no", **capacity},
        "timing": {name: mode for name, mode in asked.items() if name.endswith("_quant_mode")},
    }


def _predict_row(row: pd.Series) -> tuple[str, float, float, str, str]:
    """Predict an observation by the first recipe that succeeds, or return the last recipe's error.

    Recipes (``predict_aiconfigurator.RECIPES``) are ways to describe a deployment.
    """
    from aisimulate.config.cli import CorePredictionConfig
    from aisimulate.predict import PredictionExecutionError, run_prediction
    from aisimulate.runner import EngineReplayRunnerFactory

    why, factory = "no recipe", EngineReplayRunnerFactory()
    with TemporaryDirectory() as folder:
        requests = Path(folder, "requests.jsonl")
        requests.write_text(trace(measured_deployment(row).workload))
        for recipe in RECIPES:
            stated = config(row, recipe, requests)
            if stated is None:
                continue
            checked = CorePredictionConfig.model_validate(stated)
            try:
                found = run_prediction(checked, stack="engine", runner_factory=factory).summary
            except PredictionExecutionError as error:  # no kernel tables, or not enough memory
                why = kind_of_failure(error)
                continue
            ttft_s, tpot_s = (found[f"mean_{name}_ms"] * MILLISECOND for name in ("ttft", "tpot"))
            return row["row_id"], ttft_s, tpot_s, recipe, ""
    return row["row_id"], float("nan"), float("nan"), "", why


def main(folder: Path) -> None:
    """Predict every vLLM observation on all cores, and write the predictions to ``folder``."""
    rows = read_silicon()[0]
    parts = [part for _, part in rows.groupby(["gpu", "model", "precision"])]
    with ProcessPoolExecutor() as pool:
        answers = chain.from_iterable(pool.map(predict, parts))
    found = pd.DataFrame(answers, columns=list(COLUMNS)).set_index("row_id")
    found = found.loc[rows["row_id"]].reset_index()
    write_frame(found, folder / PEERS[PACKAGE], float_format="%.6g")
    print(found["recipe"].replace("", "none").value_counts().to_string())


if __name__ == "__main__":
    typer.run(main)

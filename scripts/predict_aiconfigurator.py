"""Predict every scored observation of ``silicon_sample.csv`` with AIConfigurator 0.12.

    python scripts/predict_aiconfigurator.py data/peers

The script needs the extra ``peers`` of the package. ``pinn.training.data.released`` reads the
result.
"""

import importlib.metadata
import importlib.util
import logging
import re
from functools import cache
from pathlib import Path

import pandas as pd
import typer

from pinn.common.tables import write_frame
from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.training.data.engine_deployments import read_engines, read_other_campaign
from pinn.training.data.released import PEERS
from pinn.training.data.silicon import read_silicon
from pinn.units import MILLISECOND

PACKAGE, VERSION = "aiconfigurator", "0.12.0"
COLUMNS = ("row_id", "ttft_s", "tpot_s", "recipe", "reason")

#: Ways (recipes) to describe a deployment to AIConfigurator, tried in this order until one yields a
#: prediction.
RECIPES = ("adapter", "fp8_gemm", "checkpoint")

_MODELS = {
    "meta-llama/Llama-3.3-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "openai/gpt-oss-120b": "openai/gpt-oss-120b",
    "MiniMaxAI/MiniMax-M2.5": "MiniMaxAI/MiniMax-M2.5",
    "moonshotai/Kimi-K2.5": "moonshotai/Kimi-K2.5",
    "deepseek-ai/DeepSeek-R1": "deepseek-ai/DeepSeek-R1",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "Qwen/Qwen3-32B": "Qwen/Qwen3-32B",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen/Qwen3-235B-A22B-FP8",
}
#: Checkpoint whose config states the number format, by model and number format. For all other
#: pairs, an argument of the estimator states the format.
_CHECKPOINTS = {
    ("openai/gpt-oss-120b", "mxfp4"): "openai/gpt-oss-120b",
    ("openai/gpt-oss-120b", "mxfp4_mxfp8"): "openai/gpt-oss-120b",
    ("MiniMaxAI/MiniMax-M2.5", "fp8_block"): "MiniMaxAI/MiniMax-M2.5",
    ("MiniMaxAI/MiniMax-M2.5", "nvfp4"): "nvidia/MiniMax-M2.5-NVFP4",
    ("moonshotai/Kimi-K2.5", "int4"): "moonshotai/Kimi-K2.5",
    ("moonshotai/Kimi-K2.5", "nvfp4"): "nvidia/Kimi-K2.5-NVFP4",
    ("deepseek-ai/DeepSeek-R1", "fp8_block"): "deepseek-ai/DeepSeek-R1",
    ("deepseek-ai/DeepSeek-R1", "nvfp4"): "nvidia/DeepSeek-V3.1-NVFP4",
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8_block"): "Qwen/Qwen3-235B-A22B-FP8",
}
_ADAPTER_FORMATS = {
    "fp8": "fp8", "fp8_static": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "int4": "int4_wo",
}  # fmt: skip


def predict(observations: pd.DataFrame) -> pd.DataFrame:
    """Return the predicted mean TTFT and TPOT of each observation, in order, with ``COLUMNS``.

    Raises:
        PinnError: If the package is missing or has another version.
    """
    need_peer(PACKAGE, VERSION)
    for name in (PACKAGE, f"{PACKAGE}_core"):
        logging.getLogger(name).setLevel(logging.ERROR)
    answers = [_predict_row(row) for _, row in observations.iterrows()]
    return pd.DataFrame(answers, columns=list(COLUMNS))


def is_installed(package: str = PACKAGE, version: str = VERSION) -> bool:
    """Return whether a package is installed in the version that the stored predictions used."""
    is_there = importlib.util.find_spec(package) is not None
    return is_there and importlib.metadata.version(package) == version


def need_peer(package: str, version: str) -> None:
    """Check that the package of another estimator is installed.

    Raises:
        PinnError: If the package is missing or has another version.
    """
    if not is_installed(package, version):
        named = f"{package}=={version}"
        raise PinnError(f"the package {named} is not installed: run 'pip install --pre {named}'")


def request(row: pd.Series, recipe: str) -> dict[str, object] | None:
    """Return the arguments of the package's ``cli_estimate`` for an observation.

    Args:
        row: Observation to predict.
        recipe: One of :data:`RECIPES`.

    Returns:
        Arguments; None if an earlier recipe gives the same arguments for this row.

    Raises:
        PinnError: If the model or the recipe is unknown.
    """
    if recipe not in RECIPES:
        raise PinnError(f"the recipe {recipe!r} is unknown: use one of {', '.join(RECIPES)}")
    model, scheme = row["model"], row["precision"]
    if model not in _MODELS:
        raise PinnError(f"AIConfigurator has no model {model!r}: use one of {', '.join(_MODELS)}")
    is_dense = load_model(model).moe is None
    tp, dp = int(row["tensor_parallel_size"]), int(row["data_parallel_size"])
    arguments: dict[str, object] = {
        "model_path": _MODELS[model],
        "system_name": row["gpu"],
        "backend_name": row["engine"],
        "isl": int(row["prompt_tokens"]),
        "osl": int(row["output_tokens"]),
        "batch_size": max(int(row["concurrency"]) // dp, 1),
        "tp_size": tp,
    }
    if dp > 1:
        arguments["attention_dp_size"] = dp
    if row["kv_cache_dtype"] not in ("", "auto"):
        arguments["kvcache_quant_mode"] = row["kv_cache_dtype"].removesuffix("_e4m3")
    if not is_dense:
        whole = tp * dp if row["enable_expert_parallel"] else 1
        arguments |= {"moe_tp_size": tp * dp // whole, "moe_ep_size": whole}
    if recipe == "adapter":
        if scheme in _ADAPTER_FORMATS:
            parts = ("gemm",) if is_dense else ("gemm", "moe")
            arguments |= {f"{part}_quant_mode": _ADAPTER_FORMATS[scheme] for part in parts}
        return arguments
    checkpoint = _CHECKPOINTS.get((model, scheme))
    if checkpoint is None or (recipe == "fp8_gemm" and scheme != "fp8_block"):
        return None
    own = {"gemm_quant_mode": "fp8"} if recipe == "fp8_gemm" else {}
    return arguments | own | {"model_path": checkpoint}


def _predict_row(row: pd.Series) -> tuple[str, float, float, str, str]:
    """Predict an observation by the first recipe that succeeds, or return the last recipe's error.

    Recipes (:data:`RECIPES`) are ways to describe a deployment to AIConfigurator.
    """
    from aiconfigurator.cli.api import cli_estimate

    reason = "no recipe"
    for recipe in RECIPES:
        arguments = request(row, recipe)
        if arguments is None:
            continue
        version = _database_version(arguments["system_name"], arguments["backend_name"])
        try:
            answer = cli_estimate(**arguments, backend_version=version)
        except Exception as error:  # many types, for missing data or memory
            reason = kind_of_failure(error)
            continue
        ttft_s, tpot_s = answer.ttft * MILLISECOND, answer.tpot * MILLISECOND
        return row["row_id"], ttft_s, tpot_s, recipe, ""
    return row["row_id"], float("nan"), float("nan"), "", reason


def kind_of_failure(error: Exception) -> str:
    """Return an error's type and message, without local paths and details of the row."""
    text = re.sub(r"\s+", " ", str(error))
    if text.startswith("OOM"):
        return "does not fit in GPU memory by the peer's count"
    return re.split(r" at /|[{(:] ?(?=\w+[:=(])", text)[0].strip(" :")[:100]


@cache
def _database_version(system: str, engine: str) -> str:
    """Return the engine version of the newest kernel tables of AIConfigurator for a GPU.

    Results are cached, since finding the version is slow.
    """
    from aiconfigurator.sdk.perf_database import get_latest_database_version

    version = get_latest_database_version(system=system, backend=engine)
    if version is None:
        raise PinnError(
            f"{PACKAGE} {VERSION} has no tables of {engine} on {system}: use another GPU or engine"
        )
    return str(version)


def main(folder: Path) -> None:
    """Predict every scored observation, and write the predictions to ``folder`` as CSV."""
    readers = (read_silicon, read_engines, read_other_campaign)
    rows = predict(pd.concat([reader()[0] for reader in readers], ignore_index=True))
    write_frame(rows, folder / PEERS[PACKAGE], float_format="%.6g")
    print(rows["recipe"].replace("", "none").value_counts().to_string())


if __name__ == "__main__":
    typer.run(main)

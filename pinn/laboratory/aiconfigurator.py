"""The estimator AIConfigurator 0.12 on the observations of ``silicon_sample.csv``.

It composes a step from measured kernels, among them those of the very models it is asked about,
so on a model that pinn has never seen it has the easier task. It needs the extra ``peers``; the
predictions of the released observations are in ``data/peers`` and need nothing. Regenerate with

    python -m pinn.laboratory.aiconfigurator data/peers
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from pinn.common.files import data_folder
from pinn.common.tables import write_frame
from pinn.errors import PinnError
from pinn.training.data.engine_deployments import read_engines, read_other_campaign
from pinn.training.data.silicon import read_silicon
from pinn.units import MILLISECOND

PACKAGE = "aiconfigurator"
VERSION = "0.12.0"
COLUMNS = ("row_id", "ttft_s", "tpot_s", "recipe", "reason")

#: Ways to state a deployment, tried in this order until one has an answer.
#:
#: - ``adapter``: the formats that the package's own adapter takes for records of this benchmark.
#: - ``fp8_gemm``: the checkpoint's own formats, but its block-scaled fp8 GEMMs at the table of
#:   per-tensor ones; the block-scaled table holds launch times of some 0.2 ms per GEMM.
#: - ``checkpoint``: the checkpoint's own formats.
#:
#: Later ones are needed where the database lacks the kernels of the earlier ones.
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
#: Checkpoints whose config states the formats; the others are quantized by argument.
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
_DENSE = {
    "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B",
}  # fmt: skip


def predict(
    observations: pd.DataFrame,
    cached_in: Path | None = None,
    recipes: Sequence[str] = RECIPES,
) -> pd.DataFrame:
    """Predict the mean TTFT and TPOT of observations.

    Args:
        observations: Rows of :func:`pinn.training.data.table.read_observations`.
        cached_in: Folder of :func:`cache_path`; rows found there are not run again, and new ones
            are added.
        recipes: Ways to try, in this order.

    Returns:
        One row per observation, in their order: ``row_id``, ``ttft_s`` and ``tpot_s`` (NaN
        without a prediction), the ``recipe`` that answered, and the ``reason`` where none did.

    Raises:
        PinnError: If a row must be run and the package is missing or of another version.
    """
    known = pd.DataFrame(columns=list(COLUMNS))
    if cached_in is not None and cache_path(cached_in).is_file():
        known = read_predictions(cached_in)
    todo = observations[~observations["row_id"].isin(known["row_id"])]
    if not todo.empty:
        _require_package()
        with _quiet():
            answers = [_predict_row(row, recipes) for _, row in todo.iterrows()]
        new = pd.DataFrame(answers, columns=list(COLUMNS))
        known = new if known.empty else pd.concat([known, new], ignore_index=True)
        if cached_in is not None:
            write_predictions(known, cached_in)
    return known.set_index("row_id").loc[observations["row_id"]].reset_index()


def cache_path(folder: Path) -> Path:
    """File of cached predictions: the package's version is in its name, row ids are the keys."""
    return folder / f"{PACKAGE}_{VERSION}.csv"


def read_predictions(folder: Path) -> pd.DataFrame:
    """Read cached predictions.

    Raises:
        PinnError: If the file is missing or lacks a column.
    """
    path = cache_path(folder)
    if not path.is_file():
        raise PinnError(f"no peer predictions at {path}: run 'python -m {__name__} {folder}'")
    rows = pd.read_csv(path, dtype={"recipe": "str", "reason": "str"}, keep_default_na=False)
    missing = [name for name in COLUMNS if name not in rows.columns]
    if missing:
        raise PinnError(f"{path} lacks the column(s) {', '.join(missing)}: delete it and run anew")
    for name in ("ttft_s", "tpot_s"):
        rows[name] = pd.to_numeric(rows[name], errors="coerce")
    return rows


def released_predictions() -> pd.DataFrame:
    """The predictions that come with the project, for every row of ``silicon_sample.csv`` scored.

    Raises:
        PinnError: If the data folder is missing.
    """
    return read_predictions(data_folder("peers"))


def write_predictions(rows: pd.DataFrame, folder: Path) -> None:
    """Write predictions as CSV with six significant digits."""
    folder.mkdir(parents=True, exist_ok=True)
    write_frame(rows, cache_path(folder), float_format="%.6g")


def is_installed() -> bool:
    """Whether the package is there in the version that the predictions belong to."""
    if importlib.util.find_spec(PACKAGE) is None:
        return False
    return importlib.metadata.version(PACKAGE) == VERSION


def request(row: pd.Series, recipe: str) -> dict[str, Any] | None:
    """Arguments of the package's ``cli_estimate`` for an observation.

    Args:
        row: An observation.
        recipe: One of :data:`RECIPES`.

    Returns:
        The arguments; None where the recipe says nothing else than an earlier one.

    Raises:
        PinnError: If the model, the precision or the recipe is unknown.
    """
    if recipe not in RECIPES:
        raise PinnError(f"unknown recipe {recipe!r}: known ones are {', '.join(RECIPES)}")
    model, scheme = row["model"], row["precision"]
    if model not in _MODELS:
        raise PinnError(f"no peer model for {model!r}: known ones are {', '.join(_MODELS)}")
    dense = model in _DENSE
    arguments: dict[str, Any] = {
        "model_path": _MODELS[model],
        "system_name": row["gpu"],
        "backend_name": row["engine"],
        "isl": int(row["prompt_tokens"]),
        "osl": int(row["output_tokens"]),
        "batch_size": max(int(row["concurrency"]) // int(row["data_parallel_size"]), 1),
        "tp_size": int(row["tensor_parallel_size"]),
    }
    if row["data_parallel_size"] > 1:
        arguments["attention_dp_size"] = int(row["data_parallel_size"])
    if row["kv_cache_dtype"] not in ("", "auto"):
        arguments["kvcache_quant_mode"] = row["kv_cache_dtype"].removesuffix("_e4m3")
    if not dense:
        ranks = int(row["tensor_parallel_size"] * row["data_parallel_size"])
        whole = bool(row["enable_expert_parallel"])
        arguments |= {"moe_tp_size": 1 if whole else ranks, "moe_ep_size": ranks if whole else 1}

    checkpoint = _CHECKPOINTS.get((model, scheme))
    if recipe == "adapter":
        if scheme in _ADAPTER_FORMATS:
            formats = _ADAPTER_FORMATS[scheme]
            arguments["gemm_quant_mode"] = formats
            if not dense:
                arguments["moe_quant_mode"] = formats
        return arguments
    if checkpoint is None or (recipe == "fp8_gemm" and scheme != "fp8_block"):
        return None
    arguments["model_path"] = checkpoint
    if recipe == "fp8_gemm":
        arguments["gemm_quant_mode"] = "fp8"
    return arguments


def _predict_row(row: pd.Series, recipes: Sequence[str]) -> tuple[str, float, float, str, str]:
    """The first answer of a recipe, or the last one's reason for giving none."""
    from aiconfigurator.cli.api import cli_estimate

    reason = "no recipe"
    for recipe in recipes:
        arguments = request(row, recipe)
        if arguments is None:
            continue
        version = _database_version(arguments["system_name"], arguments["backend_name"])
        try:
            answer = cli_estimate(**arguments, backend_version=version)
        except Exception as error:  # the package raises many kinds for a lack of data or memory
            reason = _reason(error)
            continue
        ttft_s, tpot_s = answer.ttft * MILLISECOND, answer.tpot * MILLISECOND
        return row["row_id"], ttft_s, tpot_s, recipe, ""
    return row["row_id"], float("nan"), float("nan"), "", reason


def _reason(error: Exception) -> str:
    """The error's kind of failure, without the paths of this machine and the details of the row."""
    text = re.sub(r"\s+", " ", str(error))
    if text.startswith("OOM"):
        return "does not fit in GPU memory by the peer's count"
    return re.split(r" at /|[{(:] ?(?=\w+[:=(])", text)[0].strip(" :")[:100]


@cache
def _database_version(system: str, engine: str) -> str:
    """Newest tables of an engine on a GPU; looking them up takes a second, so once."""
    from aiconfigurator.sdk.perf_database import get_latest_database_version

    version = get_latest_database_version(system=system, backend=engine)
    if version is None:
        raise PinnError(f"{PACKAGE} {VERSION} has no {engine} tables of {system}")
    return str(version)


@contextmanager
def _quiet() -> Iterator[None]:
    """Mute the package's log below errors."""
    logger = logging.getLogger(PACKAGE)
    core = logging.getLogger(f"{PACKAGE}_core")
    levels = logger.level, core.level
    logger.setLevel(logging.ERROR)
    core.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(levels[0])
        core.setLevel(levels[1])


def _require_package() -> None:
    if not is_installed():
        raise PinnError(
            f"the peer estimator {PACKAGE}=={VERSION} is not installed: "
            f"run 'pip install {PACKAGE}=={VERSION}'"
        )


def main(arguments: Sequence[str]) -> None:
    """Predict every row of ``silicon_sample.csv`` that is scored anew and write the file."""
    if len(arguments) != 1:
        raise PinnError(f"usage: python -m {__name__} FOLDER")
    readers = (read_silicon, read_engines, read_other_campaign)
    rows = pd.concat([reader()[0] for reader in readers], ignore_index=True)
    predictions = predict(rows)
    write_predictions(predictions, Path(arguments[0]))
    print(predictions["recipe"].replace("", "none").value_counts().to_string())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except PinnError as problem:
        sys.exit(str(problem))

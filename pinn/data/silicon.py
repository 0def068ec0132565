"""Reads the measured deployments that the package ``aiconfigurator-core`` ships.

``silicon_sample.csv`` holds closed-loop benchmark runs of public models on public GPUs. A row is
read as: the stated concurrency all the time, 10 x concurrency prompts all sent at the start,
prompt and output lengths uniform in [0.8, 1] x nominal, prefix cache off, mean TTFT and TPOT. So
the TTFT holds the burst at the start.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pandas as pd

from pinn.data.launch_facts import facts_by_confidence, served_scheme, with_launch_facts
from pinn.data.silicon_filters import UNKNOWN_VERSION, apply_filters
from pinn.data.table import COLUMNS
from pinn.errors import PinnError
from pinn.specs.files.csv_cells import read_frame
from pinn.specs.files.read_report import ReadReport, file_sha256
from pinn.units import MILLISECOND

PACKAGE = "aiconfigurator-core"

#: Lengths are drawn uniformly from this share of the nominal ones (the benchmark's range ratio).
LENGTH_RANGE = (0.8, 1.0)
#: Prompts of one benchmark run per unit of concurrency.
PROMPTS_PER_CONCURRENCY = 10

#: Name in the file -> name in the model catalogue. The benchmark serves Llama 3.3, which has the
#: shapes of 3.1.
MODELS = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Llama-3.3-70B-Instruct",
    "openai/gpt-oss-120b": "openai/gpt-oss-120b",
    "MiniMaxAI/MiniMax-M2.5": "MiniMaxAI/MiniMax-M2.5",
    "moonshotai/Kimi-K2.5": "moonshotai/Kimi-K2.5",
    "deepseek-ai/DeepSeek-R1": "deepseek-ai/DeepSeek-R1",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-32B": "Qwen/Qwen3-32B",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3.5-397B-A17B": "Qwen/Qwen3.5-397B-A17B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}

#: (model, label) -> scheme, where the label does not say what the checkpoint holds: gpt-oss is
#: MXFP4 whatever the label; the own checkpoints of MiniMax and others are block-scaled fp8. No
#: file tells whether Llama's fp8 had static scales: it keeps its label (LOG.md has both readings).
#: Which scheme covers (Kimi's int4: the routed experts only) is ``with_precision``'s business.
CHECKPOINT_SCHEMES = {
    ("openai/gpt-oss-120b", "fp4"): "mxfp4",
    ("openai/gpt-oss-120b", "fp8"): "mxfp4",
    ("openai/gpt-oss-120b", "bf16"): "mxfp4",
    ("MiniMaxAI/MiniMax-M2.5", "fp8"): "fp8_block",
    ("deepseek-ai/DeepSeek-R1", "fp8"): "fp8_block",
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8"): "fp8_block",
    ("Qwen/Qwen3.5-397B-A17B", "fp8"): "fp8_block",
    ("zhipuai/GLM-5", "fp8"): "fp8_block",
}
LABEL_SCHEMES = {"fp4": "nvfp4", "fp8": "fp8", "int4": "int4", "bf16": "bf16"}

_RAW_NAMES = {
    "id": "row_id",
    "silicon_data_source": "source",
    "backend": "engine",
    "backend_version": "engine_version",
    "model_path": "model",
    "system": "gpu",
    "precision": "precision",
    "isl": "prompt_tokens",
    "osl": "output_tokens",
    "tp_size": "tensor_parallel_size",
    "attention_dp_size": "stored_attention_dp_size",
    "moe_tp_size": "stored_moe_tp_size",
    "moe_ep_size": "stored_moe_ep_size",
    "silicon_ttft_ms": "ttft_s",
    "silicon_tpot_ms": "tpot_s",
}
#: Columns of an observation.
CANONICAL = tuple(column.name for column in COLUMNS)


def package_folder(package: str = PACKAGE) -> Path:
    """Folder of an installed package, found without importing it.

    Raises:
        PinnError: If the package is not installed.
    """
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise PinnError(
            f"the package {package} is not installed: run 'pip install {package}==0.12.0'"
        )
    return Path(spec.submodule_search_locations[0])


def read_silicon(path: Path | None = None) -> tuple[pd.DataFrame, ReadReport]:
    """Read the clean aggregated vLLM deployments.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's.

    Returns:
        One row per deployment and load, in SI units, with the columns of
        :data:`pinn.data.table.COLUMNS`; and the counts of what was read and refused.

    Raises:
        PinnError: If the package or the file is missing, lacks a column, or holds a model or a
            precision that this reader does not know.
    """
    version = ""
    if path is None:
        path = package_folder() / "systems" / "silicon_sample.csv"
        version = f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"
    raw = read_csv(path)
    chosen = raw[(raw["backend"] == "vllm") & (raw["mode"] == "agg")]
    clean, dropped = apply_filters(with_launch_facts(decode(chosen), MODELS))
    rows = canonical(clean)
    report = ReadReport(
        source=path.name,
        version=version,
        sha256=file_sha256(path),
        read=len(raw),
        accepted=len(rows),
        refused={"not an aggregated vLLM deployment": len(raw) - len(chosen), **dropped},
        noted=facts_by_confidence(clean),
    )
    return rows, report


def decode(raw: pd.DataFrame) -> pd.DataFrame:
    """Give raw rows their real meaning; names of models and precisions stay the file's.

    ``tp_size`` is the tensor-parallel size. Rows stored with ``attention_dp_size`` N > 1 are an
    artefact of the export: they ran TP = EP = N with one attention replica (twins stored as
    TP = EP = N agree with them within 1 %), so their batch is the whole concurrency, which is
    read from the text of ``silicon_data_source``. Labels of expert parallelism are not what every
    script passed, and some of these rows did run data-parallel: :mod:`pinn.data.launch_facts`.

    Args:
        raw: Rows of the file, with its column names.

    Returns:
        Rows with the columns that the filters read, latencies in seconds.
    """
    rows = raw[list(_RAW_NAMES)].rename(columns=_RAW_NAMES)
    rows["concurrency"] = (
        rows["source"].str.extract(r"silicon_concurrency=(\d+)", expand=False).astype(float)
    )
    rows["date"] = (
        rows["source"].str.extract(r"measured=(\d{4}-\d\d-\d\d)", expand=False).fillna("")
    )
    rows["engine_version"] = rows["engine_version"].fillna(UNKNOWN_VERSION)
    rows["precision"] = rows["precision"].fillna("bf16")
    rows["enable_expert_parallel"] = rows["stored_moe_ep_size"] > 1
    rows["data_parallel_size"] = 1
    rows["ttft_s"] *= MILLISECOND
    rows["tpot_s"] *= MILLISECOND
    return rows


def canonical(rows: pd.DataFrame) -> pd.DataFrame:
    """Decoded and filtered rows, as they ran, under the catalogue's names.

    Raises:
        PinnError: As :func:`named`.
    """
    rows = named(rows)
    rows["precision"] = [served_scheme(row["precision"], row) for row in rows.to_dict("records")]
    rows["series"] = [series_key(row) for _, row in rows.iterrows()]
    # Where a script's runs differ or are not known, the least: what all others sent.
    sent = rows["prompts_per_client"].str.extract(r"(\d+)", expand=False)
    rows["prompts_per_client"] = sent.fillna(PROMPTS_PER_CONCURRENCY).astype("int64")
    rows["warmups_per_client"] = pd.to_numeric(rows["warmups_per_client"]).fillna(0).astype("int64")
    return rows[list(CANONICAL)].reset_index(drop=True)


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Decoded rows with models and precisions as catalogues have them, whole numbers as integers.

    Raises:
        PinnError: If a model or a precision is unknown or a row states no concurrency.
    """
    if rows["concurrency"].isna().any():
        first = rows.loc[rows["concurrency"].isna(), "row_id"].iloc[0]
        raise PinnError(f"row {first}: its source states no silicon_concurrency=N")
    labels = zip(rows["model"], rows["precision"], strict=True)
    rows = rows.assign(
        model=rows["model"].map(catalog_name),
        precision=[precision_scheme(model, label) for model, label in labels],
    )
    integers = ["tensor_parallel_size", "data_parallel_size", "concurrency"]
    return rows.astype(dict.fromkeys([*integers, "prompt_tokens", "output_tokens"], "int64"))


def series_key(row: pd.Series) -> str:
    """Text that is equal for the rows of one curve of latency over concurrency."""
    tp, dp = row["tensor_parallel_size"], row["data_parallel_size"]
    layout = f"tp{tp}|ep{tp * dp if row['enable_expert_parallel'] else 1}"
    lengths = f"{row['prompt_tokens']}x{row['output_tokens']}"
    parts = [row["model"], row["gpu"], row["precision"], lengths, layout]
    if dp > 1:
        parts.append(f"dp{dp}")
    return "|".join(parts if row["engine"] == "vllm" else [row["engine"], *parts])


def catalog_name(model: str) -> str:
    """Name in the model catalogue of a model of the file.

    Raises:
        PinnError: If the file's model is unknown.
    """
    if model not in MODELS:
        raise PinnError(
            f"silicon_sample.csv has the model {model!r}, known are {', '.join(MODELS)}: "
            "add it to MODELS in pinn/data/silicon.py"
        )
    return MODELS[model]


def precision_scheme(model: str, label: str) -> str:
    """Quantization scheme of the checkpoint that ran.

    Args:
        model: Name in the file.
        label: The file's ``precision``; ``bf16`` where it has none.

    Raises:
        PinnError: If the label is unknown for that model.

    >>> precision_scheme("openai/gpt-oss-120b", "fp4")
    'mxfp4'
    """
    scheme = CHECKPOINT_SCHEMES.get((model, label)) or LABEL_SCHEMES.get(label)
    if scheme is None:
        raise PinnError(
            f"silicon_sample.csv has the precision {label!r} for {model}, known labels are "
            f"{', '.join(LABEL_SCHEMES)}"
        )
    return scheme


def read_csv(path: Path) -> pd.DataFrame:
    """The file as it is, checked for the columns that are read."""
    if not path.is_file():
        raise PinnError(f"no file {path}: reinstall {PACKAGE}==0.12.0 or give the right path")
    texts = {"backend_version": "str", "precision": "str"}
    raw = read_frame(path, f"give the file of {PACKAGE} 0.12.0", dtype=texts)
    missing = [name for name in ("mode", *_RAW_NAMES) if name not in raw.columns]
    if missing:
        raise PinnError(f"{path} lacks the columns {', '.join(missing)}: expected {PACKAGE} 0.12.0")
    return raw

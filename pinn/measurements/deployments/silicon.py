"""Reader of the measured deployments in the package ``aiconfigurator-core``."""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from pinn.common.files import ReadReport, file_sha256, read_rows
from pinn.common.tables import read_frame
from pinn.errors import PinnError
from pinn.kernels.tables.table import systems_folder
from pinn.measurements.benchmarks.inferencex import LABEL_SCHEMES, PROMPTS_PER_CONCURRENCY
from pinn.measurements.deployments import launch_facts, observations
from pinn.specs.serving import SGLANG, TRTLLM, VLLM
from pinn.units import MILLISECOND

# ``silicon_sample.csv`` has closed-loop benchmark runs of public models on public GPUs. A row is
# interpreted as a run of 10 x concurrency prompts, with the stated concurrency from start to end,
# prompt and output lengths uniform in [0.8, 1] x nominal, and prefix cache off. TTFT and TPOT are
# means, so TTFT includes the burst at the start.

_LENGTHS = ("prompt_tokens", "output_tokens")

PACKAGE = "aiconfigurator-core"
#: Names of the engines for users, by name in ``silicon_sample.csv``.
_ENGINES = {VLLM: "vLLM", SGLANG: "SGLang", TRTLLM: "TensorRT-LLM"}


#: Engine version of rows that state none.
UNKNOWN_VERSION = "unknown"


#: Filter: function that takes decoded rows and returns a mask of the rows to drop.
Rule = Callable[[pd.DataFrame], pd.Series]
#: Filters in order of application, by reason for dropping rows in the read report.
Filters = Mapping[str, Rule]

#: Model in the file -> facts about its checkpoint. ``served`` is the model's name in the model
#: catalog (the benchmark serves Llama 3.3, with the shapes of 3.1). ``<label>_scheme`` is the
#: quantization scheme of rows with this precision label, if the scheme differs from the label:
#: gpt-oss is MXFP4 under every label, MiniMax's and other vendors' own checkpoints are block-scaled
#: fp8. Whether Llama's fp8 had static scales is unknown, so its label is used (LOG.md compares both
#: assumptions). ``with_precision`` determines which matrices a scheme quantizes (Kimi's int4: only
#: routed experts).
_MODEL_FACTS = {
    row["model"]: row for row in read_rows(Path(__file__).with_name("silicon_models.csv"))
}
#: Model name in ``silicon_sample.csv`` -> name in the model catalog.
MODELS = {name: facts["served"] for name, facts in _MODEL_FACTS.items()}

_RAW_NAMES = {
    "id": "row_id", "silicon_data_source": "source", "backend": "engine",
    "backend_version": "engine_version", "model_path": "model", "system": "gpu",
    "precision": "precision", "isl": "prompt_tokens", "osl": "output_tokens",
    "tp_size": "tensor_parallel_size", "attention_dp_size": "stored_attention_dp_size",
    "moe_tp_size": "stored_moe_tp_size", "moe_ep_size": "stored_moe_ep_size",
    "silicon_ttft_ms": "ttft_s", "silicon_tpot_ms": "tpot_s",
}  # fmt: skip
#: Names of the columns of a table of observations.
CANONICAL = tuple(observations.COLUMNS)


def read_sample(
    path: Path | None,
    engines: Sequence[str],
    filters: Filters,
    decoded: Callable[[pd.DataFrame], pd.DataFrame],
    finished: Callable[[pd.DataFrame], pd.DataFrame],
) -> tuple[pd.DataFrame, ReadReport]:
    """Read the measured deployments of some engines, excluding disaggregated prefill/decode.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's file.
        engines: Names of engines in the file.
        filters: Filters that drop rows, in order of application.
        decoded: Function that decodes the file's rows, such as :func:`decode`.
        finished: Function that converts the remaining rows to observations.

    Returns:
        The observations, and the counts of rows read and rejected.

    Raises:
        PinnError: If the package or the file is missing, lacks a column, or has a model or a
            precision that is unknown to this reader.
    """
    path, version = sample_file(path)
    raw = read_csv(path)
    chosen = raw[raw["backend"].isin(engines) & (raw["mode"] == "agg")]
    clean, dropped = apply_filters(launch_facts.with_launch_facts(decoded(chosen), MODELS), filters)
    rows = finished(clean)
    other = f"not an aggregated {' or '.join(_ENGINES[name] for name in engines)} deployment"
    refused = {other: len(raw) - len(chosen), **dropped}
    report = ReadReport(
        path.name, version, file_sha256(path), len(raw), len(rows), refused,
        launch_facts.facts_by_confidence(clean),
    )  # fmt: skip
    return rows, report


def sample_file(path: Path | None) -> tuple[Path, str]:
    """Return the path of ``silicon_sample.csv``, and the name and release of its package."""
    if path is not None:
        return path, ""
    version = f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"
    return systems_folder() / "silicon_sample.csv", version


def decode(raw: pd.DataFrame) -> pd.DataFrame:
    """Decode the columns of the file's rows; keep the file's model and precision names.

    ``tp_size`` is the tensor-parallel size. A stored ``attention_dp_size`` N > 1 is an artefact of
    the export: these rows ran with tensor and expert parallelism over N GPUs and one attention
    replica. Their latencies agree within 1 % with those of rows that are stored with these sizes.
    Their batch size is therefore the full concurrency, which is read from the text of
    ``silicon_data_source``. Some rows were in fact data-parallel, and some labels of expert
    parallelism differ from the launch scripts. For these rows see
    :mod:`pinn.measurements.deployments.launch_facts`.

    Args:
        raw: Rows of the file with its column names.

    Returns:
        Rows with the columns that the filters use, latencies in seconds.
    """
    rows = raw[list(_RAW_NAMES)].rename(columns=_RAW_NAMES)
    source = rows["source"].str
    rows["concurrency"] = source.extract(r"silicon_concurrency=(\d+)", expand=False).astype(float)
    rows["date"] = source.extract(r"measured=(\d{4}-\d\d-\d\d)", expand=False).fillna("")
    rows = rows.fillna({"engine_version": UNKNOWN_VERSION, "precision": "bf16"})
    rows["enable_expert_parallel"] = rows["stored_moe_ep_size"] > 1
    rows["data_parallel_size"] = 1
    rows["ttft_s"] *= MILLISECOND
    rows["tpot_s"] *= MILLISECOND
    return rows


def decode_engines(raw: pd.DataFrame) -> pd.DataFrame:
    """Decode the file's rows, with their real parallel sizes and one name for DeepSeek-R1.

    The dump of 2026-04-06 and the database dump store squares for rows with expert parallelism
    over N GPUs. In these rows, the MoE's tensor-parallel and expert-parallel size are both N. With
    tensor parallelism over N GPUs, ``tp_size`` is N x N; with attention data parallelism over N
    GPUs, ``tp_size`` is 1 and ``attention_dp_size`` is N x N. Other dumps store N itself. The
    database dump calls DeepSeek-R1 "V3" (same rows, same shapes).

    Args:
        raw: Rows of the file with its column names.

    Returns:
        Rows with the columns that the filters use, latencies in seconds.
    """
    rows = decode(raw)
    both = rows["stored_moe_tp_size"]
    product = rows["source"].str.contains("^db-dump|2026-04-06")
    product &= (both == rows["stored_moe_ep_size"]) & (both > 1)
    tp, dp = rows["tensor_parallel_size"], rows["stored_attention_dp_size"].fillna(1).clip(1)
    return rows.assign(
        model=rows["model"].replace("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1"),
        tensor_parallel_size=tp.where(~(product & (tp == both**2)), both),
        data_parallel_size=dp.where(~(product & (dp == both**2)), both),
    )


def canonical(rows: pd.DataFrame) -> pd.DataFrame:
    """Convert decoded rows to observations, with catalog names and served number formats.

    Raises:
        PinnError: If a model or a precision is unknown, or a row states no concurrency.
    """
    rows = named(rows)
    rows["precision"] = [
        launch_facts.served_scheme(row["precision"], row) for row in rows.to_dict("records")
    ]
    rows["series"] = [series_key(row) for _, row in rows.iterrows()]
    # If the number of prompts per client is unknown or differs between a script's runs, the minimum
    # is used, because every run sent at least that many.
    sent = rows["prompts_per_client"].str.extract(r"(\d+)", expand=False)
    rows["prompts_per_client"] = sent.fillna(PROMPTS_PER_CONCURRENCY).astype("int64")
    rows["warmups_per_client"] = pd.to_numeric(rows["warmups_per_client"]).fillna(0).astype("int64")
    return rows[list(CANONICAL)].reset_index(drop=True)


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Rename models and precisions of decoded rows as in the catalog; make counts integers.

    Raises:
        PinnError: If a model or a precision is unknown or a row states no concurrency.
    """
    if rows["concurrency"].isna().any():
        first = rows.loc[rows["concurrency"].isna(), "row_id"].iloc[0]
        raise PinnError(
            f"the source of row {first} has no silicon_concurrency=N: give the file of {PACKAGE}"
        )
    labels = zip(rows["model"], rows["precision"], strict=True)
    rows = rows.assign(
        model=rows["model"].map(catalog_name),
        precision=[precision_scheme(model, label) for model, label in labels],
    )
    integers = ("tensor_parallel_size", "data_parallel_size", "concurrency", *_LENGTHS)
    return rows.astype(dict.fromkeys(integers, "int64"))


def series_key(row: pd.Series) -> str:
    """Return a key shared by the rows of one latency-concurrency curve."""
    tp, dp = row["tensor_parallel_size"], row["data_parallel_size"]
    layout = f"tp{tp}|ep{tp * dp if row['enable_expert_parallel'] else 1}"
    lengths = f"{row['prompt_tokens']}x{row['output_tokens']}"
    parts = [row["model"], row["gpu"], row["precision"], lengths, layout]
    if dp > 1:
        parts.append(f"dp{dp}")
    return "|".join(parts if row["engine"] == "vllm" else [row["engine"], *parts])


def catalog_name(model: str) -> str:
    """Return the model catalog's name of a model in ``silicon_sample.csv``.

    Raises:
        PinnError: If the file's model is unknown.
    """
    if model not in MODELS:
        raise PinnError(
            f"silicon_sample.csv has the model {model!r}, expected one of {', '.join(MODELS)}: "
            "add the model to pinn/measurements/deployments/silicon_models.csv"
        )
    return MODELS[model]


def precision_scheme(model: str, label: str) -> str:
    """Return the quantization scheme of the checkpoint that a row of the file measured.

    Args:
        model: Name of the model in ``silicon_sample.csv``.
        label: Column ``precision`` of the row; ``bf16`` if it is empty.

    Raises:
        PinnError: If the label is unknown for that model.

    >>> precision_scheme("openai/gpt-oss-120b", "fp4")
    'mxfp4'
    """
    facts = _MODEL_FACTS.get(model, {})
    scheme = facts.get(f"{label}_scheme") or LABEL_SCHEMES.get(label)
    if scheme is None:
        raise PinnError(
            f"silicon_sample.csv has the precision {label!r} for {model}: use one of "
            f"{', '.join(LABEL_SCHEMES)}"
        )
    return scheme


def read_csv(path: Path) -> pd.DataFrame:
    """Read ``silicon_sample.csv``, and check that it has all required columns."""
    texts = {"backend_version": "str", "precision": "str"}
    raw = read_frame(
        path, f"reinstall {PACKAGE}==0.12.0, or give the path of its file", dtype=texts
    )
    missing = [name for name in ("mode", *_RAW_NAMES) if name not in raw.columns]
    if missing:
        remedy = (
            f"give the file of {PACKAGE} 0.12.0, or set data=own to train on your own rows "
            f"(docs/training.md)"
        )
        raise PinnError(f"{path} lacks the columns {', '.join(missing)}: {remedy}")
    return raw


def apply_filters(rows: pd.DataFrame, filters: Filters) -> tuple[pd.DataFrame, dict[str, int]]:
    """Drop the rows that any filter selects, and count them by filter.

    Args:
        rows: Decoded rows.
        filters: Filters, applied in their order.

    Returns:
        The remaining rows in order, and the number of dropped rows by reason, in order.
    """
    dropped: dict[str, int] = {}
    for reason, rule in filters.items():
        mask = rule(rows).astype(bool)
        dropped[reason] = int(mask.sum())
        rows = rows[~mask]
    return rows, dropped

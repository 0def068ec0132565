"""Measured deployments of the public benchmark, and which are left out."""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from pinn.common.files import ReadReport, file_sha256
from pinn.common.tables import read_frame
from pinn.errors import PinnError
from pinn.kernels.tables.table import systems_folder
from pinn.measurements.benchmarks.inferencex import LABEL_SCHEMES, PROMPTS_PER_CONCURRENCY
from pinn.specs.serving import SGLANG, TRTLLM, VLLM
from pinn.training.data import launch_facts, table
from pinn.units import MILLISECOND

# Which measured deployments are left out of training, one small rule each, in a fixed order.
#
# Every rule takes the decoded rows of :mod:`pinn.training.data.silicon` and returns a mask, true
# where a row is to be dropped. A rule sees only the rows that the rules before it left.

_LENGTHS = ("prompt_tokens", "output_tokens")
_POINT = ("model", "gpu", "precision", *_LENGTHS, "tensor_parallel_size")
#: Rows that differ only in these columns belong to one curve of latency over concurrency.
SERIES = (*_POINT, "data_parallel_size", "enable_expert_parallel")

#: Rows that differ in one of these flags are no runs of one deployment. Prefixes that are kept
#: change nothing here, as the benchmark's random prompts share none.
SETTINGS = tuple(
    name
    for name in launch_facts.SERVING_FLAGS
    if name not in (*launch_facts.LOAD_FLAGS, "enable_prefix_caching")
)

#: Stand-in for an engine version that the file does not name.
UNKNOWN_VERSION = "unknown"


#: A rule: a mask of rows, true where one is dropped.
Rule = Callable[[pd.DataFrame], pd.Series]
#: The reason that the read report gives -> the rule, in the order in which they are applied.
Filters = Mapping[str, Rule]


def from_other_campaign(rows: pd.DataFrame) -> pd.Series:
    """Files under ``/Users/harrli``: their load, client and settings are not documented.

    They hold other models, lengths and engines than the public benchmark and come from another
    tool, so the reading of concurrency and lengths that holds elsewhere is unproven for them.
    """
    return rows["source"].str.contains("harrli")


def saturated_gpt_oss_on_h100(rows: pd.DataFrame) -> pd.Series:
    """gpt-oss on H100 at concurrency 512: not a steady state at that load."""
    on_h100 = rows["model"].str.contains("gpt-oss") & (rows["gpu"] == "h100_sxm")
    return on_h100 & (rows["concurrency"] == 512)


def copy_across_dumps(rows: pd.DataFrame, key: Sequence[str] = _POINT) -> pd.Series:
    """Copies of one measurement in several dumps, which would weigh it twice.

    A copy has the same model, GPU, precision, lengths, tensor-parallel size and concurrency, and
    the same TPOT to 0.01 ms. The dated database dump is kept where there is one, as it names the
    configuration and the run; else the first row of the file.

    Args:
        rows: Decoded rows.
        key: Columns that are equal in copies, beside concurrency and TPOT.
    """
    preferred = with_rounded_tpot(rows).assign(dumped=rows["source"].str.startswith("db-dump"))
    preferred = preferred.sort_values("dumped", ascending=False, kind="stable")
    return preferred.duplicated([*key, "concurrency", "tpot_10us"]).reindex(rows.index)


def with_rounded_tpot(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with ``tpot_10us``: copies in several dumps agree in it."""
    return rows.assign(tpot_10us=(rows["tpot_s"] * 1e3).round(2))


def queueing(rows: pd.DataFrame) -> pd.Series:
    """TTFT above 3 s and above 8 % of output tokens x TPOT: requests waited for memory.

    The engine was then not running the stated number of requests at once.
    """
    generation_s = rows["output_tokens"] * rows["tpot_s"]
    return (rows["ttft_s"] > 3) & (rows["ttft_s"] > 0.08 * generation_s)


def slower_than_busier(rows: pd.DataFrame) -> pd.Series:
    """TPOT above 1.15 times that of a row with up to 4 times the load in the same series.

    A step with more requests does not run faster, so the row was disturbed. Compared are rows of
    the same series and flags and of the same date or engine version.
    """
    same = [*SERIES, *SETTINGS]
    columns = [*same, "concurrency", "tpot_s", "date", "engine_version"]
    left = rows[columns].assign(row=rows.index)
    pairs = left.merge(rows[columns], on=same, suffixes=("", "_busier"))
    load, version = pairs["concurrency"], pairs["engine_version"]
    busier = (pairs["concurrency_busier"] > load) & (pairs["concurrency_busier"] <= 4 * load)
    same_version = (version != UNKNOWN_VERSION) & (version == pairs["engine_version_busier"])
    same_build = (pairs["date"] == pairs["date_busier"]) | same_version
    slower = pairs["tpot_s"] > 1.15 * pairs["tpot_s_busier"]
    disturbed = pairs.loc[busier & same_build & slower, "row"]
    return pd.Series(rows.index.isin(disturbed), index=rows.index)


def slower_rerun(rows: pd.DataFrame) -> pd.Series:
    """The slower of two runs of one point, version and flags that differ by more than 15 %.

    Independent re-runs differ by 0.7 % in the median, so such a gap is a disturbed run.
    """
    point = [*SERIES, *SETTINGS, "concurrency", "engine_version"]
    fastest = rows.groupby(point)["tpot_s"].transform("min")
    return rows["tpot_s"] > 1.15 * fastest


def nightly_image(rows: pd.DataFrame) -> pd.Series:
    """Nightly images: an unreleased engine, not the one whose latency is to be predicted."""
    return rows["source"].str.contains("nightly")


FILTERS: Filters = {
    "file of another campaign (harrli)": from_other_campaign,
    "gpt-oss on H100 at concurrency 512": saturated_gpt_oss_on_h100,
    "copy of a measurement in another dump": copy_across_dumps,
    "saturated: TTFT above 3 s and 8 % of the generation time": queueing,
    "TPOT above 1.15 x that of a busier row": slower_than_busier,
    "slower of two re-runs that differ by more than 15 %": slower_rerun,
    "nightly image": nightly_image,
}


def apply_filters(
    rows: pd.DataFrame, filters: Filters = FILTERS
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Drop rows rule by rule.

    Args:
        rows: Decoded rows.
        filters: Rules, applied in their order.

    Returns:
        The rows that every rule left, in their order, and the rows dropped by reason, in order.
    """
    dropped: dict[str, int] = {}
    for reason, rule in filters.items():
        mask = rule(rows).astype(bool)
        dropped[reason] = int(mask.sum())
        rows = rows[~mask]
    return rows, dropped


# Reads the measured deployments that the package ``aiconfigurator-core`` ships.
#
# ``silicon_sample.csv`` holds closed-loop benchmark runs of public models on public GPUs. A row
# is read as: the stated concurrency all the time, 10 x concurrency prompts all sent at the
# start, prompt and output lengths uniform in [0.8, 1] x nominal, prefix cache off, mean TTFT and
# TPOT. So the TTFT holds the burst at the start.

PACKAGE = "aiconfigurator-core"
#: Engines by their names in the file.
_ENGINES = {VLLM: "vLLM", SGLANG: "SGLang", TRTLLM: "TensorRT-LLM"}


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

_RAW_NAMES = {
    "id": "row_id", "silicon_data_source": "source", "backend": "engine",
    "backend_version": "engine_version", "model_path": "model", "system": "gpu",
    "precision": "precision", "isl": "prompt_tokens", "osl": "output_tokens",
    "tp_size": "tensor_parallel_size", "attention_dp_size": "stored_attention_dp_size",
    "moe_tp_size": "stored_moe_tp_size", "moe_ep_size": "stored_moe_ep_size",
    "silicon_ttft_ms": "ttft_s", "silicon_tpot_ms": "tpot_s",
}  # fmt: skip
#: Columns of an observation.
CANONICAL = tuple(table.COLUMNS)


def read_silicon(path: Path | None = None) -> tuple[pd.DataFrame, ReadReport]:
    """Read the clean aggregated vLLM deployments.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's.

    Returns:
        One row per deployment and load, in SI units, with the columns of
        :data:`pinn.training.data.table.COLUMNS`; and the counts of what was read and refused.

    Raises:
        PinnError: If the package or the file is missing, lacks a column, or holds a model or a
            precision that this reader does not know.
    """
    return read_sample(path, (VLLM,), FILTERS, decode, canonical)


def read_sample(
    path: Path | None,
    engines: Sequence[str],
    filters: Filters,
    decoded: Callable[[pd.DataFrame], pd.DataFrame],
    finished: Callable[[pd.DataFrame], pd.DataFrame],
) -> tuple[pd.DataFrame, ReadReport]:
    """Read the aggregated deployments of engines.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's.
        engines: By their names in the file.
        filters: What is left out, in order.
        decoded: Gives raw rows their real meaning.
        finished: Makes observations of what the filters left.

    Returns:
        The observations, and the counts of what was read and refused.

    Raises:
        PinnError: As :func:`read_silicon`.
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
    """The file, by default the installed package's, and the package and release it is from."""
    if path is not None:
        return path, ""
    version = f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"
    return systems_folder() / "silicon_sample.csv", version


def decode(raw: pd.DataFrame) -> pd.DataFrame:
    """Give raw rows their real meaning; names of models and precisions stay the file's.

    ``tp_size`` is the tensor-parallel size. Rows stored with ``attention_dp_size`` N > 1 are an
    artefact of the export: they ran TP = EP = N with one attention replica (twins stored as
    TP = EP = N agree with them within 1 %), so their batch is the whole concurrency, which is
    read from the text of ``silicon_data_source``. Labels of expert parallelism are not what every
    script passed, and some of these rows did run data-parallel:
    :mod:`pinn.training.data.launch_facts`.

    Args:
        raw: Rows of the file, with its column names.

    Returns:
        Rows with the columns that the filters read, latencies in seconds.
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


def canonical(rows: pd.DataFrame) -> pd.DataFrame:
    """Decoded and filtered rows, as they ran, under the catalogue's names.

    Raises:
        PinnError: As :func:`named`.
    """
    rows = named(rows)
    rows["precision"] = [
        launch_facts.served_scheme(row["precision"], row) for row in rows.to_dict("records")
    ]
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
    integers = ("tensor_parallel_size", "data_parallel_size", "concurrency", *_LENGTHS)
    return rows.astype(dict.fromkeys(integers, "int64"))


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
            "add it to MODELS in pinn/training/data/silicon.py"
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
        remedy = f"give that of {PACKAGE} 0.12.0; for rows of your own: data=own, docs/training.md"
        raise PinnError(f"{path} lacks the columns {', '.join(missing)}: {remedy}")
    return raw

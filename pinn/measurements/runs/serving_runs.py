"""Reader of serving runs from CSV files, and of the files of their workloads."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.common.documents import CsvTable
from pinn.common.files import ReadReport, file_sha256
from pinn.common.tables import read_frame
from pinn.errors import PinnError
from pinn.simulator.workloads.load import load_workload
from pinn.units import MILLISECOND

# Reader of measured serving runs: latencies of one vLLM server under an open-loop load, for each
# load stage and for the whole run. The file is a user's CSV with one row per run and stage; the
# project itself contains no such file.


@dataclass(frozen=True)
class Stage:
    """Load stage with a constant mean request rate and exponential gaps between arrivals."""

    rate_per_s: float
    duration_s: float


@dataclass(frozen=True)
class Workload:
    """Load of a serving run: stages, and lengths of the requests that the load generator sent.

    Attributes:
        name: Name of the load in the file of serving runs.
        stages: Load stages, which were sent to one server in this order.
        prompt_tokens: Nominal prompt length in tokens; tokenizers add 2 to 5 %.
        output_tokens: Tokens that every request generates (the end token is ignored).
        shared_prefix_tokens: Tokens of the prefix that the prompts of a group share.
        groups: Number of groups of prompts.
        prompts_per_group: Number of prompts in a group. All prompts repeat, so nearly every prompt
            block is a prefix cache hit.
        file: File that lists the requests, whose mean lengths and rates are given by the other
            attributes; None if the other attributes define the load.
    """

    name: str
    stages: tuple[Stage, ...]
    prompt_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 100
    groups: int = 10
    prompts_per_group: int = 10
    file: Path | None = None


def _stages(*rates_per_s: float) -> tuple[Stage, ...]:
    """Return load stages of equal duration, 1,200 s in total, with the given request rates."""
    return tuple(Stage(rate, 1200.0 / len(rates_per_s)) for rate in rates_per_s)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("general", _stages(8, 20), 547, 248),
        Workload("general-lite", _stages(2.5, 6), 547, 248),
        Workload("codegen", _stages(5, 10), 566, 247),
        Workload("roleplay", _stages(6), 750, 251, shared_prefix_tokens=150),
        Workload("reasoning", _stages(4), 1034, 1448),
        Workload("reasoning-lite", _stages(1), 1034, 1448),
    )
}

#: Assumed engine settings of runs under built-in loads if the CSV file does not state them. Runs
#: under loads from files are assumed to have the engine's defaults.
MAX_MODEL_LEN = 4096
MAX_NUM_SEQS = 128
#: Assumed vLLM release of runs that state none: that of the first runs in this format. It does not
#: follow the default of ``engine_version``, so that old measurements keep their release.
ASSUMED_RELEASE = "0.15.1"

#: Maximum relative difference between the mean lengths stated in a row and those of its workload
#: file.
_FILE_TOLERANCE = 0.1

#: GPUs in the catalog, by name in a CSV file of serving runs.
GPUS = {"H100": "h100_sxm", "A100": "a100_sxm", "L40S": "l40s"}

_LATENCIES_MS = (
    "ttft_mean_ms", "ttft_p90_ms", "ttft_p99_ms", "itl_mean_ms", "itl_mean_reported_ms",
    "e2e_mean_ms", "e2e_p90_ms", "e2e_p99_ms",
)  # fmt: skip
_KEPT = (
    "run", "stage", "model", "gpu", "tensor_parallel_size", "precision", "max_num_batched_tokens",
    "workload", "rate_per_s", "prompt_tokens", "output_tokens",
)  # fmt: skip
_TEXTS = ("run", "stage", "model", "gpu", "precision", "workload", "engine_version")
_NUMBERS = (
    *_LATENCIES_MS, "max_model_len", "max_num_seqs", *(name for name in _KEPT if name not in _TEXTS)
)  # fmt: skip


def workload(name: str, workloads: Mapping[str, Workload] = WORKLOADS) -> Workload:
    """Return the load with a given name.

    Raises:
        PinnError: If the name is unknown.

    >>> workload("codegen").stages[1]
    Stage(rate_per_s=10, duration_s=600.0)
    """
    if name not in workloads:
        raise PinnError(
            f"the workload {name!r} is unknown: use one of {', '.join(workloads)}, "
            "or the path of a workload file of 'pinn simulate --workload', "
            "relative to the folder of the CSV file"
        )
    return workloads[name]


def read_serving_runs(
    path: Path, model_configs: Path | None = None, workloads: Mapping[str, Workload] = WORKLOADS
) -> tuple[pd.DataFrame, ReadReport]:
    """Read a CSV file of measured serving runs.

    Args:
        path: CSV file to read.
        model_configs: Folder of ``<model>/config.json`` for models that are not in the catalog;
            ``<model>`` is the last part of the model's name in lower case.
        workloads: Loads of the load generator by name; by default the built-in loads.

    Returns:
        One row per run and stage (``0``, ``1`` or ``all``): ``row_id``, ``run``, ``stage``,
        ``model``, ``config`` (what to load: a config path, else the model's name), ``gpu``,
        ``tensor_parallel_size``, ``precision`` (the file's label in lower case),
        ``max_num_batched_tokens``, ``workload``, ``rate_per_s`` and ``duration_s`` (of the stage;
        of the whole run for ``all``), ``prompt_tokens``, ``output_tokens``, ``engine_version``,
        ``max_model_len`` and ``max_num_seqs`` (NaN: the engine's default); and in seconds the mean,
        p90 and p99 of ``ttft_*_s`` and ``e2e_*_s``, ``itl_mean_s`` and ``itl_mean_reported_s``.
        Predictions are compared with ``itl_mean_s``, since ``itl_mean_reported_s`` divides by the
        number of output tokens after re-tokenization, and is too high for some models. The second
        result contains the counts of rows read and rejected.

    Raises:
        PinnError: If the file is missing, lacks a column or has no usable row, or names an unknown
            GPU or workload.
    """
    if not path.is_file():
        raise PinnError(
            f"the table of serving runs {path} does not exist: give the path of the CSV file"
        )
    raw = _read_csv(path)
    missing = [name for name in (*_KEPT, *_LATENCIES_MS) if name not in raw.columns]
    if missing:
        raise PinnError(f"{path} lacks the column(s) {', '.join(missing)}: add the column(s)")

    rows, refused = _usable(raw, workloads)
    if rows.empty:
        raise PinnError(f"{path}: none of its {len(raw)} rows can be used ({refused})")
    rows = _canonical(rows, model_configs, workloads)
    unnamed = rows["engine_version"] == ""
    rows.loc[unnamed, "engine_version"] = ASSUMED_RELEASE
    assumed = f"the release is not stated: assuming vLLM {ASSUMED_RELEASE}"
    noted = {assumed: int(unnamed.sum())} if unnamed.any() else {}
    return rows, ReadReport(path.name, "", file_sha256(path), len(raw), len(rows), refused, noted)


def _read_csv(path: Path) -> pd.DataFrame:
    """Read the rows of a CSV file of serving runs, with numeric columns as numbers.

    Raises:
        PinnError: If the file is not CSV, has no row, has a column twice, or has text in place of a
            number.
    """
    CsvTable(path)  # raises an error if a column occurs twice
    raw = read_frame(path, "give a CSV of serving runs", dtype=dict.fromkeys(_TEXTS, "str"))
    if raw.empty:
        raise PinnError(f"{path} has no serving runs: add a row per run and stage")
    for name in _NUMBERS:
        if name in raw.columns and not pd.api.types.is_numeric_dtype(raw[name]):
            cells = raw[name].dropna()
            # Convert cells from text: a whole number beyond float64 becomes infinite, while
            # converting it from an integer would raise an error.
            odd = cells[~np.isfinite(pd.to_numeric(cells.astype("str"), errors="coerce"))]
            first = (raw[name] if odd.empty else odd).iloc[0]
            raise PinnError(f"{path}: {name} must be a number, got {first!r:.60}")
    return raw


def _usable(
    raw: pd.DataFrame, workloads: Mapping[str, Workload]
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return rows whose latencies and load are consistent, and counts of all other rows."""
    latencies = raw[list(_LATENCIES_MS)]
    usable = ((latencies > 0) & np.isfinite(latencies)).all(axis=1)
    itl_ms = (raw["e2e_mean_ms"] - raw["ttft_mean_ms"]) / (raw["output_tokens"] - 1)
    off = (itl_ms / raw["itl_mean_ms"] - 1).abs()
    sent = [workload(str(name), workloads) for name in raw["workload"]]
    as_sent = [_is_workload(raw.loc[i], load) for i, load in zip(raw.index, sent, strict=True)]
    rules = {
        "a latency is missing or not positive": ~usable,
        "TTFT, ITL and E2E disagree by more than 1 %": off > 0.01,
        "the load differs from the specification of its workload": ~pd.Series(
            as_sent, raw.index, dtype=bool
        ),
        "run and stage occur twice": raw.duplicated(["run", "stage"]),
    }
    refused: dict[str, int] = {}
    keep = pd.Series(True, index=raw.index)
    for reason, bad in rules.items():
        refused[reason] = int((keep & bad).sum())
        keep &= ~bad
    return raw[keep], refused


def _is_workload(row: pd.Series, known: Workload) -> bool:
    """Return whether a row's stage, request rate and lengths match the load that it names.

    Lengths may differ from a workload file by ``_FILE_TOLERANCE``, since tools recount tokens.
    """
    stage, of_file = str(row["stage"]), known.file is not None
    tolerance = _FILE_TOLERANCE if of_file else 0.0
    for name in ("prompt_tokens", "output_tokens"):
        if not abs(row[name] / getattr(known, name) - 1) <= tolerance:
            return False
    if stage == "all":
        return of_file or bool(np.isnan(row["rate_per_s"]))
    if not stage.isdecimal() or int(stage) >= len(known.stages):
        return False
    return of_file or bool(row["rate_per_s"] == known.stages[int(stage)].rate_per_s)


def _canonical(
    raw: pd.DataFrame, model_configs: Path | None, workloads: Mapping[str, Workload]
) -> pd.DataFrame:
    """Return rows of serving runs in SI units, with the columns of ``read_serving_runs``."""
    unknown = sorted(set(raw["gpu"].fillna("(none)")) - set(GPUS))
    if unknown:
        known = ", ".join(GPUS)
        raise PinnError(f"the GPU(s) {', '.join(unknown)} are unknown: use some of {known}")
    nameless = raw.loc[raw["model"].isna(), "run"]
    if len(nameless):
        raise PinnError(f"the run {nameless.iloc[0]} has no model: fill in the column model")
    rows = raw[list(_KEPT)].reset_index(drop=True)
    rows.insert(0, "row_id", rows["run"] + "/" + rows["stage"])
    rows.insert(4, "config", [model_config(name, model_configs) for name in rows["model"]])
    rows["gpu"] = rows["gpu"].map(GPUS)
    rows["precision"] = rows["precision"].str.lower()
    released = raw["engine_version"] if "engine_version" in raw else pd.Series("", raw.index)
    rows["engine_version"] = released.fillna("").to_numpy()
    stages = zip(rows["workload"], rows["stage"], strict=True)
    rows["duration_s"] = [_duration_s(workloads[name], stage) for name, stage in stages]
    own = [workloads[name].file is not None for name in rows["workload"]]
    for name, shared in (("max_model_len", MAX_MODEL_LEN), ("max_num_seqs", MAX_NUM_SEQS)):
        given = raw[name] if name in raw else pd.Series(np.nan, index=raw.index)
        rows[name] = given.reset_index(drop=True).fillna(pd.Series(np.where(own, np.nan, shared)))
    for name in _LATENCIES_MS:
        rows[name.removesuffix("_ms") + "_s"] = raw[name].to_numpy() * MILLISECOND
    return rows


def model_config(name: str, folder: Path | None) -> str:
    """Return the path of a model's ``config.json`` in a folder, or else the model's name.

    >>> model_config("01-ai/Yi-34B", None)
    '01-ai/Yi-34B'
    """
    if folder is None:
        return name
    path = folder / name.rsplit("/", maxsplit=1)[-1].lower() / "config.json"
    return str(path) if path.is_file() else name


def _duration_s(known: Workload, stage: str) -> float:
    if stage == "all":
        return sum(part.duration_s for part in known.stages)
    return known.stages[int(stage)].duration_s


# Workload files that replace the built-in loads of serving runs.


def find_workloads(path: Path) -> dict[str, Workload]:
    """Return the built-in loads, and those of files in a CSV's column ``workload``, by name.

    Args:
        path: CSV file to whose folder paths are relative; it need not exist.

    Raises:
        PinnError: If the file is not CSV, or a workload file cannot be read.
    """
    found, raw = dict(WORKLOADS), _read_csv(path) if path.is_file() else pd.DataFrame()
    for name in raw["workload"].dropna().unique() if "workload" in raw else ():
        file = path.parent / name
        if name not in found and file.is_file():
            found[name] = _of_file(name, file)
    return found


def _of_file(name: str, path: Path) -> Workload:
    """Return a load with the mean lengths of a workload file, and the rate of each stage."""
    sent = load_workload(path)
    stages = []
    for stage in range(sent.stages):
        mine = sent.stage == stage
        duration_s = float(np.ptp(sent.offset_s[mine])) or float("nan")
        stages.append(Stage(float(mine.sum() - 1) / duration_s, duration_s))
    return Workload(
        name,
        tuple(stages),
        prompt_tokens=round(float(sent.prompt_tokens.mean())),
        output_tokens=round(float(sent.output_tokens.mean())),
        file=path,
    )

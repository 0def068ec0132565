"""Filters of the public benchmark's measured deployments before training.

The filters are applied in a fixed order. Each filter is a function of the decoded rows of
:mod:`pinn.measurements.deployments.silicon` that returns a mask, true for each row to drop. Each
filter receives only the rows that all earlier filters kept.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pinn.common.files import ReadReport
from pinn.measurements.deployments import launch_facts
from pinn.measurements.deployments.silicon import (
    UNKNOWN_VERSION,
    Filters,
    canonical,
    decode,
    read_sample,
)
from pinn.specs.serving import VLLM

_LENGTHS = ("prompt_tokens", "output_tokens")
_POINT = ("model", "gpu", "precision", *_LENGTHS, "tensor_parallel_size")
#: Columns that are equal in all rows of one curve of latency against concurrency.
SERIES = (*_POINT, "data_parallel_size", "enable_expert_parallel")

#: Flags that are equal in all runs of one deployment. Prefix caching is excluded, because it does
#: not affect latency here: the benchmark's random prompts share no prefixes.
SETTINGS = tuple(
    name
    for name in launch_facts.SERVING_FLAGS
    if name not in (*launch_facts.LOAD_FLAGS, "enable_prefix_caching")
)


def from_other_campaign(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of rows from files under ``/Users/harrli``, with undocumented load and client.

    These files cover different models, lengths and engines from the public benchmark and were
    written by another tool. The meaning of their concurrency and lengths is therefore uncertain.
    """
    return rows["source"].str.contains("harrli")


def saturated_gpt_oss_on_h100(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of gpt-oss rows on H100 at concurrency 512, which had no steady state."""
    on_h100 = rows["model"].str.contains("gpt-oss") & (rows["gpu"] == "h100_sxm")
    return on_h100 & (rows["concurrency"] == 512)


def copy_across_dumps(rows: pd.DataFrame, key: Sequence[str] = _POINT) -> pd.Series:
    """Return a mask of duplicate measurements across dumps, so that each is counted once.

    Duplicates have the same model, GPU, precision, lengths, tensor-parallel size and concurrency,
    and the same TPOT to 0.01 ms. The row from the dated database dump is kept if there is one,
    because it identifies the configuration and the run. Otherwise the first row of the file is
    kept.

    Args:
        rows: Decoded rows.
        key: Columns that are the same in duplicates, in addition to concurrency and TPOT.
    """
    preferred = with_rounded_tpot(rows).assign(dumped=rows["source"].str.startswith("db-dump"))
    preferred = preferred.sort_values("dumped", ascending=False, kind="stable")
    return preferred.duplicated([*key, "concurrency", "tpot_10us"]).reindex(rows.index)


def with_rounded_tpot(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the column ``tpot_10us``, TPOT in ms rounded to 0.01, which identifies duplicates."""
    return rows.assign(tpot_10us=(rows["tpot_s"] * 1e3).round(2))


def queueing(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of rows whose requests queued: TTFT is above 3 s and 8 % of the decode time.

    The decode time is output tokens x TPOT. In such a row, the engine did not run the stated number
    of requests concurrently.
    """
    generation_s = rows["output_tokens"] * rows["tpot_s"]
    return (rows["ttft_s"] > 3) & (rows["ttft_s"] > 0.08 * generation_s)


def slower_than_busier(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of rows whose TPOT exceeds 1.15 times the TPOT at 1 to 4 times the load.

    A step with more requests does not run faster, so the marked run must have been disturbed. Rows
    are compared only within the same series, with the same flags and the same date or engine
    version.
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
    """Return a mask of runs whose TPOT is over 15 % above a run with the same load and flags.

    The two runs also have the same engine version. Independent re-runs have a median difference of
    0.7 %, so a gap of 15 % indicates a disturbed run.
    """
    point = [*SERIES, *SETTINGS, "concurrency", "engine_version"]
    fastest = rows.groupby(point)["tpot_s"].transform("min")
    return rows["tpot_s"] > 1.15 * fastest


def nightly_image(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of rows of nightly images, because unreleased engines are not predicted."""
    return rows["source"].str.contains("nightly")


FILTERS: Filters = {
    "file of another campaign (harrli)": from_other_campaign,
    "gpt-oss on H100 at concurrency 512": saturated_gpt_oss_on_h100,
    "duplicate of a measurement in another dump": copy_across_dumps,
    "saturated: TTFT above 3 s and above 8 % of the generation time": queueing,
    "TPOT above 1.15x that of a row with more requests in flight": slower_than_busier,
    "slower of two runs of one configuration that differ by more than 15 %": slower_rerun,
    "nightly image": nightly_image,
}


def read_silicon(path: Path | None = None) -> tuple[pd.DataFrame, ReadReport]:
    """Read the filtered aggregated vLLM deployments of the public benchmark.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's file.

    Returns:
        One row per deployment and load, in SI units, with the columns of
        :data:`pinn.measurements.deployments.observations.COLUMNS`; and the counts of rows read,
        refused by each filter, and accepted.

    Raises:
        PinnError: If the package or the file is missing, lacks a column, or has an unknown model or
            precision.
    """
    return read_sample(path, (VLLM,), FILTERS, decode, canonical)

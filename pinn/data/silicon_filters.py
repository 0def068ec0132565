"""Which measured deployments are left out of training, one small rule each, in a fixed order.

Every rule takes the decoded rows of :mod:`pinn.data.silicon` and returns a mask, true where a
row is to be dropped. A rule sees only the rows that the rules before it left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from pinn.data.launch_facts import LOAD_FLAGS, SERVING_FLAGS

#: Rows that differ only in these columns belong to one curve of latency over concurrency.
SERIES = (
    "model",
    "gpu",
    "precision",
    "prompt_tokens",
    "output_tokens",
    "tensor_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
)

#: Rows that differ in one of these flags are no runs of one deployment. Prefixes that are kept
#: change nothing here, as the benchmark's random prompts share none.
SETTINGS = tuple(
    name for name in SERVING_FLAGS if name not in (*LOAD_FLAGS, "enable_prefix_caching")
)

#: Stand-in for an engine version that the file does not name.
UNKNOWN_VERSION = "unknown"


@dataclass(frozen=True)
class Filter:
    """A rule and the reason that the read report gives for it."""

    reason: str
    drops: Callable[[pd.DataFrame], pd.Series]


def from_other_campaign(rows: pd.DataFrame) -> pd.Series:
    """Files under ``/Users/harrli``: their load, client and settings are not documented.

    They hold other models, lengths and engines than the public benchmark and come from another
    tool, so the reading of concurrency and lengths that holds elsewhere is unproven for them.
    """
    return rows["source"].str.contains("harrli")


def saturated_gpt_oss_on_h100(rows: pd.DataFrame) -> pd.Series:
    """gpt-oss on H100 at concurrency 512: not a steady state at that load."""
    return (
        rows["model"].str.contains("gpt-oss")
        & (rows["gpu"] == "h100_sxm")
        & (rows["concurrency"] == 512)
    )


def copy_across_dumps(rows: pd.DataFrame) -> pd.Series:
    """Copies of one measurement in several dumps, which would weigh it twice.

    A copy has the same model, GPU, precision, lengths, tensor-parallel size and concurrency, and
    the same TPOT to 0.01 ms. The dated database dump is kept where there is one, as it names the
    configuration and the run; else the first row of the file.
    """
    key = ["model", "gpu", "precision", "prompt_tokens", "output_tokens"]
    key += ["tensor_parallel_size", "concurrency"]
    tpot_10us = (rows["tpot_s"] * 1e3).round(2)
    preferred = rows.assign(tpot_10us=tpot_10us, dumped=rows["source"].str.startswith("db-dump"))
    preferred = preferred.sort_values("dumped", ascending=False, kind="stable")
    return preferred.duplicated([*key, "tpot_10us"]).reindex(rows.index)


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
    busier = (pairs["concurrency_busier"] > pairs["concurrency"]) & (
        pairs["concurrency_busier"] <= 4 * pairs["concurrency"]
    )
    known = pairs["engine_version"] != UNKNOWN_VERSION
    same_build = (pairs["date"] == pairs["date_busier"]) | (
        known & (pairs["engine_version"] == pairs["engine_version_busier"])
    )
    slower = pairs["tpot_s"] > 1.15 * pairs["tpot_s_busier"]
    return _mask(rows, pairs.loc[busier & same_build & slower, "row"])


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


#: The rules in the order in which they are applied.
FILTERS = (
    Filter("file of another campaign (harrli)", from_other_campaign),
    Filter("gpt-oss on H100 at concurrency 512", saturated_gpt_oss_on_h100),
    Filter("copy of a measurement in another dump", copy_across_dumps),
    Filter("saturated: TTFT above 3 s and 8 % of the generation time", queueing),
    Filter("TPOT above 1.15 x that of a busier row", slower_than_busier),
    Filter("slower of two re-runs that differ by more than 15 %", slower_rerun),
    Filter("nightly image", nightly_image),
)


def apply_filters(
    rows: pd.DataFrame, filters: Sequence[Filter] = FILTERS
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Drop rows rule by rule.

    Args:
        rows: Decoded rows.
        filters: Rules, applied in this order.

    Returns:
        The rows that every rule left, in their order, and the rows dropped by reason, in order.
    """
    dropped: dict[str, int] = {}
    for rule in filters:
        mask = rule.drops(rows).astype(bool)
        dropped[rule.reason] = int(mask.sum())
        rows = rows[~mask]
    return rows, dropped


def _mask(rows: pd.DataFrame, index: pd.Series) -> pd.Series:
    """True on the rows whose index is listed."""
    return pd.Series(rows.index.isin(index), index=rows.index)

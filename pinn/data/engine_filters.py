"""Which measured SGLang and TensorRT-LLM deployments are left out, one rule each, in order.

The rules are like those of :mod:`pinn.data.silicon_filters`, on rows that
:func:`pinn.data.engine_deployments.decode_engines` gave their layout and
:mod:`pinn.data.launch_facts` their flags. None looks at what a model of ours predicts. Multi-token
prediction (MTP) is marked nowhere in the file; the launch scripts tell of it, and where both kinds
fit rows of the same point that ran without (twins).
"""

from __future__ import annotations

import pandas as pd

from pinn.data.silicon_filters import Filter, from_other_campaign, queueing

SGLANG, TRTLLM = "sglang", "trtllm"
_ROW = ["engine", "model", "gpu", "precision"]
_POINT = ["prompt_tokens", "output_tokens", "concurrency", "tpot_10us"]

#: Linear attention (gated delta net) and sparse attention: read apart, nothing is fitted to them.
OTHER_ATTENTION = ("Qwen/Qwen3.5-397B-A17B", "zhipuai/GLM-5")


def several_nodes(rows: pd.DataFrame) -> pd.Series:
    """GB200 rows labelled aggregated with 12 to 72 GPUs: runs over several nodes."""
    return rows["gpu"] == "gb200"


def speculates(rows: pd.DataFrame) -> pd.Series:
    """Rows of which every launch script that fits speculates, and copies of them in other dumps."""
    point = _with_rounded_tpot(rows)[[*_ROW, *_POINT]].apply(tuple, axis=1)
    told = rows["drafts"] != ""
    return told | point.isin(set(point[told]))


def mtp_beside_plain(rows: pd.DataFrame) -> pd.Series:
    """DeepSeek fp8 on B200, SGLang, TP 8 without EP, measured 2026-03-25, but not in config 87.

    Scripts with and without MTP fit them. Points up to 64 requests were run twice that day on one
    image: of 11 pairs one takes 0.67 to
    0.91 of the other's TPOT and 1.0 to 2.1 times its TTFT, as with MTP. The database dump names
    configurations: 87 holds the plain one; rows at other values of TPOT are the other's.
    """
    suspect = (
        (rows["engine"] == SGLANG)
        & rows["model"].str.contains("DeepSeek")
        & (rows["gpu"] == "b200_sxm")
        & (rows["precision"] == "fp8")
        & (rows["tensor_parallel_size"] == 8)
        & ~rows["enable_expert_parallel"]
        & (rows["date"] == "2026-03-25")
    )
    point = _with_rounded_tpot(rows)[_POINT].apply(tuple, axis=1)
    plain = point[rows["source"].str.contains("config_id=87;", regex=False)]
    return suspect & ~point.isin(set(plain))


def development_image(rows: pd.DataFrame) -> pd.Series:
    """SGLang's ``nightly-dev`` and ``glm5-hopper`` images: unreleased engines."""
    return rows["engine_version"].str.contains("nightly-dev|glm5-hopper")


def copy_of_a_row(rows: pd.DataFrame) -> pd.Series:
    """Copies of one measurement in several dumps; the dated database dump is kept where it is one.

    A copy has the same engine, model, GPU, precision, lengths and concurrency, and the same TPOT to
    0.01 ms; dumps differ in how they store the layout.
    """
    preferred = _with_rounded_tpot(rows).assign(dumped=rows["source"].str.startswith("db-dump"))
    preferred = preferred.sort_values("dumped", ascending=False, kind="stable")
    return preferred.duplicated([*_ROW, *_POINT]).reindex(rows.index)


def other_attention(rows: pd.DataFrame) -> pd.Series:
    """Models whose layers have linear or sparse attention."""
    return rows["model"].isin(OTHER_ATTENTION)


#: The rules in the order in which they are applied.
ENGINE_FILTERS = (
    Filter("file of another campaign (harrli)", from_other_campaign),
    Filter("GB200 over several nodes, labelled aggregated", several_nodes),
    Filter("MTP: every launch script that fits speculates", speculates),
    Filter("MTP: DeepSeek fp8 on B200, 2026-03-25, not config 87", mtp_beside_plain),
    Filter("nightly or glm5 image", development_image),
    Filter("copy of a measurement in another dump", copy_of_a_row),
    Filter("saturated: TTFT above 3 s and 8 % of the generation time", queueing),
    Filter("linear or sparse attention (Qwen3.5, GLM-5): read apart", other_attention),
)


def shows_no_mtp(rows: pd.DataFrame) -> pd.Series:
    """All but rows that something tells to have run multi-token prediction."""
    return ~(speculates(rows) | mtp_beside_plain(rows))


#: The rules that leave the rows with hidden multi-token prediction; copies are among them.
MTP_FILTERS = (*ENGINE_FILTERS[:2], Filter("no sign of multi-token prediction", shows_no_mtp))


def not_of_checked_campaign(rows: pd.DataFrame) -> pd.Series:
    """All but the other campaign's SGLang rows and those of TensorRT-LLM 1.0.0rc3.

    Its rows of TensorRT-LLM 1.2 and 1.3 state other loads than they ran: some no concurrency at
    all, others more requests than their batch size times their replicas.
    """
    checked = (rows["engine"] == SGLANG) | (rows["engine_version"] == "1.0.0rc3")
    return ~(from_other_campaign(rows) & checked)


def not_dense_campaign(rows: pd.DataFrame) -> pd.Series:
    """All but the other campaign's 16-bit rows."""
    return ~(from_other_campaign(rows) & (rows["precision"] == "bf16"))


def _with_rounded_tpot(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(tpot_10us=(rows["tpot_s"] * 1e3).round(2))

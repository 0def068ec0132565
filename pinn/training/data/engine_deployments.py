"""Measured deployments of SGLang and TensorRT-LLM, and every importer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from pinn.common.files import ReadReport
from pinn.measurements.deployments import observations
from pinn.measurements.deployments import silicon as sample
from pinn.specs.serving import SGLANG, TRTLLM
from pinn.training.data import silicon

# Which measured SGLang and TensorRT-LLM deployments are left out, one rule each, in order.
#
# The rules are like those of :mod:`pinn.training.data.silicon`, on rows that
# ``decode_engines`` of :mod:`pinn.measurements.deployments.silicon` gave their layout and
# :mod:`pinn.measurements.deployments.launch_facts` their flags. None looks at what a model of ours
# predicts.
# Multi-token prediction (MTP) is marked nowhere in the file; the launch scripts tell of it, and
# where both kinds fit rows of the same point that ran without (twins).

_ROW = ["engine", "model", "gpu", "precision"]
_LENGTHS = ["prompt_tokens", "output_tokens"]
_POINT = [*_LENGTHS, "concurrency", "tpot_10us"]

#: Linear attention (gated delta net) and sparse attention: read apart, nothing is fitted to them.
OTHER_ATTENTION = ("Qwen/Qwen3.5-397B-A17B", "zhipuai/GLM-5")


def several_nodes(rows: pd.DataFrame) -> pd.Series:
    """GB200 rows labelled aggregated with 12 to 72 GPUs: runs over several nodes."""
    return rows["gpu"] == "gb200"


def speculates(rows: pd.DataFrame) -> pd.Series:
    """Rows of which every launch script that fits speculates, and copies of them in other dumps."""
    point = silicon.with_rounded_tpot(rows)[[*_ROW, *_POINT]].apply(tuple, axis=1)
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
    point = silicon.with_rounded_tpot(rows)[_POINT].apply(tuple, axis=1)
    plain = point[rows["source"].str.contains("config_id=87;", regex=False)]
    return suspect & ~point.isin(set(plain))


def development_image(rows: pd.DataFrame) -> pd.Series:
    """SGLang's ``nightly-dev`` and ``glm5-hopper`` images: unreleased engines."""
    return rows["engine_version"].str.contains("nightly-dev|glm5-hopper")


#: Copies as of vLLM's rows, but for the layout: dumps differ in how they store it.
copy_of_a_row = partial(silicon.copy_across_dumps, key=(*_ROW, *_LENGTHS))


def other_attention(rows: pd.DataFrame) -> pd.Series:
    """Models whose layers have linear or sparse attention."""
    return rows["model"].isin(OTHER_ATTENTION)


#: The rules in the order in which they are applied.
_OF_THE_BENCHMARK: sample.Filters = {
    "file of another campaign (harrli)": silicon.from_other_campaign,
    "GB200 over several nodes, labelled aggregated": several_nodes,
}
ENGINE_FILTERS: sample.Filters = {
    **_OF_THE_BENCHMARK,
    "MTP: every launch script that fits speculates": speculates,
    "MTP: DeepSeek fp8 on B200, 2026-03-25, not config 87": mtp_beside_plain,
    "nightly or glm5 image": development_image,
    "copy of a measurement in another dump": copy_of_a_row,
    "saturated: TTFT above 3 s and 8 % of the generation time": silicon.queueing,
    "linear or sparse attention (Qwen3.5, GLM-5): read apart": other_attention,
}


def shows_no_mtp(rows: pd.DataFrame) -> pd.Series:
    """All but rows that something tells to have run multi-token prediction."""
    return ~(speculates(rows) | mtp_beside_plain(rows))


#: The rules that leave the rows with hidden multi-token prediction; copies are among them.
MTP_FILTERS = {**_OF_THE_BENCHMARK, "no sign of multi-token prediction": shows_no_mtp}


def not_of_checked_campaign(rows: pd.DataFrame) -> pd.Series:
    """All but the other campaign's SGLang rows and those of TensorRT-LLM 1.0.0rc3.

    Its rows of TensorRT-LLM 1.2 and 1.3 state other loads than they ran: some no concurrency at
    all, others more requests than their batch size times their replicas.
    """
    checked = (rows["engine"] == SGLANG) | (rows["engine_version"] == "1.0.0rc3")
    return ~(silicon.from_other_campaign(rows) & checked)


def not_dense_campaign(rows: pd.DataFrame) -> pd.Series:
    """All but the other campaign's 16-bit rows."""
    return ~(silicon.from_other_campaign(rows) & (rows["precision"] == "bf16"))


# Reads the measured SGLang and TensorRT-LLM deployments of ``silicon_sample.csv``.
#
# They come from the same public benchmark as vLLM's (:mod:`pinn.training.data.silicon`) and are
# read as the same closed loop. What differs is how the dumps store the layout
# (``decode_engines`` of :mod:`pinn.measurements.deployments.silicon`) and what is left out (here).

#: Engines beside vLLM, by their name in the file.
ENGINES = (SGLANG, TRTLLM)

#: Why rows are shown apart and train nothing: DeepSeek on B300 of 2026-04-17 has 3.6 to 5.8 times
#: the TTFT of its twins on B200 where prompts have 8192 tokens (16 pairs below 128 requests) and up
#: to 3.6 times the TPOT. Its flags are B200's. Its image (SGLang 0.5.10.post1) pins transformers
#: 5.3.0, whose tokenizer makes the client's random prompts about five times longer on the server
#: (InferenceX PR 937: 7,140 tokens became 35,921); the client's fix ef01c2205 of 2026-03-27 works
#: for local model paths, and B300's script passed a hub id until 5fe6d56ee of 2026-05-15. How long
#: each prompt was stands nowhere.
APART = "DeepSeek on B300, 2026-04-17: prompts about five times too long by the image's tokenizer"
LINEAR = "linear attention, in no training; images shared with runs that speculate"
SPARSE = "sparse attention, in no training; development images"


def read_engines(path: Path | None = None) -> tuple[pd.DataFrame, ReadReport]:
    """Read the clean aggregated deployments of every engine but vLLM.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's.

    Returns:
        Rows as :func:`pinn.training.data.silicon.read_silicon` gives them, with
        ``apart``, the reason to show a row apart (empty for most); and the counts.

    Raises:
        PinnError: As ``read_silicon``.
    """
    return _read(path, ENGINE_FILTERS)


def read_every_engine(path: Path | None = None) -> tuple[pd.DataFrame, ReadReport]:
    """Read the clean deployments of vLLM and of the others, without those shown apart.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's.

    Returns:
        Rows as :func:`pinn.training.data.silicon.read_silicon` gives them, and the counts.

    Raises:
        PinnError: As ``read_silicon``.
    """
    vllm, of_vllm = silicon.read_silicon(path)
    others, of_others = read_engines(path)
    kept = others[others["apart"] == ""]
    elsewhere = "not an aggregated deployment"
    refused = Counter({elsewhere: -of_vllm.read})
    for report in (of_vllm, of_others):
        (_, count), *by_rule = report.refused.items()
        refused.update({elsewhere: count, **dict(by_rule)})
    refused[APART] = len(others) - len(kept)
    rows = pd.concat([vllm, kept[list(sample.CANONICAL)]], ignore_index=True)
    noted = Counter(of_vllm.noted)
    noted.update(of_others.noted)
    # Every row shown apart is of a known script.
    noted.subtract(others.loc[others["apart"] != "", "facts"])
    return rows, replace(of_vllm, accepted=len(rows), refused=dict(refused), noted=dict(noted))


def read_other_campaign() -> tuple[pd.DataFrame, ReadReport]:
    """Read the rows of a campaign with an unknown client: a check of TPOT, nothing to train on.

    Returns:
        As :func:`read_engines`. ``ttft_s`` says nothing: it holds what that client waited for.
    """
    reason = "not of the other campaign, or of its TensorRT-LLM after 1.0.0rc3"
    return _read(None, {reason: not_of_checked_campaign})


def read_dense_campaign() -> tuple[pd.DataFrame, ReadReport]:
    """Read the same campaign's vLLM rows of a dense 16-bit model: a check of TPOT, as those are.

    Its 8-bit and expert rows state loads that cannot be: some are faster than memory allows, others
    of one kind differ by a factor of two.

    Returns:
        As :func:`read_engines`.
    """
    rules = {"not of the other campaign's dense 16-bit rows": not_dense_campaign}
    return _read(None, rules, ("vllm",))


def read_speculating() -> tuple[pd.DataFrame, ReadReport]:
    """Read the rows that ran multi-token prediction and do not say so: nothing to train on.

    How many drafted tokens were accepted stands nowhere. ``drafts`` says how many were drafted
    where every launch script that fits speculates.

    Returns:
        As :func:`read_engines`.
    """
    return _read(None, MTP_FILTERS)


def read_other_attention() -> tuple[pd.DataFrame, ReadReport]:
    """Read the rows of models with linear or sparse attention: a check, nothing to fit.

    The rules are those of :func:`read_engines`; of GLM-5 every row ran on a development image.

    Returns:
        As :func:`read_engines`; ``apart`` is ``LINEAR`` or ``SPARSE``.
    """
    rules = (_FOR_OTHER_ATTENTION.get(rule, (why, rule)) for why, rule in ENGINE_FILTERS.items())
    rows, report = _read(None, dict(rules))
    linear = rows["model"].str.contains("Qwen", regex=False)
    return rows.assign(apart=linear.map({True: LINEAR, False: SPARSE})), report


def _released_engines_but_glm(rows: pd.DataFrame) -> pd.Series:
    return development_image(rows) & ~rows["model"].str.contains("GLM-5", regex=False)


#: Rule -> what takes its place where models with other attention are read.
_FOR_OTHER_ATTENTION: dict[sample.Rule, tuple[str, sample.Rule]] = {
    development_image: ("nightly image, but of GLM-5", _released_engines_but_glm),
    other_attention: ("attention over all keys", lambda rows: ~other_attention(rows)),
}


def _read(
    path: Path | None, filters: sample.Filters, engines: Sequence[str] = ENGINES
) -> tuple[pd.DataFrame, ReadReport]:
    return sample.read_sample(path, engines, filters, sample.decode_engines, _canonical)


def _canonical(rows: pd.DataFrame) -> pd.DataFrame:
    """Decoded and filtered rows, as they ran, and which of them are shown apart."""
    found = sample.canonical(rows)
    deepseek = found["model"].str.contains("DeepSeek") & (found["gpu"] == "b300_sxm")
    apart = deepseek & (found["date"] == "2026-04-17")
    return found.assign(apart=apart.map({True: APART, False: ""}))


# Turns a foreign file into a table of observations on disk.


def import_silicon(target: Path | str, source: Path | str | None = None) -> ReadReport:
    """Write the clean measured deployments of aiconfigurator-core as observations.

    Args:
        target: Parquet file to write; its manifest goes beside it.
        source: ``silicon_sample.csv``; None for the installed package's.

    Returns:
        The counts of rows read, refused and accepted.

    Raises:
        PinnError: If the package or file is missing or does not have the expected content.
    """
    return _written(silicon.read_silicon(None if source is None else Path(source)), target)


def import_every_engine(target: Path | str, source: Path | str | None = None) -> ReadReport:
    """Write the measured deployments of vLLM, SGLang and TensorRT-LLM."""
    return _written(read_every_engine(None if source is None else Path(source)), target)


def _written(read: tuple[pd.DataFrame, ReadReport], target: Path | str) -> ReadReport:
    rows, report = read
    observations.write_observations(rows, Path(target), report)
    return report

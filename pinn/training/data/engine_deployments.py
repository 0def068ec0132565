"""Readers of measured deployments on SGLang and TensorRT-LLM, and importers for all engines."""

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

# Filters of measured SGLang and TensorRT-LLM deployments. Each filter has one rule, and filters are
# applied in order.
#
# The rules are like those of :mod:`pinn.training.data.silicon`. They apply to rows whose layout is
# from ``decode_engines`` of :mod:`pinn.measurements.deployments.silicon` and whose flags are from
# :mod:`pinn.measurements.deployments.launch_facts`. No rule depends on predictions. The table of
# measurements does not mark multi-token prediction (MTP), but launch scripts do. If scripts with
# and without MTP fit a row, rows of the same load without MTP (twins) decide.

_ROW = ["engine", "model", "gpu", "precision"]
_LENGTHS = ["prompt_tokens", "output_tokens"]
_POINT = [*_LENGTHS, "concurrency", "tpot_10us"]

#: Models with linear (gated delta net) or sparse attention. Their rows are read separately and are
#: not used for training.
OTHER_ATTENTION = ("Qwen/Qwen3.5-397B-A17B", "zhipuai/GLM-5")


def several_nodes(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of GB200 rows that span several nodes (12 to 72 GPUs).

    The rows are labelled as aggregated, without separate prefill and decode servers.
    """
    return rows["gpu"] == "gb200"


def speculates(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of rows that match only launch scripts with speculative decoding.

    Copies of such rows (other rows of the same measurement) are marked, too.
    """
    point = silicon.with_rounded_tpot(rows)[[*_ROW, *_POINT]].apply(tuple, axis=1)
    told = rows["drafts"] != ""
    return told | point.isin(set(point[told]))


def mtp_beside_plain(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of DeepSeek rows on B200 that may have run multi-token prediction (MTP).

    The rows are fp8 rows of 2026-03-25 on SGLang with TP 8 and without EP, except those of
    configuration 87. They match launch scripts both with and without MTP. Loads of up to 64
    requests were run twice that day with the same image. In each of 11 pairs, one run has 0.67 to
    0.91 times the other's TPOT and 1.0 to 2.1 times its TTFT, as expected with MTP. According to
    the database dump, configuration 87 runs without MTP. Rows whose TPOT differs from configuration
    87's belong to the configuration that may run MTP.
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
    """Return a mask of rows of the unreleased SGLang images ``nightly-dev`` and ``glm5-hopper``."""
    return rows["engine_version"].str.contains("nightly-dev|glm5-hopper")


#: Rule that marks copies of a measurement in several dumps. Unlike the rule for vLLM rows, it does
#: not compare parallel sizes, because dumps store them differently.
copy_of_a_row = partial(silicon.copy_across_dumps, key=(*_ROW, *_LENGTHS))


def other_attention(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of rows of models whose layers have linear or sparse attention."""
    return rows["model"].isin(OTHER_ATTENTION)


#: Filters of rows of all engines; ``ENGINE_FILTERS`` adds filters of SGLang and TensorRT-LLM rows.
#: All filters are applied in order.
_OF_THE_BENCHMARK: sample.Filters = {
    "file of another campaign (harrli)": silicon.from_other_campaign,
    "multi-node GB200 deployment labelled as aggregated": several_nodes,
}
ENGINE_FILTERS: sample.Filters = {
    **_OF_THE_BENCHMARK,
    "MTP: every matching launch script uses speculative decoding": speculates,
    "MTP: DeepSeek fp8 on B200, 2026-03-25, not config 87": mtp_beside_plain,
    "nightly or glm5 image": development_image,
    "duplicate of a measurement in another dump": copy_of_a_row,
    "saturated: TTFT above 3 s and above 8 % of the generation time": silicon.queueing,
    "linear or sparse attention (Qwen3.5, GLM-5): evaluated separately": other_attention,
}


def shows_no_mtp(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of rows that show no sign of multi-token prediction."""
    return ~(speculates(rows) | mtp_beside_plain(rows))


#: Filters that select only rows that ran multi-token prediction without recording it, including
#: copies.
MTP_FILTERS = {**_OF_THE_BENCHMARK, "no sign of multi-token prediction": shows_no_mtp}


def not_of_checked_campaign(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of rows to drop: all except reliable rows of the second campaign (harrli).

    Reliable rows are the campaign's rows for SGLang and for TensorRT-LLM 1.0.0rc3. The campaign's
    rows for TensorRT-LLM 1.2 and 1.3 give loads that cannot have been run: some give no
    concurrency, others more requests than batch size times replicas.
    """
    checked = (rows["engine"] == SGLANG) | (rows["engine_version"] == "1.0.0rc3")
    return ~(silicon.from_other_campaign(rows) & checked)


def not_dense_campaign(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of rows to drop: all except 16-bit rows of the second campaign (harrli)."""
    return ~(silicon.from_other_campaign(rows) & (rows["precision"] == "bf16"))


# Readers of the measured SGLang and TensorRT-LLM deployments of ``silicon_sample.csv``.
#
# These deployments are from the same public benchmark as vLLM's (:mod:`pinn.training.data.silicon`)
# and are read as closed loops, too. Dumps store the layout differently (``decode_engines`` of
# :mod:`pinn.measurements.deployments.silicon`), and the filters above apply.

#: Names, in ``silicon_sample.csv``, of the engines other than vLLM.
ENGINES = (SGLANG, TRTLLM)

#: Reason for reporting rows separately and not training on them. At prompts of 8192 tokens,
#: DeepSeek on B300 of 2026-04-17 has 3.6 to 5.8 times the TTFT of equal loads on B200 (16 pairs
#: below 128 requests) and up to 3.6 times the TPOT. Its flags equal B200's. Its image (SGLang
#: 0.5.10.post1) pins transformers 5.3.0, whose tokenizer makes the client's random prompts about
#: five times longer on the server (InferenceX PR 937: 7,140 tokens became 35,921). The client's fix
#: ef01c2205 of 2026-03-27 works for local model paths, and B300's script passed a hub id until
#: 5fe6d56ee of 2026-05-15. The length of each prompt is not recorded.
APART = (
    "DeepSeek on B300, 2026-04-17: prompts made about five times too long by the image's tokenizer"
)
LINEAR = (
    "linear attention (not in the training data); same images as runs with speculative decoding"
)
SPARSE = "sparse attention (not in the training data); development images"


def read_engines(path: Path | None = None) -> tuple[pd.DataFrame, ReadReport]:
    """Read the filtered aggregated deployments of SGLang and TensorRT-LLM.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's file.

    Returns:
        Rows as :func:`pinn.training.data.silicon.read_silicon` returns them, with ``apart``, the
        reason to report a row separately (mostly empty); and the counts of rows.

    Raises:
        PinnError: If the package or the file is missing, lacks a column, or has an unknown model or
            precision.
    """
    return _read(path, ENGINE_FILTERS)


def read_every_engine(path: Path | None = None) -> tuple[pd.DataFrame, ReadReport]:
    """Read the filtered deployments of all three engines, without separately reported rows.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's file.

    Returns:
        Rows as :func:`pinn.training.data.silicon.read_silicon` returns them; and the counts of rows
        read, refused by each filter, and accepted.

    Raises:
        PinnError: If the package or the file is missing, lacks a column, or has an unknown model or
            precision.
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
    # Do not count the launch script notes of rows that are reported separately.
    noted.subtract(others.loc[others["apart"] != "", "facts"])
    return rows, replace(of_vllm, accepted=len(rows), refused=dict(refused), noted=dict(noted))


def read_other_campaign() -> tuple[pd.DataFrame, ReadReport]:
    """Read SGLang and TensorRT-LLM rows of the second measurement campaign (harrli).

    The rows are used only to evaluate TPOT, since the campaign's benchmark client is unknown.

    Returns:
        Rows and counts as :func:`read_engines` returns them. The meaning of ``ttft_s`` is unknown.
    """
    reason = "not from the second campaign, or from its TensorRT-LLM releases after 1.0.0rc3"
    return _read(None, {reason: not_of_checked_campaign})


def read_dense_campaign() -> tuple[pd.DataFrame, ReadReport]:
    """Read vLLM rows of dense 16-bit models of the second measurement campaign (harrli).

    The rows are used only to evaluate TPOT, since the campaign's benchmark client is unknown.

    The campaign's 8-bit and mixture-of-experts rows are excluded as implausible. Some are faster
    than the memory bandwidth allows, others differ by a factor of two at the same load.

    Returns:
        Rows and counts as :func:`read_engines` returns them.
    """
    rules = {"not among the second campaign's dense 16-bit rows": not_dense_campaign}
    return _read(None, rules, ("vllm",))


def read_speculating() -> tuple[pd.DataFrame, ReadReport]:
    """Read the rows with unrecorded multi-token prediction (MTP), which are not used for training.

    The number of accepted tokens is not recorded. ``drafts`` is the number of draft tokens if all
    launch scripts that match a row use speculative decoding.

    Returns:
        Rows and counts as :func:`read_engines` returns them.
    """
    return _read(None, MTP_FILTERS)


def read_other_attention() -> tuple[pd.DataFrame, ReadReport]:
    """Read rows of models with linear or sparse attention, for evaluation only.

    The filters are those of :func:`read_engines`, except that images of development releases are
    allowed for GLM-5, which was run on no others.

    Returns:
        Rows and counts as :func:`read_engines` returns them; ``apart`` is ``LINEAR`` or ``SPARSE``.
    """
    rules = (_FOR_OTHER_ATTENTION.get(rule, (why, rule)) for why, rule in ENGINE_FILTERS.items())
    rows, report = _read(None, dict(rules))
    linear = rows["model"].str.contains("Qwen", regex=False)
    return rows.assign(apart=linear.map({True: LINEAR, False: SPARSE})), report


def _released_engines_but_glm(rows: pd.DataFrame) -> pd.Series:
    return development_image(rows) & ~rows["model"].str.contains("GLM-5", regex=False)


#: Names and rules of the filters for models with linear or sparse attention, by the filter that
#: each replaces.
_FOR_OTHER_ATTENTION: dict[sample.Rule, tuple[str, sample.Rule]] = {
    development_image: ("nightly image, but of GLM-5", _released_engines_but_glm),
    other_attention: ("attention over all keys", lambda rows: ~other_attention(rows)),
}


def _read(
    path: Path | None, filters: sample.Filters, engines: Sequence[str] = ENGINES
) -> tuple[pd.DataFrame, ReadReport]:
    return sample.read_sample(path, engines, filters, sample.decode_engines, _canonical)


def _canonical(rows: pd.DataFrame) -> pd.DataFrame:
    """Return filtered rows with the columns of observations and the additional column ``apart``.

    ``apart`` is the reason to report a row separately, and is mostly empty.
    """
    found = sample.canonical(rows)
    deepseek = found["model"].str.contains("DeepSeek") & (found["gpu"] == "b300_sxm")
    apart = deepseek & (found["date"] == "2026-04-17")
    return found.assign(apart=apart.map({True: APART, False: ""}))


# Importers of the benchmark's file into a table of observations on disk.


def import_silicon(target: Path | str, source: Path | str | None = None) -> ReadReport:
    """Write the filtered vLLM deployments of aiconfigurator-core as observations.

    Args:
        target: Parquet file to write; its manifest is written to the same folder.
        source: ``silicon_sample.csv``; None for the installed package's file.

    Returns:
        Counts of rows read, refused by each filter, and accepted.

    Raises:
        PinnError: If the package or file is missing, or the file lacks the expected content.
    """
    return _written(silicon.read_silicon(None if source is None else Path(source)), target)


def import_every_engine(target: Path | str, source: Path | str | None = None) -> ReadReport:
    """Write filtered deployments of vLLM, SGLang and TensorRT-LLM, like :func:`import_silicon`."""
    return _written(read_every_engine(None if source is None else Path(source)), target)


def _written(read: tuple[pd.DataFrame, ReadReport], target: Path | str) -> ReadReport:
    rows, report = read
    observations.write_observations(rows, Path(target), report)
    return report

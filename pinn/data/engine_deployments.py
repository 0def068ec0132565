"""Reads the measured SGLang and TensorRT-LLM deployments of ``silicon_sample.csv``.

They come from the same public benchmark as vLLM's (:mod:`pinn.data.silicon`) and are read as the
same closed loop. What differs is how the dumps store the layout (:func:`decode_engines`), what is
left out (:mod:`pinn.data.engine_filters`).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from pinn.data import silicon
from pinn.data.engine_filters import (
    ENGINE_FILTERS,
    MTP_FILTERS,
    SGLANG,
    TRTLLM,
    development_image,
    not_dense_campaign,
    not_of_checked_campaign,
    other_attention,
)
from pinn.data.launch_facts import facts_by_confidence, with_launch_facts
from pinn.data.silicon_filters import Filter, apply_filters
from pinn.specs.files.read_report import ReadReport, file_sha256

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
        Rows as :func:`pinn.data.silicon.read_silicon` gives them, with
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
        Rows as :func:`pinn.data.silicon.read_silicon` gives them, and the counts.

    Raises:
        PinnError: As ``read_silicon``.
    """
    vllm, of_vllm = silicon.read_silicon(path)
    others, of_others = read_engines(path)
    kept = others[others["apart"] == ""]
    (other_rows, *rules), (other_vllm, *more) = of_others.refused, of_vllm.refused
    refused = {
        "not an aggregated deployment": of_others.refused[other_rows]
        + of_vllm.refused[other_vllm]
        - of_vllm.read
    }
    for report, reasons in ((of_vllm, more), (of_others, rules)):
        for reason in reasons:
            refused[reason] = refused.get(reason, 0) + report.refused[reason]
    refused[APART] = len(others) - len(kept)
    rows = pd.concat([vllm, kept[list(silicon.CANONICAL)]], ignore_index=True)
    # Every row shown apart is of a known script.
    noted = {
        facts: of_vllm.noted.get(facts, 0) + of_others.noted.get(facts, 0)
        for facts in {**of_vllm.noted, **of_others.noted}
    }
    for facts, n in (others["facts"][others["apart"] != ""]).value_counts().items():
        noted[str(facts)] -= int(n)
    return rows, replace(of_vllm, accepted=len(rows), refused=refused, noted=noted)


def read_other_campaign(path: Path | None = None) -> tuple[pd.DataFrame, ReadReport]:
    """Read the rows of a campaign with an unknown client: a check of TPOT, nothing to train on.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's.

    Returns:
        As :func:`read_engines`. ``ttft_s`` says nothing: it holds what that client waited for.
    """
    rule = Filter("not of the other campaign, or of its TensorRT-LLM after 1.0.0rc3",
                  not_of_checked_campaign)  # fmt: skip
    return _read(path, (rule,))


def read_dense_campaign(path: Path | None = None) -> tuple[pd.DataFrame, ReadReport]:
    """Read the same campaign's vLLM rows of a dense 16-bit model: a check of TPOT, as those are.

    Its 8-bit and expert rows state loads that cannot be: some are faster than memory allows, others
    of one kind differ by a factor of two.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's.

    Returns:
        As :func:`read_engines`.
    """
    rule = Filter("not of the other campaign's dense 16-bit rows", not_dense_campaign)
    return _read(path, (rule,), ("vllm",))


def read_speculating(path: Path | None = None) -> tuple[pd.DataFrame, ReadReport]:
    """Read the rows that ran multi-token prediction and do not say so: nothing to train on.

    How many drafted tokens were accepted stands nowhere. ``drafts`` says how many were drafted
    where every launch script that fits speculates.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's.

    Returns:
        As :func:`read_engines`.
    """
    return _read(path, MTP_FILTERS)


def read_other_attention(path: Path | None = None) -> tuple[pd.DataFrame, ReadReport]:
    """Read the rows of models with linear or sparse attention: a check, nothing to fit.

    The rules are those of :func:`read_engines`; of GLM-5 every row ran on a development image.

    Args:
        path: ``silicon_sample.csv``; None for the installed package's.

    Returns:
        As :func:`read_engines`; ``apart`` is ``LINEAR`` or ``SPARSE``.
    """
    rows, report = _read(path, tuple(_FOR_OTHER_ATTENTION.get(f.drops, f) for f in ENGINE_FILTERS))
    linear = rows["model"].str.contains("Qwen", regex=False)
    return rows.assign(apart=linear.map({True: LINEAR, False: SPARSE})), report


def _released_engines_but_glm(rows: pd.DataFrame) -> pd.Series:
    return development_image(rows) & ~rows["model"].str.contains("GLM-5", regex=False)


#: Rule -> what takes its place where models with other attention are read.
_FOR_OTHER_ATTENTION: dict[Callable[[pd.DataFrame], pd.Series], Filter] = {
    development_image: Filter("nightly image, but of GLM-5", _released_engines_but_glm),
    other_attention: Filter("attention over all keys", lambda rows: ~other_attention(rows)),
}


def _read(
    path: Path | None, filters: Sequence[Filter], engines: Sequence[str] = ENGINES
) -> tuple[pd.DataFrame, ReadReport]:
    version = ""
    if path is None:
        path = silicon.package_folder() / "systems" / "silicon_sample.csv"
        version = f"{silicon.PACKAGE} {importlib.metadata.version(silicon.PACKAGE)}"
    raw = silicon.read_csv(path)
    chosen = raw[raw["backend"].isin(engines) & (raw["mode"] == "agg")]
    decoded = with_launch_facts(decode_engines(chosen), silicon.MODELS)
    clean, dropped = apply_filters(decoded, filters)
    rows = _canonical(clean)
    names = {"vllm": "vLLM", SGLANG: "SGLang", TRTLLM: "TensorRT-LLM"}
    other = f"not an aggregated {' or '.join(names[engine] for engine in engines)} deployment"
    refused = {other: len(raw) - len(chosen), **dropped}
    return rows, ReadReport(
        path.name, version, file_sha256(path), len(raw), len(rows), refused,
        facts_by_confidence(clean),
    )  # fmt: skip


def decode_engines(raw: pd.DataFrame) -> pd.DataFrame:
    """Give raw rows their real layout and one name to DeepSeek-R1; other names stay the file's.

    The dump of 2026-04-06 and the database dump store products where experts are spread: expert
    tensor and expert parallel size are both N, with ``tp_size`` N x N for tensor parallelism over N
    GPUs, or with ``tp_size`` 1 and ``attention_dp_size`` N x N for attention data parallelism over
    N. Either has the N expert-parallel. Other dumps store N itself. The database dump calls
    DeepSeek-R1 "V3" (same rows, same shapes).

    Args:
        raw: Rows of the file, with its column names.

    Returns:
        Rows with the columns that the filters read, latencies in seconds.
    """
    rows = silicon.decode(raw)
    both = rows["stored_moe_tp_size"]
    product = rows["source"].str.contains("^db-dump|2026-04-06")
    product &= (both == rows["stored_moe_ep_size"]) & (both > 1)
    tp, dp = rows["tensor_parallel_size"], rows["stored_attention_dp_size"].fillna(1).clip(1)
    return rows.assign(
        model=rows["model"].replace("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1"),
        tensor_parallel_size=tp.where(~(product & (tp == both**2)), both),
        data_parallel_size=dp.where(~(product & (dp == both**2)), both),
    )


def _canonical(rows: pd.DataFrame) -> pd.DataFrame:
    """Decoded and filtered rows, as they ran, and which of them are shown apart."""
    found = silicon.canonical(rows)
    deepseek = found["model"].str.contains("DeepSeek") & (found["gpu"] == "b300_sxm")
    apart = deepseek & (found["date"] == "2026-04-17")
    return found.assign(apart=apart.map({True: APART, False: ""}))

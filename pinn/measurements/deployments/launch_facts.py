"""Flags that launch scripts of the InferenceX benchmark passed to engines, per measured row.

``data/engines/launch_facts.csv`` contains a row for each configuration, time interval and set of
equal flags. A row lists the points (lengths, GPUs, labels, clients) at which the configuration was
run, and the script and commit from which ``scripts/import_launch_facts.py`` read its flags. The
flags of a measured row are looked up by its labels and load, not by its results. An empty cell
means that the flag was not passed, so that the engine release's default applies. In a cell,
``CONC`` stands for the number of clients, and ``+200`` for prompt plus output plus 200 tokens.
"""

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from pinn.engines.recipe import engine_rows
from pinn.measurements.deployments.observations import COLUMNS
from pinn.specs.serving import TRTLLM, VLLM

#: Confidence in a measured row's launch flags. ``known``: the row states its container image, and
#: one set of flags matches. ``likely``: the row states no image, but all scripts of that day agree.
#: ``ambiguous``: another script's flags are used, or several sets of flags match. ``unknown``: no
#: set of flags matches.
CONFIDENCES = KNOWN, LIKELY, AMBIGUOUS, UNKNOWN = ("known", "likely", "ambiguous", "unknown")

#: Engine flags (fields of ``ServingSpec``) that are columns of measured rows, as passed to the
#: engine.
SERVING_FLAGS = tuple(name for name, kind in COLUMNS.items() if kind == "passed")
#: Flags that scripts set depending on the load. They do not affect the time of a given step.
LOAD_FLAGS = ("max_num_seqs", "max_model_len")
#: Other engine settings that may affect the time of a step or its schedule.
OTHER_FLAGS = (
    "stream_interval", "fuse_attn_quant", "piecewise_tokens", "environment",
)  # fmt: skip
#: Settings of the benchmark client.
CLIENT = ("prompts_per_client", "warmups_per_client", "chat_template")
_LAYOUT = (
    "tensor_parallel_size", "data_parallel_size", "enable_dp_attention", "enable_expert_parallel",
)  # fmt: skip
#: Flags that launch scripts set by an environment variable.
_BY_VARIABLE = ("float32_matmul_precision",)
FLAGS = (
    *_LAYOUT, *(name for name in SERVING_FLAGS if name not in _BY_VARIABLE), *OTHER_FLAGS, *CLIENT,
)  # fmt: skip
#: Columns that :func:`with_launch_facts` adds to measured rows.
ADDED = (
    *SERVING_FLAGS, *OTHER_FLAGS, *CLIENT, "drafts", "image", "script", "facts", "facts_reason",
)  # fmt: skip

#: First month in which the benchmark reran a configuration whenever its flags changed. From then
#: on, a row measured in the minute or on the day of a change ran with the changed flags.
CHANGES_START_RUNS = "2025-12"

#: Environment variables that choose expert kernels. ``..._FP8=0`` together with
#: ``VLLM_MOE_USE_DEEP_GEMM=0`` selects Triton (vllm 0.17.0 fused_moe/oracle/fp8.py:
#: select_fp8_moe_backend). For Marlin see vllm 0.18.0 quantization/mxfp4.py.
_EXPERT_KERNELS = {"VLLM_MXFP4_USE_MARLIN=1": "marlin", "VLLM_USE_FLASHINFER_MOE_FP8=0": "triton"}
#: Variable that selects 8-bit activations with mxfp4 weights (vllm 0.10.2 quantization/mxfp4.py:
#: get_mxfp4_backend).
_EIGHT_BIT_ACTIVATIONS = "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1"
#: Variable that sets the precision of fp32 matrix products (vllm 0.19.0 vllm/envs.py).
_FLOAT32_PRECISION = "VLLM_FLOAT32_MATMUL_PRECISION="
#: Default of ``attention_dp_config: timeout_iters`` if ``enable_balance`` is passed but
#: ``timeout_iters`` is not (TensorRT-LLM llm_args.py: AttentionDpConfig; not verified in a
#: release).
DEFAULT_BALANCE_STEPS = 50

_IMAGE = re.compile(r"(?:; |image=)((?:vllm/|lmsysorg/|nvcr\.io)[^;]+)$")
_TIME = re.compile(r"measured=(\S+?)(?:;|$)")
_NO_CLOCK = "T00:00:00.000Z"
_RELEASE = re.compile(r"v?(\d+\.\d[^-]*)")


#: Row of the benchmark's table: decoded values by column.
Row = Mapping[Hashable, Any]


@dataclass(frozen=True)
class LaunchFact:
    """Launch flags of one row of ``launch_facts.csv``, for one of the points that it lists.

    Attributes:
        passed: Text of the row's cell, by column of ``launch_facts.csv``.
        expert_parallel: Whether the benchmark's label indicates expert parallelism.
        data_parallel: Whether the benchmark's label indicates attention data parallelism.
    """

    passed: Mapping[str, str]
    expert_parallel: bool
    data_parallel: bool

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags and their origin as a key; servers with equal flags have equal keys."""
        return tuple(self.passed[name] for name in (*FLAGS, "image", "drafts", "borrowed"))


@dataclass(frozen=True)
class Found:
    """Launch flags of a measured row, or the reason why they are unknown.

    Attributes:
        fact: Row of ``launch_facts.csv`` that matches the measured row; None if none matches.
        confidence: One of ``CONFIDENCES``.
        reason: Short reason for the confidence in the flags.
    """

    fact: LaunchFact | None
    confidence: str
    reason: str = ""


@cache
def launch_facts() -> Mapping[tuple[str, ...], tuple[LaunchFact, ...]]:
    """Return the possible flags by (engine, model, GPU, precision, lengths, GPU count, clients)."""
    found: dict[tuple[str, ...], list[LaunchFact]] = {}
    for line in engine_rows("launch_facts.csv"):
        about = (line["engine"], line["model"], line["gpu"], line["precision"])
        for point in line["points"].split("|"):
            place, clients = point.split(":")
            prompt, output, gpus, spread, data = place.split("/")
            fact = LaunchFact(line, bool(spread), bool(data))
            for each in clients.split():
                found.setdefault((*about, prompt, output, gpus, each), []).append(fact)
    return {key: tuple(facts) for key, facts in found.items()}


def find(row: Row) -> Found:
    """Look up the launch flags of a measured row of the benchmark.

    If a row states the minute of its run, the flags valid at that minute are used; if it states
    only the day, the flags of that day. If several sets of flags were valid, the set introduced by
    a change at that time is used, because the change started the run. Attention data parallelism in
    vLLM's rows is ignored, because these rows may have been measured without it
    (:func:`pinn.measurements.deployments.silicon.decode`).

    Args:
        row: Measured row with the columns ``engine``, ``model`` (its name in the catalog), ``gpu``,
            ``precision`` (the benchmark's label), ``prompt_tokens``, ``output_tokens``,
            ``concurrency``, ``tensor_parallel_size``, ``data_parallel_size``,
            ``enable_expert_parallel``, ``stored_attention_dp_size`` and ``source``.
    """
    if pd.isna(row["concurrency"]):
        return Found(None, UNKNOWN, "no number of clients")
    replicas = int(row["data_parallel_size"])
    key = (
        row["engine"], row["model"], row["gpu"], row["precision"], f"{row['prompt_tokens']:.0f}",
        f"{row['output_tokens']:.0f}", f"{row['tensor_parallel_size'] * replicas:.0f}",
        f"{row['concurrency']:.0f}",
    )  # fmt: skip
    facts = launch_facts().get(key, ())
    if not facts:
        return Found(None, UNKNOWN, "no configuration matches the measurement")
    image, time = _IMAGE.search(row["source"]), _TIME.search(row["source"])
    named = image.group(1).replace("#", "/") if image else ""
    when = time.group(1) if time else ""
    spread = bool(row["enable_expert_parallel"])
    unsure = row["engine"] == VLLM and row["stored_attention_dp_size"] > 1
    narrowed: dict[str, Callable[[LaunchFact], bool]] = {
        "of its image": lambda fact: not named or fact.passed["image"] == named,
        "at its time": lambda fact: not when or _is_valid(fact, when),
        "of its labels": lambda fact: (
            fact.expert_parallel == spread and (unsure or fact.data_parallel == (replicas > 1))
        ),
    }
    for what, fits in narrowed.items():
        facts = tuple(filter(fits, facts))
        if not facts:
            return Found(None, UNKNOWN, f"no configuration {what}")
    facts = tuple(fact for fact in facts if _started(fact, when)) or facts
    # Configurations with and without speculative decoding use the same images. A row that matches
    # both is assumed to have run without it, unless pinn.training.data.engine_deployments marks the
    # row.
    chosen = tuple(fact for fact in facts if not fact.passed["drafts"]) or facts
    first = chosen[0].passed
    if not when:
        # Without a run's time, only one fact can be known: the run used speculative decoding if all
        # matching configurations do.
        return Found(chosen[0] if first["drafts"] else None, UNKNOWN, "no time")
    confidence, reason = (KNOWN if image else LIKELY), ""
    if first["borrowed"]:
        confidence, reason = AMBIGUOUS, first["borrowed"]
    elif len({fact.flags for fact in chosen}) > 1:
        confidence, reason = AMBIGUOUS, "several sets of flags"
    return Found(chosen[0], confidence, reason)


def _is_valid(fact: LaunchFact, time: str) -> bool:
    since, until = fact.passed["since"], fact.passed["until"] or "9999"
    if time.endswith(_NO_CLOCK):
        return since[:10] <= time[:10] <= until[:10]
    return since[:16] <= time[:16] < until[:16]


def _started(fact: LaunchFact, time: str) -> bool:
    """Return whether a change of flags at the given time started the benchmark's run."""
    digits = 10 if time.endswith(_NO_CLOCK) else 16
    changed = fact.passed["own_change"] and fact.passed["since"][:digits] == time[:digits]
    return bool(changed) and time >= CHANGES_START_RUNS


def with_launch_facts(rows: pd.DataFrame, models: Mapping[str, str]) -> pd.DataFrame:
    """Return measured rows with the engines' launch flags in place of the benchmark's labels.

    Args:
        rows: Measured rows as :func:`find` accepts them, but with the benchmark file's model names.
        models: Name in the model catalog, by name in the benchmark's file.

    Returns:
        The rows with ``tensor_parallel_size``, ``data_parallel_size``, ``enable_expert_parallel``
        and ``engine_version`` as launched, and the columns ``ADDED``, which are empty strings for
        flags that were not passed. Rows without known flags keep their labels.
    """
    named = rows.assign(model=rows["model"].map(models).fillna(rows["model"]))
    ran = [_ran(find(row), row) for row in named.to_dict("records")]
    changed = pd.DataFrame(ran, index=rows.index)
    return rows.drop(columns=changed.columns, errors="ignore").join(changed)


def _ran(found: Found, row: Row) -> dict[str, object]:
    """Return the values of a measured row's launch flags, by column."""
    changed: dict[str, object] = dict.fromkeys(ADDED, "")
    changed |= {"facts": found.confidence, "facts_reason": found.reason}
    layout = ("tensor_parallel_size", "data_parallel_size", "enable_expert_parallel")
    changed |= {name: row[name] for name in (*layout, "engine_version")}
    if found.fact is None:
        return changed
    passed = found.fact.passed
    changed |= {name: passed[name] for name in ADDED if name in passed}
    clients = f"{row['concurrency']:.0f}"
    for name in ("max_num_seqs", "max_cudagraph_capture_size"):
        changed[name] = passed[name].replace("CONC", clients)
    if passed["max_model_len"].startswith("+"):
        longest = row["prompt_tokens"] + row["output_tokens"] + int(passed["max_model_len"])
        changed["max_model_len"] = f"{longest:.0f}"
    if passed["attention_dp_timeout_iters"] == "default":
        changed["attention_dp_timeout_iters"] = str(DEFAULT_BALANCE_STEPS)
    for variable in passed["environment"].split():
        changed["moe_backend"] = _EXPERT_KERNELS.get(variable, changed["moe_backend"])
        if variable.startswith(_FLOAT32_PRECISION):
            changed["float32_matmul_precision"] = variable.removeprefix(_FLOAT32_PRECISION)
    changed["engine_version"] = image_release(passed["image"])
    changed["script"] = f"{passed['script']} {passed['commit']}"
    return changed | _layout(passed, row)


def _layout(passed: Mapping[str, str], row: Row) -> dict[str, object]:
    """Return a row's tensor- and data-parallel sizes, and whether it uses expert parallelism.

    SGLang and TensorRT-LLM count all GPUs as tensor-parallel, even with attention data parallelism.
    Every configuration with expert parallelism distributes experts over all GPUs.
    """
    gpus = row["tensor_parallel_size"] * row["data_parallel_size"]
    tensor = int(passed["tensor_parallel_size"] or gpus)
    data = int(passed["data_parallel_size"] or 1)
    if passed["enable_dp_attention"]:
        tensor, data = 1, int(gpus)
    return {
        "tensor_parallel_size": tensor,
        "data_parallel_size": data,
        "enable_expert_parallel": bool(passed["enable_expert_parallel"]) and tensor * data > 1,
    }


def served_scheme(scheme: str, row: Row) -> str:
    """Return the number format that a row's engine used, such as mxfp4 with 8-bit activations.

    TensorRT-LLM's own expert kernels quantize activations to 8 bits on Blackwell. Scripts select
    these kernels by ``moe_config.backend`` TRTLLM, and only on Blackwell.

    >>> served_scheme("mxfp4", {"engine": "trtllm", "moe_backend": "TRTLLM", "environment": ""})
    'mxfp4_mxfp8'
    """
    of_trtllm = row["engine"] == TRTLLM and row["moe_backend"] == "TRTLLM"
    asked = of_trtllm or _EIGHT_BIT_ACTIVATIONS in row["environment"].split()
    return "mxfp4_mxfp8" if scheme == "mxfp4" and asked else scheme


def image_release(image: str) -> str:
    """Return the engine release in a container image's tag; if there is none, the tag.

    >>> image_release("vllm/vllm-openai:v0.19.0-cu130")
    '0.19.0'
    >>> image_release("nvcr.io/nvidia/tensorrt-llm/release:gpt-oss-dev")
    'gpt-oss-dev'
    """
    tag = image.rpartition(":")[2]
    found = _RELEASE.match(tag)
    return found.group(1) if found else tag


def facts_by_confidence(rows: pd.DataFrame) -> dict[str, int]:
    """Return the number of measured rows by confidence in their flags and by reason for doubt.

    Args:
        rows: Rows with the columns ``facts`` and ``facts_reason``.
    """
    counts = {name: int((rows["facts"] == name).sum()) for name in CONFIDENCES}
    told = rows[rows["facts_reason"] != ""]
    reasons = (told["facts"] + ": " + told["facts_reason"]).value_counts(sort=False)
    return counts | {str(why): int(n) for why, n in reasons.items()}

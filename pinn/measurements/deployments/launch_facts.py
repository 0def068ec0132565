"""Flags that the public benchmark's launch scripts passed to the engine behind a measured row.

``data/engines/launch_facts.csv`` holds it: a line per configuration, interval and set of equal
flags, with the points (lengths, GPUs, labels, clients) that it was run at and the script and commit
it was read from (``scripts/import_launch_facts.py`` makes the file). A row is looked up by what it
says of itself; what a row came out at has no say. An empty cell was not passed: the default of the
release holds. ``CONC`` is the number of clients, ``+200`` so many tokens beyond prompt and output.
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

#: How sure a row's facts are: it names the image and one set of flags fits; it names none and all
#: that was valid that day has one image and set; no script is known and another's stands in, or
#: several sets fit; nothing fits.
CONFIDENCES = KNOWN, LIKELY, AMBIGUOUS, UNKNOWN = ("known", "likely", "ambiguous", "unknown")

#: Flags of ``ServingSpec``, by its names, that lines hold as they were passed.
SERVING_FLAGS = tuple(name for name, kind in COLUMNS.items() if kind == "passed")
#: Flags that scripts set by the load and that no coefficient depends on.
LOAD_FLAGS = ("max_num_seqs", "max_model_len")
#: What else was passed that can change a step or what waits for it.
OTHER_FLAGS = (
    "async_scheduling", "stream_interval", "fuse_attn_quant", "piecewise_tokens", "environment",
)  # fmt: skip
#: What the client did.
CLIENT = ("prompts_per_client", "warmups_per_client", "chat_template")
_LAYOUT = (
    "tensor_parallel_size", "data_parallel_size", "enable_dp_attention", "enable_expert_parallel",
)  # fmt: skip
FLAGS = (*_LAYOUT, *SERVING_FLAGS, *OTHER_FLAGS, *CLIENT)
#: Columns that :func:`with_launch_facts` adds to rows, beside those that it corrects.
ADDED = (
    *SERVING_FLAGS, *OTHER_FLAGS, *CLIENT, "drafts", "image", "script", "facts", "facts_reason",
)  # fmt: skip

#: From this month on a change to a configuration started its run: rows of its minute or day ran
#: after it.
CHANGES_START_RUNS = "2025-12"

#: Environment variables that choose kernels of the experts. ``..._FP8=0`` beside
#: ``VLLM_MOE_USE_DEEP_GEMM=0`` leaves Triton's (vllm 0.17.0 fused_moe/oracle/fp8.py:
#: select_fp8_moe_backend); Marlin: vllm 0.18.0 quantization/mxfp4.py.
_EXPERT_KERNELS = {"VLLM_MXFP4_USE_MARLIN=1": "marlin", "VLLM_USE_FLASHINFER_MOE_FP8=0": "triton"}
#: Activations of eight bits beside weights in mxfp4 (vllm 0.10.2 quantization/mxfp4.py:
#: get_mxfp4_backend).
_EIGHT_BIT_ACTIVATIONS = "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1"
#: ``attention_dp_config: timeout_iters`` where only ``enable_balance`` is passed (TensorRT-LLM
#: llm_args.py: AttentionDpConfig, not read in a release).
DEFAULT_BALANCE_STEPS = 50

_IMAGE = re.compile(r"(?:; |image=)((?:vllm/|lmsysorg/|nvcr\.io)[^;]+)$")
_TIME = re.compile(r"measured=(\S+?)(?:;|$)")
_NO_CLOCK = "T00:00:00.000Z"
_RELEASE = re.compile(r"v?(\d+\.\d[^-]*)")


#: A decoded row of the benchmark's table, by its columns.
Row = Mapping[Hashable, Any]


@dataclass(frozen=True)
class LaunchFact:
    """One line of the table at one of its points.

    Attributes:
        passed: The line, by its columns.
        expert_parallel: What the benchmark's label says of expert parallelism.
        data_parallel: What it says of attention data parallelism.
    """

    passed: Mapping[str, str]
    expert_parallel: bool
    data_parallel: bool

    @property
    def flags(self) -> tuple[str, ...]:
        """Return flags, image and substitutes as one key: equal for equal servers."""
        return tuple(self.passed[name] for name in (*FLAGS, "image", "drafts", "borrowed"))


@dataclass(frozen=True)
class Found:
    """The flags a row ran with, or why nobody knows.

    Attributes:
        fact: The line; None where none fits.
        confidence: One of ``CONFIDENCES``.
        reason: In a few words.
    """

    fact: LaunchFact | None
    confidence: str
    reason: str = ""


@cache
def launch_facts() -> Mapping[tuple[str, ...], tuple[LaunchFact, ...]]:
    """The table by engine, model, GPU, label, prompt, output, GPUs and clients, as texts."""
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
    """Look a row up.

    A row with a clock time ran what was valid at that minute, one with a day alone what was valid
    on that day; of several the one whose own configuration changed then. vLLM's rows stored
    with attention data parallelism may have run without
    (:func:`pinn.measurements.deployments.silicon.decode`), so that label chooses nothing there.

    Args:
        row: ``engine``, ``model`` (of the catalogue), ``gpu``, ``precision`` (the label), lengths,
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
    # Configurations with and without speculation share images; a row that both fit ran plainly,
    # unless pinn.training.data.engine_deployments knows better.
    chosen = tuple(fact for fact in facts if not fact.passed["drafts"]) or facts
    first = chosen[0].passed
    if not when:
        # What all of a point's configurations have in common is that they speculate, or nothing.
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
    """Whether a change to the row's own configuration started its run: of its minute or day."""
    digits = 10 if time.endswith(_NO_CLOCK) else 16
    changed = fact.passed["own_change"] and fact.passed["since"][:digits] == time[:digits]
    return bool(changed) and time >= CHANGES_START_RUNS


def with_launch_facts(rows: pd.DataFrame, models: Mapping[str, str]) -> pd.DataFrame:
    """Decoded rows with what really ran in place of their labels.

    Args:
        rows: As :func:`find` reads them, with the file's names of models.
        models: Name in the file -> name in the catalogue.

    Returns:
        The rows with ``tensor_parallel_size``, ``data_parallel_size``, ``enable_expert_parallel``
        and ``engine_version`` as they ran, and the columns ``ADDED``, texts that are empty where
        nothing was passed. Rows that no line fits keep their labels.
    """
    named = rows.assign(model=rows["model"].map(models).fillna(rows["model"]))
    ran = [_ran(find(row), row) for row in named.to_dict("records")]
    changed = pd.DataFrame(ran, index=rows.index)
    return rows.drop(columns=changed.columns, errors="ignore").join(changed)


def _ran(found: Found, row: Row) -> dict[str, object]:
    """Return a row's columns with its launch flags resolved."""
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
    changed["engine_version"] = image_release(passed["image"])
    changed["script"] = f"{passed['script']} {passed['commit']}"
    return changed | _layout(passed, row)


def _layout(passed: Mapping[str, str], row: Row) -> dict[str, object]:
    """GPUs of a replica's layers, replicas of the attention, and whether experts are whole.

    SGLang and TensorRT-LLM count all GPUs as tensor parallel ones; every configuration with expert
    parallelism spreads experts over all.
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
    """Number format that ran: mxfp4 with eight-bit activations where that was asked for.

    TensorRT-LLM's own expert kernels quantize activations so on Blackwell; ``moe_config.backend``
    TRTLLM names them, which no script passes elsewhere.

    >>> served_scheme("mxfp4", {"engine": "trtllm", "moe_backend": "TRTLLM", "environment": ""})
    'mxfp4_mxfp8'
    """
    of_trtllm = row["engine"] == TRTLLM and row["moe_backend"] == "TRTLLM"
    asked = of_trtllm or _EIGHT_BIT_ACTIVATIONS in row["environment"].split()
    return "mxfp4_mxfp8" if scheme == "mxfp4" and asked else scheme


def image_release(image: str) -> str:
    """Release that an image's tag names, or the tag.

    >>> image_release("vllm/vllm-openai:v0.19.0-cu130")
    '0.19.0'
    >>> image_release("nvcr.io/nvidia/tensorrt-llm/release:gpt-oss-dev")
    'gpt-oss-dev'
    """
    tag = image.rpartition(":")[2]
    found = _RELEASE.match(tag)
    return found.group(1) if found else tag


def facts_by_confidence(rows: pd.DataFrame) -> dict[str, int]:
    """Rows by confidence, and by reason where facts are ambiguous or unknown.

    Args:
        rows: With ``facts`` and ``facts_reason``.
    """
    counts = {name: int((rows["facts"] == name).sum()) for name in CONFIDENCES}
    told = rows[rows["facts_reason"] != ""]
    reasons = (told["facts"] + ": " + told["facts_reason"]).value_counts(sort=False)
    return counts | {str(why): int(n) for why, n in reasons.items()}

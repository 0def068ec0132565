"""Patterns of the lines in which engines log GPU memory at start.

Lines of the following releases are taken from their source code: vLLM 0.10.2, 0.11.0, 0.15.1,
0.20.0, 0.22.1, 0.31.0 and 0.33.0; SGLang 0.4.9.post6, 0.5.3.post1, 0.5.12, 0.5.19 and 0.5.23. Lines
of older vLLM releases and of TensorRT-LLM are taken from published logs. ``GB`` means 2^30 bytes in
all engines' logs (SGLang: ``GB = 1024 * 1024 * 1024`` in mem_cache/memory_pool.py).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pinn.specs.serving import SGLANG, TRTLLM, VLLM
from pinn.units import GIB


@dataclass(frozen=True)
class Line:
    """Pattern of a line in an engine's log.

    Attributes:
        engine: Engine that writes the line.
        words: Text contained in every such line, which is searched first for speed.
        pattern: Regular expression with a named group for each value.
    """

    engine: str
    words: str
    pattern: re.Pattern[str]


#: Pattern groups whose values are whole numbers, other plain numbers, and text. All other groups
#: are memory sizes.
COUNTS = frozenset({
    "kv_tokens", "blocks", "max_model_len", "tensor_parallel_size", "longest_fitting",
    "kv_cache_exact",
})  # fmt: skip
PLAIN = frozenset({"max_concurrency", "memory_share"})
TEXTS = frozenset({"release"})

#: Values that a rank logs several times, such as for target and draft model, and that are summed.
ADDED = frozenset({"weights", "kv_cache", "graphs_taken"})

_NUMBER = r"-?\d{1,15}(?:\.\d{1,15})?"
_COUNT = r"\d[\d,]{0,18}"


def _line(engine: str, words: str, pattern: str) -> Line:
    """Build a line's pattern: ``#name`` matches a number as group ``name``, ``@name`` a count."""
    kinds = {"#": _NUMBER, "@": _COUNT}
    spelled = re.sub(r"([#@])(\w+)", lambda m: f"(?P<{m[2]}>{kinds[m[1]]})", pattern)
    return Line(engine, words, re.compile(spelled))


#: Line with the tokens of the KV cache. The device (GPU, CPU or XPU) precedes this text in the line
#: (vLLM 0.31.0 vllm/v1/core/kv_cache_utils.py: update_kv_cache_capacity).
VLLM_KV_TOKENS = _line(VLLM, "KV cache size: ", r"\bKV cache size: @kv_tokens tokens")

_VLLM = [
    # Engine release, logged by vllm/v1/engine/core.py, then by the API server, and from 0.15 on in
    # its banner.
    ("LLM engine (v", r"Initializing an? (?:V[01] )?LLM engine \(v(?P<release>[^)\s]+)\)"),
    ("server version", r"vLLM (?:API )?server version (?P<release>\d[^\s,]*)"),
    ("  version ", "█  version (?P<release>\\d\\S*)"),
    # Logged by vllm/v1/worker/gpu_model_runner.py: load_model; before 0.8 with the words "Loading
    # model weights took".
    ("took", r"(?:Loading model weights|Model loading) took #weights Gi?B"),
    ("CUDA graph memory", r"Estimated CUDA graph memory: #graphs_estimated GiB"),
    ("Graph capturing", r"Graph capturing finished in \d+ secs, took #graphs_taken GiB"),
    # Logged by vllm/v1/worker/gpu_worker.py: determine_available_memory.
    ("KV cache memory", r"Available KV cache memory: #kv_cache GiB"),
    ("KV Cache as", r"reserved #kv_cache ?GiB memory for KV Cache as specified"),
    # Logged by vllm/v1/worker/gpu_worker.py: compile_or_warm_up_model. Up to 0.22 the weights are
    # listed separately from other non-torch memory, from 0.31 on in the same entry.
    ("Free memory on device", r"Free memory on device \S* ?\(#free_before_load/#visible GiB\)"),
    ("Desired GPU", r"Desired GPU memory utilization is \(#memory_share, "),
    ("for weight", r"Actual usage is #weights GiB for weight"),
    ("for consumed", r"Actual usage is #consumed GiB for consumed memory"),
    ("peak activation", r" #activation_peak GiB for peak activation"),
    ("non-torch memory", r" #non_torch GiB for non-torch memory"),
    ("CUDAGraph memory", r" #graphs_taken GiB for CUDAGraph memory"),
    ("in use is", r"Current kv cache memory in use is @kv_cache_exact bytes"),
    # Logged by vllm/v1/core/kv_cache_utils.py, from 0.33 on also by kv_cache_planning.py.
    ("Maximum concurrency", r"concurrency for @max_model_len tokens per request: #max_concurrency"),
    ("num_gpu_blocks_override=", r"with num_gpu_blocks_override=@blocks"),
    # Logged by vllm/worker/worker.py: determine_num_available_blocks (V0 engine, up to 0.10).
    ("total_gpu_memory", r"total_gpu_memory \(#visible ?GiB\)"),
    ("gpu_memory_utilization (", r"gpu_memory_utilization \(#memory_share\)"),
    ("model weights take", r"model weights take #weights ?GiB"),
    ("non_torch_memory takes", r"non_torch_memory takes #non_torch ?GiB"),
    ("activation peak", r"activation peak memory takes #activation_peak ?GiB"),
    ("reserved for KV Cache is", r"reserved for KV Cache is #kv_cache ?GiB"),
    # Logged by vllm/executor/executor_base.py: initialize_cache (V0 engine, up to 0.10).
    ("# CPU blocks", r"# \w+ blocks: @blocks, # CPU blocks"),
    # Logged at debug level by vllm/utils/mem_utils.py: MemoryProfilingResult.
    ("Memory profiling takes", r"torch peak memory increase: #activation_peak ?GiB"),
    ("non-torch forward", r"non-torch forward increase memory: #non_torch ?GiB"),
    # The user's flags, logged as "non-default args", in the engine's config, or in a command.
    ("gpu_memory_utilization", r"gpu_memory_utilization['\"]?(?:=|: )#memory_share"),
    ("tensor_parallel_size", r"tensor_parallel_size['\"]?(?:=|: )@tensor_parallel_size"),
]  # fmt: skip
_SGLANG = [
    # Logged by srt/entrypoints/engine.py; from 0.5.19 on as a dictionary.
    ("mem_fraction_static", r"mem_fraction_static['\"]?(?:=|: )#memory_share"),
    ("tp_size", r"\btp_size['\"]?(?:=|: )@tensor_parallel_size"),
    # Logged by srt/model_executor/model_runner.py: load_model.
    ("Load weight begin", r"Load weight begin\..*\bavail mem=#free_before_load GB"),
    ("Load weight end", r"Load weight end\..*\bmem usage=#weights GB"),
    ("Load weight end", r"Load weight end\..*\bavail mem=#free_after_load GB"),
    # Logged by srt/mem_cache/memory_pool.py, and from 0.5.19 on by kv_pool_runtime.py. There,
    # graphs are logged before the KV pool, and the pool's logged size is an upper bound (its
    # address range).
    ("llocated", r"[Cc]ache (?:is )?allocated\..*\bK size: #kv_cache GB, V size: #kv_values GB"),
    ("llocated", r"[Cc]ache (?:is )?allocated\..*\bKV size: #kv_cache GB"),
    # Logged by srt/managers/scheduler.py.
    ("max_total_num_tokens=", r"\bmax_total_num_tokens=@kv_tokens, (?:chunked|max)_prefill"),
    ("context_len=", r"max_running_requests=\d+, context_len=@max_model_len\b"),
    # Logged by srt/model_executor/model_runner.py, from 0.5.19 on by cuda_graph_setup.py: graphs
    # of decodes, of prompts and of drafts.
    ("raph end.", r"Capture .*graph end\..*\bmem usage=#graphs_taken GB"),
]  # fmt: skip
_TRTLLM = [
    ("TensorRT-LLM version", r"TensorRT-LLM version:? (?P<release>\d\S*)"),
    ("paged KV cache", r"Allocated #kv_cache GiB for max tokens in paged KV cache \(@kv_tokens\)"),
    ("primary pool", r"[Bb]locks in KV cache primary pool: @blocks"),
    ("is set", r"calculating max tokens: .*fraction is set #memory_share"),
    ("_size", r"\b(?:tensor_parallel|tp)_size['\"]?(?:=|: )@tensor_parallel_size"),
    ("free_gpu_memory_fraction", r"free_gpu_memory_fraction['\"]?(?:=|: )#memory_share"),
]  # fmt: skip
_OF_ENGINES = {VLLM: _VLLM, SGLANG: _SGLANG, TRTLLM: _TRTLLM}
LINES = [VLLM_KV_TOKENS, *(_line(e, *pair) for e, pairs in _OF_ENGINES.items() for pair in pairs)]

#: Lines of a failed start, some of which state the required and available memory. Sources: vLLM's
#: check_enough_kv_cache_memory and load_model, the V0 engine's raise_if_cache_size_invalid and
#: request_memory, SGLang's pool_configurator.py, and PyTorch.
_FAILED = [
    (VLLM, "No available memory", r"No available memory for the cache blocks"),
    (VLLM, "To serve at least one", r"To serve at least one request with the models?'s max seq len "
     r"\(@max_model_len\), \(#needed GiB KV cache is needed, which is larger than the available KV "
     r"cache memory \(#available GiB\)(?:.*?maximum model length is @longest_fitting)?"),
    (VLLM, "max seq len (", r"The model's max seq len \(@max_model_len\) is larger than the "
     r"maximum number of tokens that can be stored in KV cache \(@longest_fitting\)"),
    (VLLM, "Failed to load model", r"Failed to load model - not enough GPU memory"),
    (VLLM, "is less than desired GPU", r"Free memory on device .*is less than desired GPU memory"),
    (SGLANG, "Not enough memory.", r"Not enough memory\. Please try to increase --mem-fraction"),
    ("", "CUDA out of memory", r"CUDA out of memory"),
]  # fmt: skip
FAILURES = [_line(*each) for each in _FAILED]

#: Text in the log line by which a server reports that it is ready. An out-of-memory error after
#: this line does not mean a failed start.
READY = ("Application startup complete", "The server is fired up and ready to roll")

#: Pattern of the first line of a server's start. If a log contains several starts, the last one is
#: used.
_BEGINS = re.compile(r"vLLM (?:API )?server version |█  version \d|\bserver_args=")

_COLOURS = re.compile(r"\x1b\[[\d;]*m")
#: Prefixes of log lines that name the rank: ``(Worker_TP0 pid=7)`` and ``(EngineCore_DP1 pid=9)``
#: in vLLM, ``[2026-01-01 10:00:00 DP0 TP3]`` in SGLang, ``[RANK 2]`` in TensorRT-LLM.
_RANK = re.compile(r"\(([A-Z]\w+) (?:pid|rank)=|\[[\d\- :.]+((?: [A-Z_]+\d+)+)\]|\[(RANK \d+)\]")
#: Engine by word in its log, used if no line about memory identifies the engine.
_NAMES = {"sglang": SGLANG, "tensorrt_llm": TRTLLM, "TensorRT-LLM": TRTLLM, "vllm": VLLM}


@dataclass(frozen=True)
class Fact:
    """One value in a log line: its engine, rank and name, and the value in bytes or as logged."""

    engine: str
    rank: str
    name: str
    value: float | str


def facts_of(line: str) -> Iterator[Fact]:
    """Yield the values of GPU memory and related flags in a log line."""
    line = _COLOURS.sub("", line)
    rank = _RANK.search(line)
    process = "".join(filter(None, rank.groups())).strip() if rank else ""
    for known in LINES:
        if known.words not in line or (found := known.pattern.search(line)) is None:
            continue
        values = values_of(found)
        if (rest := values.pop("kv_values", None)) is not None:
            values["kv_cache"] = float(values["kv_cache"]) + float(rest)
        for name, value in values.items():
            yield Fact(known.engine, process, name, value)


def values_of(found: re.Match[str]) -> dict[str, float | str]:
    """Return a matched pattern's values by name: counts, numbers, text, or memory in bytes."""
    values: dict[str, float | str] = {}
    for name, text in found.groupdict().items():
        if text is None:
            continue
        if name in TEXTS:
            values[name] = text
        elif name in COUNTS:
            values[name] = int(text.replace(",", ""))
        else:
            values[name] = float(text) * (1 if name in PLAIN else GIB)
    return values


def failure_in(line: str) -> tuple[str, str, dict[str, float | str]] | None:
    """Return (engine, message, numbers) of a line that reports a failed start; otherwise None."""
    for known in FAILURES:
        if known.words in line and (found := known.pattern.search(line)):
            return known.engine, line[found.start() :].strip(), values_of(found)
    return None


def begins(line: str) -> bool:
    """Return whether a log line is the first line of a server's start."""
    return bool(_BEGINS.search(_COLOURS.sub("", line)))


def named_engine(line: str) -> str:
    """Return the engine that a log line names; empty if it names none."""
    return next((engine for name, engine in _NAMES.items() if name in line), "")

"""Reader of the GPU memory that an engine logs at start."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from pinn.common.documents import MOST_LOG_BYTES
from pinn.errors import PinnError
from pinn.memory.startup_lines import (
    ADDED,
    READY,
    Fact,
    begins,
    facts_of,
    failure_in,
    named_engine,
)
from pinn.specs.serving import SGLANG, TRTLLM

#: Maximum length of a log line in characters; longer lines are read in pieces.
_MOST_LINE = 2**20


@dataclass(frozen=True)
class StartFailure:
    """Reason why a server did not start.

    Attributes:
        message: Log text, beginning with the reason.
        max_model_len: Tokens of the longest request, which the cache must be able to hold.
        needed: Bytes needed for the longest request's keys and values.
        available: Bytes that were available for the KV cache.
        longest_fitting: Tokens of the longest request that would have fitted.
    """

    message: str
    max_model_len: int | None = None
    needed: float | None = None
    available: float | None = None
    longest_fitting: int | None = None


@dataclass(frozen=True)
class StartupLog:
    """Values in the log of one start: bytes on one GPU, None for values that are not logged.

    If several ranks log a value, the minimum is used for the KV cache and free memory, and the
    maximum for other values. The rank with the least memory determines the cache of all ranks
    (``vllm/v1/core/kv_cache_utils.py: get_kv_cache_configs`` uses the minimum number of blocks).

    Attributes:
        engine: ``vllm``, ``sglang`` or ``trtllm``; empty if the log does not identify the engine.
        release: Release as the log spells it.
        visible: Total memory that CUDA reports.
        free_before_load: Memory that is free before weights are loaded.
        memory_share: Share of GPU memory that the user requested, or that the engine logs.
        tensor_parallel_size: Tensor-parallel size that the user requested.
        weights: Memory used by loading the model and, if there is one, the draft model.
        non_torch: Memory of CUDA and libraries that PyTorch does not allocate.
        activation_peak: Activations of the largest step. vLLM since 0.31 logs them with its
            estimate of graphs, which is subtracted here.
        graphs_estimated: CUDA graphs as estimated before capture.
        graphs_taken: CUDA graphs as measured after capture.
        kv_cache: Memory of keys and values; negative if weights and activations exceed the memory
            share.
        kv_tokens: Tokens in the KV cache.
        blocks: Number of blocks of the cache, including the null block; None if not logged.
        max_concurrency: Number of requests of ``max_model_len`` tokens that fit simultaneously.
        max_model_len: Maximum context of a request, in tokens.
        failure: Reason why the server did not start; None if it started.
    """

    engine: str = ""
    release: str | None = None
    visible: float | None = None
    free_before_load: float | None = None
    memory_share: float | None = None
    tensor_parallel_size: int | None = None
    weights: float | None = None
    non_torch: float | None = None
    activation_peak: float | None = None
    graphs_estimated: float | None = None
    graphs_taken: float | None = None
    kv_cache: float | None = None
    kv_tokens: int | None = None
    blocks: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    failure: StartFailure | None = None


_FIELDS = {f.name for f in fields(StartupLog)}
#: Names of logged values. ``_FIRST``: the first value in the log is used, because flags are
#: repeated. ``_LEAST``: the minimum over ranks is used. Of all other values, the maximum is used.
_FIRST = {"release", "memory_share", "tensor_parallel_size", "max_model_len"}
_FREE = {"free_before_load", "free_after_load"}
_LEAST = {*_FREE, "kv_cache", "kv_cache_exact", "kv_tokens", "blocks", "max_concurrency"}
#: Names of logged flags, which alone do not prove that a file is a start-up log.
_ASKED = {"release", "memory_share", "tensor_parallel_size"}


def read_startup_log(path: Path) -> StartupLog:
    """Return the values that a server logged at start, from the last start in the file.

    Raises:
        PinnError: If the file cannot be read, or has no line about memory.
    """
    engines, facts, failure = Counter[str](), list[Fact](), None
    ready, read = False, 0
    for line in _lines(path):
        read += 1
        if begins(line) and (failure or any(fact.name not in _ASKED for fact in facts)):
            facts, failure, ready = [], None, False
        facts += facts_of(line)
        ready = ready or any(word in line for word in READY)
        if failure is None and not ready:
            failure = failure_in(line)
        if engine := named_engine(line):
            engines[engine] += 1
    if failure is None and not any(fact.name not in _ASKED for fact in facts):
        raise PinnError(
            f"{path}: none of {read:,} lines states the GPU memory that vLLM, "
            "SGLang or TensorRT-LLM took at start: give the log from the "
            "server's first line on, at level INFO"
        )
    if failure is None:
        return _log(facts, engines)
    engine, message, numbers = failure
    found = _log(facts, Counter({engine: 1}) if engine else engines)
    return replace(found, failure=StartFailure(message, **numbers))  # type: ignore[arg-type]


def _lines(path: Path) -> Iterable[str]:
    """Yield the lines of a log file, up to the maximum size that is read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            left = MOST_LOG_BYTES
            while left > 0 and (line := file.readline(_MOST_LINE)):
                left -= len(line)
                yield line
    except OSError as error:
        raise PinnError(
            f"{path}: cannot be read ({error.strerror or error}): give the file that the engine's "
            "log was written to"
        ) from error


def _log(facts: list[Fact], engines: Counter[str]) -> StartupLog:
    """Return the logged values of the engine to which most of the values belong."""
    told = Counter(fact.engine for fact in facts if fact.name not in _ASKED)
    known = told or Counter(fact.engine for fact in facts) or engines
    engine = known.most_common(1)[0][0] if known else ""
    ranks = defaultdict[str, dict[str, list[float | str]]](lambda: defaultdict(list))
    for fact in facts:
        if fact.engine == engine:
            ranks[fact.name][fact.rank].append(fact.value)
    found = {name: _of_ranks(engine, name, of) for name, of in ranks.items()}
    return StartupLog(engine, **_settled(found))  # type: ignore[arg-type]


def _of_ranks(engine: str, name: str, values: Mapping[str, list[float | str]]) -> float | str:
    """Return one value for all ranks, from all values that the ranks logged."""
    listed = [value for of_rank in values.values() for value in of_rank]
    if name in _FIRST:
        return listed[0]
    numbers = [[float(value) for value in of_rank] for of_rank in values.values()]
    # TensorRT-LLM first runs with a small cache to determine the final cache size, so the last
    # value is used.
    if engine == TRTLLM:
        return numbers[-1][-1]
    if engine == SGLANG and name in _FREE:  # the draft model is loaded after the target model
        return min(of_rank[0] for of_rank in numbers)
    if engine == SGLANG and name in ADDED:
        numbers = [[sum(of_rank)] for of_rank in numbers]
    flat = [value for of_rank in numbers for value in of_rank]
    return min(flat) if name in _LEAST else max(flat)


def _settled(found: dict[str, float | str]) -> dict[str, float | str]:
    """Convert logged values to fields of ``StartupLog``; split values that are logged as a sum."""
    values = dict(found)
    if "kv_cache_exact" in values:
        values["kv_cache"] = values["kv_cache_exact"]
    if "weights" not in values and values.keys() >= _FREE:  # SGLang before 0.4.9 logs no weights
        free, after = float(values["free_before_load"]), float(values["free_after_load"])
        values["weights"] = free - after
    if "consumed" in values:  # releases that log this value count estimated graphs as activations
        if "weights" in values:
            values["non_torch"] = float(values["consumed"]) - float(values["weights"])
        peak, graphs = values.get("activation_peak"), values.get("graphs_estimated", 0.0)
        if peak is not None:
            values["activation_peak"] = max(float(peak) - float(graphs), 0.0)
    for name in ("kv_tokens", "blocks", "max_model_len", "tensor_parallel_size"):
        if name in values:
            values[name] = int(values[name])
    return {name: value for name, value in values.items() if name in _FIELDS}

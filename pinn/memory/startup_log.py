"""GPU memory in an engine's log at start."""

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

#: A longer line is read in pieces.
_MOST_LINE = 2**20


@dataclass(frozen=True)
class StartFailure:
    """Reason why a server did not start.

    Attributes:
        message: Text of the log, from the reason on.
        max_model_len: Tokens of the request that the cache has to hold.
        needed: Memory that its keys and values take, in bytes.
        available: Memory that the cache would have had, in bytes.
        longest_fitting: Tokens of the longest request that would have fitted.
    """

    message: str
    max_model_len: int | None = None
    needed: float | None = None
    available: float | None = None
    longest_fitting: int | None = None


@dataclass(frozen=True)
class StartupLog:
    """Values of one start in a log; memory in bytes on one GPU, None where the log has no value.

    Over several ranks, the least cache and the most of all other values count. The rank with the
    least room sizes the cache of all (``vllm/v1/core/kv_cache_utils.py: get_kv_cache_configs``,
    which takes the smallest number of blocks).

    Attributes:
        engine: ``vllm``, ``sglang`` or ``trtllm``; empty where the log does not tell.
        release: Release as the log spells it.
        visible: Total memory that CUDA reports.
        free_before_load: Free memory before weights are loaded.
        memory_share: Value of the flag, as asked for or as the engine repeats it.
        tensor_parallel_size: Tensor-parallel size as asked for.
        weights: Memory taken by loading the model, and a draft where there is one.
        non_torch: Memory of CUDA and libraries, which PyTorch does not allocate.
        activation_peak: Activations of the largest step. Releases of vLLM from 0.31 on include
            their estimate of graphs, which is subtracted again here.
        graphs_estimated: CUDA graphs as estimated before capture.
        graphs_taken: CUDA graphs as captured.
        kv_cache: Memory of keys and values; below 0 where weights and activations exceed the share.
        kv_tokens: Tokens in the KV cache.
        blocks: Blocks of the cache, null block included; only where the log has a count of them.
        max_concurrency: Requests of ``max_model_len`` tokens that fit.
        max_model_len: Tokens of such a request.
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
#: Names whose first value counts, as flags are repeated, and whose least does; else the largest.
_FIRST = {"release", "memory_share", "tensor_parallel_size", "max_model_len"}
_FREE = {"free_before_load", "free_after_load"}
_LEAST = {*_FREE, "kv_cache", "kv_cache_exact", "kv_tokens", "blocks", "max_concurrency"}
#: Names of flags, which alone do not show that a file is a log of a start.
_ASKED = {"release", "memory_share", "tensor_parallel_size"}


def read_startup_log(path: Path) -> StartupLog:
    """Read the start of a server's log; of several starts in a file, the last.

    Raises:
        PinnError: If the file cannot be read, or has no line on memory.
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
    """Yield the lines of a file's beginning, up to the largest size that is read."""
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
    """Return the values of the engine that most of them belong to."""
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
    """Return one value of those that the ranks log."""
    listed = [value for of_rank in values.values() for value in of_rank]
    if name in _FIRST:
        return listed[0]
    numbers = [[float(value) for value in of_rank] for of_rank in values.values()]
    if engine == TRTLLM:  # a first pass with a small cache finds the size of the second's
        return numbers[-1][-1]
    if engine == SGLANG and name in _FREE:  # the draft is loaded after the target
        return min(of_rank[0] for of_rank in numbers)
    if engine == SGLANG and name in ADDED:
        numbers = [[sum(of_rank)] for of_rank in numbers]
    flat = [value for of_rank in numbers for value in of_rank]
    return min(flat) if name in _LEAST else max(flat)


def _settled(found: dict[str, float | str]) -> dict[str, float | str]:
    """Return values as fields: counts whole, and combined values of a release separated."""
    values = dict(found)
    if "kv_cache_exact" in values:
        values["kv_cache"] = values["kv_cache_exact"]
    if "weights" not in values and values.keys() >= _FREE:  # SGLang before 0.4.9
        free, after = float(values["free_before_load"]), float(values["free_after_load"])
        values["weights"] = free - after
    if "consumed" in values:  # releases that log it count estimated graphs as activations
        if "weights" in values:
            values["non_torch"] = float(values["consumed"]) - float(values["weights"])
        peak, graphs = values.get("activation_peak"), values.get("graphs_estimated", 0.0)
        if peak is not None:
            values["activation_peak"] = max(float(peak) - float(graphs), 0.0)
    for name in ("kv_tokens", "blocks", "max_model_len", "tensor_parallel_size"):
        if name in values:
            values[name] = int(values[name])
    return {name: value for name, value in values.items() if name in _FIELDS}

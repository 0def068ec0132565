"""Benchmark run: one load on one server, measured by any tool."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from pinn.common import Json
from pinn.common.numbers import number
from pinn.engines.recipe import release
from pinn.errors import PinnError
from pinn.specs.flags import FlagValue
from pinn.specs.serving import SGLANG, TRTLLM, VLLM

# Engine flags from the engine's name and version in a file.

#: Engine by part of its name in lower case. InferenceX writes ``trt``, ``dynamo-trt`` and
#: ``dynamo-sglang``. SGLang's clients write ``sglang-oai-chat`` and ``trt``.
_ENGINES = {"vllm": VLLM, "sglang": SGLANG, "trt": TRTLLM, "tensorrt": TRTLLM}


def engine_flags(spelled: str) -> dict[str, str]:
    """Return the flags encoded in an engine's name: ``engine`` and, if known, ``engine_version``.

    The result is empty for an engine that is not supported.

    >>> engine_flags("sglang v0.5.5-cu129-amd64")
    {'engine': 'sglang', 'engine_version': '0.5.5'}
    >>> engine_flags("dynamo-trt 0.6.1"), engine_flags("llm-d 0.3.1")
    ({'engine': 'trtllm'}, {})
    """
    name, _, version = spelled.lower().partition(" ")
    engine = next((ours for part, ours in _ENGINES.items() if part in name), None)
    if engine is None:
        return {}
    try:
        # Images of the Dynamo front end are tagged with Dynamo's release, not the engine's.
        numbers = () if name.startswith("dynamo") else release(version)
    except PinnError:
        numbers = ()
    # Engines built from a branch have the version 0.0.0.
    if not any(numbers):
        return {"engine": engine}
    return {"engine": engine, "engine_version": ".".join(map(str, numbers))}


# One measured point of a serving benchmark of any tool: ``BenchmarkRun``.
#
# Readers convert every file into this type, in SI units. ``benchmarks.loads`` converts the load
# into a workload for the simulator, and computes the metrics of a simulated run:
#
#     runs, report = read_benchmarks(paths, given)           pinn.measurements.benchmarks.read
#     target = benchmark_target(runs, model, gpu, flags)     pinn.measurements.traces.ingestion
#     run_ = simulate(target.deployment(), benchmark_workload(run), latency)
#     benchmark_figures(run_, run.figures)                   the same names as run.figures

#: Latencies measured by a client: ``ttft`` is from send to first token, ``tpot`` is (E2E - TTFT) /
#: (output tokens - 1) of each request, ``itl`` pools the inter-token gaps of all requests, and
#: ``e2e`` is from send to last token.
LATENCIES = ("ttft", "tpot", "itl", "e2e")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
#: Assumed limits of overload. A server counts as overloaded if at least the share ``_MOST_FAILED``
#: of its requests failed, because the latencies are then those of a lighter load. It also counts as
#: overloaded if it served less than the share ``_KEPT_UP`` of the expected requests per second.
_MOST_FAILED, _KEPT_UP = 0.05, 0.9
#: Ratio of mean ITL to mean TPOT above which a streamed chunk is assumed to contain several tokens.
#: The ratio is about 1 if each chunk contains one token.
_SEVERAL_TOKENS = 1.5
THROUGHPUTS = ("requests_per_s", "output_tokens_per_s")

#: Allowed names in ``BenchmarkRun.figures``: ``ttft_mean_s``, ..., ``output_tokens_per_s``.
FIGURES = tuple(f"{name}_{each}_s" for name in LATENCIES for each in STATISTICS) + THROUGHPUTS


@dataclass(frozen=True)
class Lengths:
    """Token counts of the prompts or outputs of requests.

    Attributes:
        mean: Mean number of tokens.
        low: Minimum of a uniform distribution, or lower bound of a normal distribution; None for
            lengths equal to the mean.
        high: Maximum of a uniform distribution, or upper bound of a normal distribution; None with
            ``low``.
        std: Standard deviation of normally distributed lengths, in tokens; 0 for other
            distributions.
        each: Length of every request in the order of sending, if the file lists them; overrides the
            distribution.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    std: float = 0.0
    each: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and self.mean >= 1):
            raise PinnError(f"the mean length must be at least 1 token, got {self.mean}")

    @staticmethod
    def listed(each: tuple[int, ...]) -> Lengths:
        """Return the token lengths of individual requests as ``Lengths``, with their mean."""
        return Lengths(sum(each) / len(each) if each else math.nan, each=each)


@dataclass(frozen=True)
class SharedPrefix:
    """Set of ``groups x prompts_per_group`` prompts that a client sends repeatedly.

    Attributes:
        groups: Number of groups whose prompts share a prefix.
        prompts_per_group: Number of different prompts in each group.
        tokens: Tokens of a group's shared prefix.
    """

    groups: int
    prompts_per_group: int
    tokens: int


@dataclass(frozen=True)
class Load:
    """Load sent by a benchmark: number, lengths and timing of its requests.

    Attributes:
        requests: Number of requests.
        prompt: Prompt lengths, in tokens.
        output: Output lengths, in tokens.
        concurrency: Maximum number of requests in flight; None for no limit.
        rate_per_s: Mean request rate; None if all requests are sent at the start or, with
            ``concurrency``, in a closed loop.
        process: Distribution of the gaps between requests: ``poisson``, ``gamma`` (with ``cv``) or
            ``constant``.
        cv: Coefficient of variation of the gaps (standard deviation over mean).
        offsets_s: Send time of each request in seconds, if the file has it and no concurrency limit
            delayed the request; overrides the rate.
        prefix: Prompts that repeat; None if all prompts are different.
        timeout_s: Time in seconds after which the client aborts a request; None if it waits
            indefinitely.
    """

    requests: int
    prompt: Lengths
    output: Lengths
    concurrency: int | None = None
    rate_per_s: float | None = None
    process: str = "poisson"
    cv: float = 1.0
    offsets_s: tuple[float, ...] = ()
    prefix: SharedPrefix | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise PinnError(f"the load must have at least 1 request, got {self.requests}")
        if self.concurrency is not None and self.concurrency < 1:
            raise PinnError(f"the concurrency must be at least 1, got {self.concurrency}")
        if self.rate_per_s is not None and not 0 < self.rate_per_s < math.inf:
            raise PinnError(f"the request rate must be positive, got {self.rate_per_s} requests/s")
        for what, each in (("prompt", self.prompt.each), ("output", self.output.each)):
            if each and len(each) != self.requests:
                raise PinnError(
                    f"the load has {len(each)} {what} lengths, expected one for each of "
                    f"{self.requests} requests"
                )

    @property
    def text(self) -> str:
        """Return a short description of the load.

        >>> Load(640, Lengths(1024), Lengths(128), concurrency=64).text
        '640 x 1024 + 128 tokens, 64 at a time'
        """
        size = f"{self.requests} x {self.prompt.mean:.0f} + {self.output.mean:.0f} tokens"
        rate = "" if self.rate_per_s is None else f", {self.rate_per_s:g} requests/s"
        limit = "" if self.concurrency is None else f", {self.concurrency} at a time"
        text = size + (rate + limit or ", all at once")
        if self.prefix is None:
            return text
        return f"{text}, {self.prefix.groups} x {self.prefix.prompts_per_group} prompts that repeat"


@dataclass(frozen=True)
class StatedServer:
    """Facts about the measured server from a benchmark file, completed by the user's flags.

    Attributes:
        model: Name of the model; empty if the file has none.
        gpu: Name of the GPU; empty if the file has none.
        flags: Fields of ``ServingSpec`` (and ``precision``) that the file states.
        kv_tokens: Size of the server's KV cache in tokens; None if the file does not specify it.
        engine: Name and version as the file spells them, such as ``vllm 0.15.1``; empty if unknown.
        speculative: Whether the server used speculative decoding; its settings are not read.
        source: Name of the file with the flags; empty if that is the run's file.
    """

    model: str = ""
    gpu: str = ""
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    kv_tokens: int | None = None
    engine: str = ""
    speculative: bool = False
    source: str = ""

    @property
    def all_flags(self) -> dict[str, FlagValue]:
        """Return the values of flags that the file states, including the engine and its release."""
        return {**engine_flags(self.engine), **self.flags}


#: Facts about a server if the benchmark file states none.
UNSTATED = StatedServer()


@dataclass(frozen=True)
class BenchmarkRun:
    """Benchmark run: one load on one server, and the metrics that its clients measured.

    Attributes:
        name: File name, followed by ``#1``, ``#2``, ... if a file has several runs.
        tool: Tool that wrote the file, such as ``vllm bench serve``.
        load: Load that was sent, which the simulator replays.
        figures: Value of each metric over the served requests, in seconds or per second; the
            metrics are the names in ``FIGURES`` that the file contains.
        served: Number of served requests, to which the metrics refer.
        failed: Number of requests that failed or were aborted.
        server: Facts about the server in the file.
        assumed: Assumptions about data that the file lacks, one sentence each.
        recognized_by: Mark by which the tool was recognized, such as ``the keys hw, conc, isl,
            osl``.
    """

    name: str
    tool: str
    load: Load
    figures: Mapping[str, float]
    served: int
    failed: int = 0
    server: StatedServer = UNSTATED
    assumed: tuple[str, ...] = ()
    recognized_by: str = ""

    def __post_init__(self) -> None:
        unknown = set(self.figures) - set(FIGURES)
        if unknown:
            listed = ", ".join(sorted(unknown))
            raise PinnError(f"{self.name}: the metrics {listed} are unknown: use any of {FIGURES}")
        for name, value in self.figures.items():
            if not (math.isfinite(value) and value > 0):
                raise PinnError(f"{self.name}: {name} must be positive and finite, got {value}")

    def typical_s(self, *latencies: str) -> float | None:
        """Return a mean latency in seconds, or a median if the file has no mean.

        The first of the given latencies with this statistic is used; None if there is none.
        """
        names = [f"{latency}_{each}_s" for each in ("mean", "p50") for latency in latencies]
        return next((self.figures[name] for name in names if name in self.figures), None)

    @property
    def failed_share(self) -> float:
        """Return the share of the run's requests that failed or were aborted."""
        return self.failed / max(self.served + self.failed, 1)

    @property
    def overload(self) -> str | None:
        """Return why the server of the run was overloaded; None if it was not.

        A server is overloaded if many requests failed, or if it served fewer requests per second
        than expected. The expected rate accounts for the time to decode the last request after its
        arrival.
        """
        if self.failed_share >= _MOST_FAILED:
            return f"{self.failed:,} of {self.served + self.failed:,} requests failed"
        load, served = self.load, self.figures.get("requests_per_s")
        if served is None or load.rate_per_s is None or load.concurrency is not None:
            return None
        rest_s = (self.typical_s("tpot", "itl") or 0.0) * load.output.mean
        expected = load.requests / (load.requests / load.rate_per_s + rest_s)
        if served >= _KEPT_UP * expected:
            return None
        return f"served {number(served)} of {number(load.rate_per_s)} requests/s"

    @property
    def chunk_warning(self) -> str | None:
        """Return a warning if a streamed chunk contains several tokens; None if it does not."""
        itl, tpot = (self.figures.get(f"{name}_mean_s", 0.0) for name in ("itl", "tpot"))
        if itl <= _SEVERAL_TOKENS * tpot or not tpot:
            return None
        return (
            f"ITL is {itl / tpot:.1f} times TPOT, so streamed chunks contain several tokens: check "
            "that the server ran without speculative decoding, which cannot be calibrated"
        )

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> BenchmarkRun:
        """Return the run from its JSON object in a folder written by 'pinn ingest'.

        Raises:
            PinnError: If a key is missing or unknown, or a value has another type.
        """
        try:
            run = msgspec.convert(values, BenchmarkRun)
        except msgspec.ValidationError as error:
            raise PinnError(
                f"the table of benchmark runs is damaged ({error}): ingest the files again"
            ) from error
        unknown = sorted(_keys(values) - _keys(msgspec.to_builtins(run)))
        if unknown:
            raise PinnError(
                f"the benchmark run has the unknown keys {', '.join(unknown)}: ingest the files "
                "again with this version"
            )
        return run


def _keys(values: Mapping[str, Json], above: str = "") -> set[str]:
    """Return the names of all keys in a run, with dots for nested keys (``load.concurrency``)."""
    found = {f"{above}{name}" for name in values}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _keys(value, f"{above}{name}.")
    return found

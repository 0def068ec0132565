"""One measured point of a benchmark, whichever tool wrote it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from pinn.common import Json
from pinn.engines.recipe import release
from pinn.errors import PinnError
from pinn.specs.flags import FlagValue
from pinn.specs.serving import SGLANG, TRTLLM, VLLM

# The engine behind a file, as tools spell it, as flags.

#: Part of the name in small letters -> engine. InferenceX writes ``trt``, ``dynamo-trt`` and
#: ``dynamo-sglang``, clients of SGLang ``sglang-oai-chat`` and ``trt``.
_ENGINES = {"vllm": VLLM, "sglang": SGLANG, "trt": TRTLLM, "tensorrt": TRTLLM}


def engine_flags(spelled: str) -> dict[str, str]:
    """``engine`` and, where the name says its release, ``engine_version``.

    Empty where the name says no engine that is simulated here.

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
        # Images of Dynamo, a front end, bear its release and not the engine's.
        numbers = () if name.startswith("dynamo") else release(version)
    except PinnError:
        numbers = ()
    # Builds from a branch call themselves 0.0.0.
    if not any(numbers):
        return {"engine": engine}
    return {"engine": engine, "engine_version": ".".join(map(str, numbers))}


# One measured point of a serving benchmark, whichever tool wrote it: ``BenchmarkRun``.
#
# Readers turn every file into this type, in SI units; ``benchmarks.loads`` makes of
# its load a workload for the simulator and the same figures of a simulated run, so that both sides
# of a comparison are counted alike:
#
#     runs, report = read_benchmarks(paths, given)           pinn.measurements.benchmarks.read
#     target = benchmark_target(runs, model, gpu, flags)     pinn.measurements.traces.ingestion
#     run_ = simulate(target.deployment(), benchmark_workload(run), latency)
#     benchmark_figures(run_, run.figures)                   the same names as run.figures

#: Latencies of a client: from the send to the first token; (E2E - TTFT) / (output tokens - 1) of
#: each request; all ITL gaps, pooled; from the send to the last token.
LATENCIES = ("ttft", "tpot", "itl", "e2e")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
THROUGHPUTS = ("requests_per_s", "output_tokens_per_s")

#: Every name that ``BenchmarkRun.figures`` may have: ``ttft_mean_s``, ..., ``output_tokens_per_s``.
FIGURES = tuple(f"{name}_{each}_s" for name in LATENCIES for each in STATISTICS) + THROUGHPUTS


@dataclass(frozen=True)
class Lengths:
    """Token counts of the requests.

    Attributes:
        mean: Mean number of tokens.
        low: Lengths are whole numbers uniform from ``low`` to ``high``; all equal the mean where
            both are None and there is no ``std``.
        high: See ``low``; with ``std`` the bounds of a normal distribution.
        std: Standard deviation of normally distributed lengths; 0 for none.
        each: The length of every request in the order of sending, where the file lists them; goes
            before the rest.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    std: float = 0.0
    each: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and self.mean >= 1):
            raise PinnError(f"a mean length must be at least 1 token, got {self.mean}")

    @staticmethod
    def listed(each: tuple[int, ...]) -> Lengths:
        """Lengths of requests that are known one by one."""
        return Lengths(sum(each) / len(each) if each else math.nan, each=each)


@dataclass(frozen=True)
class SharedPrefix:
    """A set of prompts that repeat: ``groups x prompts_per_group`` of them.

    Attributes:
        groups: Groups whose prompts begin alike.
        prompts_per_group: Different prompts in each.
        tokens: Tokens that a group shares.
    """

    groups: int
    prompts_per_group: int
    tokens: int


@dataclass(frozen=True)
class Load:
    """The load that a benchmark sent.

    Attributes:
        requests: How many.
        prompt: Prompt lengths.
        output: Output lengths.
        concurrency: Most requests in flight; None for no limit.
        rate_per_s: Mean rate of sending; None for all at once (with ``concurrency`` a closed loop).
        process: Gaps between sends: ``poisson``, ``gamma`` (with ``cv``) or ``constant``.
        cv: Standard deviation over mean of the gaps.
        offsets_s: When each request was sent, where the file says and no limit delayed it; goes
            before the rate.
        prefix: Prompts that repeat; None where each is unlike the others.
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

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise PinnError(f"a load needs at least 1 request, got {self.requests}")
        if self.concurrency is not None and self.concurrency < 1:
            raise PinnError(f"a concurrency must be at least 1, got {self.concurrency}")
        if self.rate_per_s is not None and not 0 < self.rate_per_s < math.inf:
            raise PinnError(f"a rate must be positive, got {self.rate_per_s} requests/s")
        for what, each in (("prompt", self.prompt.each), ("output", self.output.each)):
            if each and len(each) != self.requests:
                raise PinnError(f"{len(each)} {what} lengths for {self.requests} requests")

    @property
    def text(self) -> str:
        """The load in a few words.

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
    """Facts about the server that a benchmark file states; the user's flags complete them.

    Attributes:
        model: Name of the model; empty where the file has none.
        gpu: Name of the GPU; empty where the file has none.
        flags: Fields of ``ServingSpec`` (and ``precision``) that the file states.
        kv_tokens: Tokens that the server's KV cache holds; None where the file has no such number.
        engine: Name and version as the file spells them, such as ``vllm 0.15.1``; empty where
            unknown.
        speculative: Whether tokens were drafted and verified, which no prediction here knows.
    """

    model: str = ""
    gpu: str = ""
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    kv_tokens: int | None = None
    engine: str = ""
    speculative: bool = False

    @property
    def all_flags(self) -> dict[str, FlagValue]:
        """The flags with the engine and its release among them."""
        return {**engine_flags(self.engine), **self.flags}


#: Where a file says nothing of the server.
UNSTATED = StatedServer()


@dataclass(frozen=True)
class BenchmarkRun:
    """One load on one server, and what its clients saw.

    Attributes:
        name: File, with ``#1``, ``#2``, ... behind it where a file holds several runs.
        tool: What wrote it, such as ``vllm bench serve``.
        load: What was sent, for the simulator to replay.
        figures: Figure -> value over the requests that were served: names of ``FIGURES``, in
            seconds or per second; only those that the file has.
        served: Requests that the figures are over.
        failed: Requests that failed or were cut off.
        server: What the file says of the server.
        assumed: What the file leaves out and was assumed, one sentence each.
        recognized_by: By what the tool was told, such as ``the keys hw, conc, isl, osl``.
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
            raise PinnError(f"{self.name}: unknown figures {', '.join(sorted(unknown))}")
        for name, value in self.figures.items():
            if not (math.isfinite(value) and value > 0):
                raise PinnError(f"{self.name}: {name} is {value}; it must be positive and finite")

    def typical_s(self, *latencies: str) -> float | None:
        """Return the mean of the first of some latencies that the file has, else its median."""
        names = [f"{latency}_{each}_s" for each in ("mean", "p50") for latency in latencies]
        return next((self.figures[name] for name in names if name in self.figures), None)

    @property
    def failed_share(self) -> float:
        """Share of the requests that failed."""
        return self.failed / max(self.served + self.failed, 1)

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> BenchmarkRun:
        """Rebuild a run from its JSON.

        Raises:
            PinnError: If a key is missing or unknown, or a value of another type.
        """
        try:
            run = msgspec.convert(values, BenchmarkRun)
        except msgspec.ValidationError as error:
            raise PinnError(f"not a benchmark run: {error}") from error
        unknown = sorted(_keys(values) - _keys(msgspec.to_builtins(run)))
        if unknown:
            raise PinnError(f"not a benchmark run: unknown keys {', '.join(unknown)}")
        return run


def _keys(values: Mapping[str, Json], above: str = "") -> set[str]:
    """Names of all keys, nested ones as ``load.concurrency``."""
    found = {f"{above}{name}" for name in values}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _keys(value, f"{above}{name}.")
    return found

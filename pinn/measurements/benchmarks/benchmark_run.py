"""One measured point of a benchmark, whichever tool wrote it, and what the user says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from pinn.common import Json
from pinn.engines.recipe import release
from pinn.errors import PinnError
from pinn.measurements.benchmarks.tree import Tree
from pinn.specs.flags import FlagValue, check_flags, flag, flags_apart, flags_of
from pinn.specs.serving import SGLANG, TRTLLM, VLLM

# The engine behind a file, as tools spell it, as flags.

#: Part of the name in small letters -> engine. InferenceX writes ``trt``, ``dynamo-trt`` and
#: ``dynamo-sglang``, clients of SGLang ``sglang-oai-chat`` and ``trt``.
_ENGINES = {"vllm": VLLM, "sglang": SGLANG, "trt": TRTLLM, "tensorrt": TRTLLM}

#: Front ends whose images bear their own release, not the engine's.
_FRONT_END = "dynamo"


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
        numbers = () if name.startswith(_FRONT_END) else release(version)
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
#: each request; gaps between tokens, pooled; from the send to the last token.
LATENCIES = ("ttft", "tpot", "itl", "e2e")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
THROUGHPUTS = ("requests_per_s", "output_tokens_per_s")

#: Every name that ``BenchmarkRun.figures`` may have: ``ttft_mean_s``, ..., ``output_tokens_per_s``.
FIGURES = tuple(f"{name}_{each}_s" for name in LATENCIES for each in STATISTICS) + THROUGHPUTS


@dataclass(frozen=True)
class Lengths:
    """How many tokens the requests have.

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
    """What a benchmark sent.

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
    """What a file says of the server behind it; user's flags complete it.

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
    """

    name: str
    tool: str
    load: Load
    figures: Mapping[str, float]
    served: int
    failed: int = 0
    server: StatedServer = UNSTATED
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = set(self.figures) - set(FIGURES)
        if unknown:
            raise PinnError(f"{self.name}: unknown figures {', '.join(sorted(unknown))}")
        bad = {k: v for k, v in self.figures.items() if not (math.isfinite(v) and v > 0)}
        if bad:
            name, value = next(iter(bad.items()))
            raise PinnError(f"{self.name}: {name} is {value}; it must be positive and finite")

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


# What the user says of a load where a benchmark's file does not.

#: A stated number and a given one within this share are the same: files round.
_SAME = 0.02


@dataclass(frozen=True)
class GivenLoad:
    """Options for what files leave out; one that contradicts a file is refused."""

    PANEL: ClassVar[str] = "Load, where a file does not say it"

    concurrency: int | None = flag(None, "Most requests in flight.", least=1)
    request_rate: float | None = flag(None, "Requests sent per second.", unit="1/s", above=0)
    num_prompts: int | None = flag(None, "Requests sent.", least=1)
    prompt_tokens: float | None = flag(None, "Mean prompt length.", unit="tokens", least=1)
    output_tokens: float | None = flag(None, "Mean output length.", unit="tokens", least=1)
    length_range: str = flag(
        "",
        "Lengths were uniform between these shares of the nominal ones, such as 0.8,1.",
        shown="all equal",
    )
    duration: float | None = flag(None, "Time between two scrapes.", unit="s", above=0)
    prompt_groups: int | None = flag(None, "Groups of prompts that repeat.", least=1)
    prompts_per_group: int = flag(1, "Different prompts in a group.", least=1)
    shared_tokens: int = flag(0, "Tokens that the prompts of a group share.", least=0)

    def __post_init__(self) -> None:
        check_flags(self)
        self.length_shares()

    def length_shares(self) -> tuple[float, float]:
        """Between which shares of the nominal ones lengths are uniform."""
        if not self.length_range:
            return 1.0, 1.0
        try:
            low, high = (float(part) for part in self.length_range.split(","))
        except ValueError:
            low, high = 0.0, 0.0
        if not 0 <= low <= high or high <= 0:
            raise PinnError(
                f"--length-range must be two shares such as 0.8,1, got {self.length_range!r}"
            )
        return low, high


@dataclass
class Reading:
    """A run whose file is being read: what it leaves out the user says, or it is assumed aloud.

    Attributes:
        name: Of the run.
        tool: What wrote it.
        given: What the user says.
        assumed: What was assumed so far, one sentence each.
    """

    name: str
    tool: str
    given: GivenLoad
    assumed: list[str] = field(default_factory=list)

    def run(
        self,
        load: Load,
        figures: Mapping[str, float],
        served: int,
        failed: int = 0,
        server: StatedServer = UNSTATED,
    ) -> BenchmarkRun:
        """The run, once it is read."""
        assumed = tuple(self.assumed)
        return BenchmarkRun(self.name, self.tool, load, figures, served, failed, server, assumed)

    def or_stated(self, name: str, stated: float | None) -> float | None:
        """The file's value, else the user's; None where neither says.

        Raises:
            PinnError: If they contradict each other.
        """
        given: float | None = getattr(self.given, name)
        if given is None or stated is None:
            return stated if given is None else given
        if abs(given - stated) > _SAME * abs(stated):
            option = _FLAGS[name].option
            raise PinnError(
                f"{self.name} says {stated:g}, {option} {given:g}: leave {option} out, or read "
                "files of other loads by themselves"
            )
        return stated

    def concurrency(self, stated: float | None) -> int | None:
        """The file's concurrency, else the user's.

        Raises:
            PinnError: If they contradict each other.
        """
        found = self.or_stated("concurrency", stated)
        return None if found is None else int(found)

    def needed(self, name: str, stated: float | None = None) -> float:
        """A needed value of the load; what neither says is asked for.

        Raises:
            PinnError: If neither says it, or they contradict each other.
        """
        found = self.or_stated(name, stated)
        if found is None:
            what = _FLAGS[name].help.rstrip(".").lower()
            raise PinnError(f"{self.name} leaves out {_FLAGS[name].option} ({what}): give it")
        return found

    def stated_lengths(
        self, prompt: Tree, output: Tree, mean: str = "mean", std: str = "std"
    ) -> tuple[Lengths, Lengths]:
        """Lengths of which a file states statistics; a mean that it leaves out is asked for."""

        def of(name: str, stated: Tree) -> Lengths:
            found = self.needed(name, stated.number(mean) or None)
            low, high = stated.number("min"), stated.number("max")
            return Lengths(found, low, high, stated.number(std) or 0.0)

        return of("prompt_tokens", prompt), of("output_tokens", output)

    def sending(
        self, concurrency: int | None = None, rate: float | None = None
    ) -> tuple[int | None, float | None]:
        """Concurrency and rate of sending; without a rate, a concurrency is asked for."""
        rate = self.or_stated("request_rate", rate)
        if rate is None:
            return int(self.needed("concurrency", concurrency)), rate
        return self.concurrency(concurrency), rate

    def lengths(self, mean: float) -> Lengths:
        """Lengths of a mean; how they spread is the user's or assumed."""
        low, high = self.given.length_shares()
        if low == high:
            equal = "all lengths equal their mean (--length-range)"
            if equal not in self.assumed:
                self.assumed.append(equal)
            return Lengths(mean)
        nominal = mean / ((low + high) / 2)
        return Lengths(mean, low * nominal, high * nominal)

    def prefix(self, stated: tuple[int, int, int] | None = None) -> SharedPrefix | None:
        """The prompts that repeat, as the file states or else the user; none: assumed aloud."""
        given = self.given
        if stated is not None:
            return SharedPrefix(*stated)
        if given.prompt_groups is None:
            self.assumed.append("no two prompts begin alike (--prompt-groups)")
            return None
        return SharedPrefix(given.prompt_groups, given.prompts_per_group, given.shared_tokens)


_FLAGS = {each.name: each for each in flags_of(GivenLoad)}


def split_flags(flags: Mapping[str, FlagValue]) -> tuple[dict[str, FlagValue], GivenLoad]:
    """Options of a command that takes both: those of the server, and those of the load."""
    load, server = flags_apart(GivenLoad, flags)
    return server, GivenLoad(**load)

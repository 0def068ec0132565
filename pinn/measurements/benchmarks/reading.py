"""Reading of a benchmark run: data missing from its file comes from options or is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import (
    UNSTATED,
    BenchmarkRun,
    Lengths,
    Load,
    SharedPrefix,
    StatedServer,
)
from pinn.measurements.benchmarks.documents import NotUsable
from pinn.measurements.benchmarks.tree import Tree
from pinn.specs.flags import FlagValue, check_flags, flag, flags_apart, flags_of

#: Numbers in a file and from the user count as equal up to this relative difference, because files
#: round.
_SAME = 0.02


@dataclass(frozen=True)
class GivenLoad:
    """Options for data missing from benchmark files; options that contradict a file are errors."""

    PANEL: ClassVar[str] = "Load, for benchmark files that do not record it"

    concurrency: int | None = flag(None, "Maximum number of requests in flight.", least=1)
    request_rate: float | None = flag(
        None, "Rate at which requests were sent.", unit="1/s", above=0
    )
    num_prompts: int | None = flag(None, "Number of requests sent.", least=1)
    prompt_tokens: float | None = flag(None, "Mean prompt length.", unit="tokens", least=1)
    output_tokens: float | None = flag(None, "Mean output length.", unit="tokens", least=1)
    length_range: str = flag(
        "",
        "Range of the lengths as shares of the nominal ones, such as 0.8,1; uniform between them.",
        shown="all equal",
    )
    duration: float | None = flag(
        None,
        "Time between two scrapes of /metrics, or from the server's start to one scrape.",
        unit="s",
        above=0,
    )
    prompt_groups: int | None = flag(None, "Number of groups of repeated prompts.", least=1)
    prompts_per_group: int = flag(1, "Number of different prompts in a group.", least=1)
    shared_tokens: int = flag(
        0, "Number of tokens that all prompts of a group begin with.", least=0
    )

    def __post_init__(self) -> None:
        check_flags(self)
        self.length_shares()
        if self.prompt_groups is None and (self.prompts_per_group > 1 or self.shared_tokens > 0):
            raise PinnError(
                "--prompts-per-group and --shared-tokens describe groups of prompts, but "
                "--prompt-groups is missing: add --prompt-groups 1"
            )

    def length_shares(self) -> tuple[float, float]:
        """Return the minimum and maximum of ``length_range``, relative to the nominal length."""
        if not self.length_range:
            return 1.0, 1.0
        try:
            low, high = (float(part) for part in self.length_range.split(","))
        except ValueError:
            low, high = 0.0, 0.0
        if not 0 <= low <= high or high <= 0:
            raise PinnError(
                "--length-range must be two multiples of the mean length such as 0.8,1, got "
                f"{self.length_range!r}"
            )
        return low, high


@dataclass
class Reading:
    """Reading of one benchmark run: options for data missing from its file, and assumptions.

    Attributes:
        name: Name of the run.
        tool: Tool that wrote the file.
        given: The user's options for data missing from the file.
        recognized_by: Keys or pattern that identified the tool, as a string.
        assumed: Assumptions so far, one sentence each.
    """

    name: str
    tool: str
    given: GivenLoad
    recognized_by: str = ""
    assumed: list[str] = field(default_factory=list)

    def run(
        self,
        load: Load,
        figures: Mapping[str, float],
        served: int,
        failed: int = 0,
        server: StatedServer = UNSTATED,
    ) -> BenchmarkRun:
        """Return the benchmark run with the data that was read from its file."""
        own, told = tuple(self.assumed), self.recognized_by
        return BenchmarkRun(self.name, self.tool, load, figures, served, failed, server, own, told)

    def or_stated(self, name: str, stated: float | None) -> float | None:
        """Return a load option's value from the file, else from the user, else None.

        Raises:
            NotUsable: If file and user contradict each other.
        """
        given: float | None = getattr(self.given, name)
        if given is None or stated is None:
            return stated if given is None else given
        if abs(given - stated) > _SAME * abs(stated):
            option = _FLAGS[name].option
            raise NotUsable(
                f"{option} is {given:g}, but the file states {stated:g}: remove {option}, "
                "or read files of other loads separately"
            )
        return stated

    def concurrency(self, stated: float | None) -> int | None:
        """Return the concurrency from the file, else from the user, else None.

        Raises:
            NotUsable: If file and user contradict each other.
        """
        found = self.or_stated("concurrency", stated)
        return None if found is None else int(found)

    def needed(self, name: str, stated: float | None = None) -> float:
        """Return a required value of the load, from the file or else from the user.

        Raises:
            NotUsable: If there is no value, or file and user contradict each other.
        """
        found = self.or_stated(name, stated)
        if found is None:
            raise NotUsable(
                f"the file does not state {_described(name)}: give {_FLAGS[name].option}"
            )
        return found

    def stated_lengths(
        self, prompt: Tree, output: Tree, mean: str = "mean", std: str = "std"
    ) -> tuple[Lengths, Lengths]:
        """Return prompt and output lengths in tokens, from a file's statistics or from options."""

        def of(name: str, stated: Tree) -> Lengths:
            found = self.needed(name, stated.number(mean) or None)
            bounds = stated.number("min"), stated.number("max")
            return Lengths(found, *bounds, stated.number(std) or 0.0)

        return of("prompt_tokens", prompt), of("output_tokens", output)

    def sending(
        self, concurrency: int | None = None, rate: float | None = None
    ) -> tuple[int | None, float | None]:
        """Return the load's concurrency and requests/s, at least one of which is known.

        Raises:
            NotUsable: If neither is known, or the user contradicts the file.
        """
        rate, limit = self.or_stated("request_rate", rate), self.concurrency(concurrency)
        if rate is None and limit is None:
            either = f"{_described('concurrency')} and {_FLAGS['request_rate'].option}"
            raise NotUsable(f"the file does not state {either}: give one of these options")
        return limit, rate

    def lengths(self, mean: float) -> Lengths:
        """Return token lengths with a given mean, uniform in the user's range, else all equal."""
        low, high = self.given.length_shares()
        if low == high:
            equal = "all lengths are equal to the mean (--length-range)"
            if equal not in self.assumed:
                self.assumed.append(equal)
            return Lengths(mean)
        nominal = mean / ((low + high) / 2)
        return Lengths(mean, low * nominal, high * nominal)

    def prefix(self, stated: SharedPrefix | None = None, assumed: str = "") -> SharedPrefix | None:
        """Return the shared prefixes from the user, else from the file; otherwise assume none.

        Args:
            stated: Shared prefixes as the file states them; None if it does not.
            assumed: Assumption to record if the shared prefixes are used.
        """
        given = self.given
        if given.prompt_groups is not None:
            return SharedPrefix(given.prompt_groups, given.prompts_per_group, given.shared_tokens)
        none = "no two prompts share a prefix"
        self.assumed.append(f"{assumed if stated else none} (--prompt-groups)")
        return stated


_FLAGS = {each.name: each for each in flags_of(GivenLoad)}


def _described(name: str) -> str:
    """Return a load option with its description, as in ``--duration (time between ...)``."""
    return f"{_FLAGS[name].option} ({_FLAGS[name].help.rstrip('.').lower()})"


def split_flags(flags: Mapping[str, FlagValue]) -> tuple[dict[str, FlagValue], GivenLoad]:
    """Split a command's flags into the server's flags and the options of the benchmark's load."""
    load, server = flags_apart(GivenLoad, flags)
    return server, GivenLoad(**load)

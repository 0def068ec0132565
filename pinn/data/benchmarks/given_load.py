"""What the user says of a load where a benchmark's file does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pinn.data.benchmarks.benchmark_run import Lengths, SharedPrefix
from pinn.errors import PinnError
from pinn.specs.flags import check_flags, flag, flags_of

#: A stated number and a given one within this share are the same: files round.
_SAME = 0.02


class NotUsable(PinnError):  # noqa: N818  a reason to leave a run out, no failure
    """A run that is left out; its text is the reason, which the report counts."""


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
        self._shares()

    def or_stated(self, name: str, stated: Any, where: str) -> Any:
        """The file's value, else the user's; None where neither says.

        Raises:
            PinnError: If they contradict each other.
        """
        given = getattr(self, name)
        if given is None or stated is None:
            return stated if given is None else given
        if abs(given - stated) > _SAME * abs(stated):
            raise PinnError(
                f"{where} says {stated:g}, {_option(name)} {given:g}: leave {_option(name)} out, "
                "or read files of other loads by themselves"
            )
        return stated

    def needed(self, name: str, stated: Any, where: str) -> Any:
        """A needed value of the load; what neither says is asked for.

        Raises:
            PinnError: If neither says it, or they contradict each other.
        """
        found = self.or_stated(name, stated, where)
        if found is None:
            what = next(f.help for f in flags_of(GivenLoad) if f.name == name)
            raise PinnError(
                f"{where} leaves out {_option(name)} ({what.rstrip('.').lower()}): give it"
            )
        return found

    def lengths(self, mean: float, assumed: list[str]) -> Lengths:
        """Lengths of a mean; how they spread is the user's or assumed."""
        low, high = self._shares()
        if low == high:
            equal = "all lengths equal their mean (--length-range)"
            if equal not in assumed:
                assumed.append(equal)
            return Lengths(mean)
        nominal = mean / ((low + high) / 2)
        return Lengths(mean, low * nominal, high * nominal)

    def prefix(self, assumed: list[str]) -> SharedPrefix | None:
        """The prompts that repeat; that none does is assumed aloud."""
        if self.prompt_groups is None:
            assumed.append("no two prompts begin alike (--prompt-groups)")
            return None
        return SharedPrefix(self.prompt_groups, self.prompts_per_group, self.shared_tokens)

    def _shares(self) -> tuple[float, float]:
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


def _option(name: str) -> str:
    return next(f.option for f in flags_of(GivenLoad) if f.name == name)


def split_flags(flags: Mapping[str, Any]) -> tuple[dict[str, Any], GivenLoad]:
    """Options of a command that takes both: those of the server, and those of the load."""
    names = {f.name for f in flags_of(GivenLoad)}
    load = {name: value for name, value in flags.items() if name in names}
    return {k: v for k, v in flags.items() if k not in names}, GivenLoad(**load)

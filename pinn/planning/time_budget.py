"""Time budget of a search."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace


class OutOfTimeError(Exception):
    """Error raised when the time budget of a search is exhausted."""


@dataclass(frozen=True)
class TimeBudget:
    """Time budget of a search, measured by a clock that all its processes share.

    Attributes:
        begin_s: Time at which the search began.
        end_s: Time at which the search must end; infinite for no limit.
        clock: Function that returns the time in seconds.
    """

    begin_s: float = 0.0
    end_s: float = math.inf
    clock: Callable[[], float] = time.time

    @classmethod
    def starting(cls, seconds: float, clock: Callable[[], float] = time.time) -> "TimeBudget":
        """Return a budget of ``seconds`` that begins now.

        Args:
            seconds: Duration of the search; infinite for no limit.
            clock: Function that returns the time in seconds, such as ``time.process_time`` for a
                search in one process.
        """
        now_s = clock()
        return cls(now_s, now_s + seconds, clock)

    @property
    def left_s(self) -> float:
        """Remaining time in seconds; 0 once the time has run out."""
        return math.inf if math.isinf(self.end_s) else max(self.end_s - self.clock(), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether time has run out."""
        return self.left_s == 0

    @property
    def passed_s(self) -> float:
        """Time since the search began, in seconds."""
        return self.clock() - self.begin_s

    def check(self) -> None:
        """Raise ``OutOfTimeError`` if time has run out."""
        if self.is_over:
            raise OutOfTimeError

    def until(self, share: float) -> "TimeBudget":
        """Return a budget that ends when a given share of the whole time has passed."""
        return replace(self, end_s=self.begin_s + share * (self.end_s - self.begin_s))

    def later(self, seconds: float) -> "TimeBudget":
        """Return a budget that begins and ends ``seconds`` later."""
        return replace(self, begin_s=self.begin_s + seconds, end_s=self.end_s + seconds)

    def next_part(self, share: float) -> "TimeBudget":
        """Return a budget with a given share of the remaining time."""
        return replace(self, end_s=self.clock() + share * self.left_s)


#: Time budget without a limit.
UNLIMITED = TimeBudget()

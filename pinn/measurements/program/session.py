"""Measuring session: build each batch, and repeat its step until the median step time is precise.

An engine is any object with the members ``clock``, ``submit``, ``step``, ``drop`` and ``limits``.
"""

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from statistics import median
from typing import Any, NamedTuple

from pinn.measurements.program.batches import Wanted, fits, held_outputs
from pinn.measurements.program.table import MeasuringError, Step, Table

#: ``KNOWN``: relative standard error at which a batch's median step time counts as known. ``LEAST``
#: and ``MOST``: minimum and maximum number of repeats of a step. ``MOST_SHARE``: maximum share of
#: the session's time for the repeats of one batch.
KNOWN, LEAST, MOST, MOST_SHARE = 0.01, 8, 128, 1 / 64

#: Number of initial steps of a batch that are dropped as warm-up, in which kernels are selected and
#: buffers grow.
COLD = 2

#: ``FAR``: a step counts as stalled by the host above this multiple of its batch's median step
#: time. ``STALLED``: stalls are reported if they exceed this share of steps.
FAR, STALLED = 3.0, 0.02

#: Decodes of the previous batch are reused if their context differs from the requested one by at
#: most this relative amount.
_NEAR = 0.1

#: Maximum share of the session's remaining time for a batch's prefill.
_SETUP_SHARE = 0.25

#: Range of token ids in synthetic prompts; lower ids are special tokens in most vocabularies.
_LOWEST_ID, _HIGHEST_ID = 100, 20000

#: Number of random token ids that are generated once, because generating them per prompt takes
#: seconds.
_POOL = 2**15

#: Reasons for the end of a measurement that no error ended.
ALL_MEASURED = "all batches are measured"
TIME_IS_OVER = "the time of --minutes is over"
ASKED_TO_STOP = "the program was asked to stop"


class StopError(Exception):
    """End of a measuring session: its time has run out, or the user asked to stop."""


class Outcome(NamedTuple):
    """Counts of batches and steps in a measurement, and the reason why it ended.

    Attributes:
        batches: Number of batches with measured steps.
        known: Number of batches whose median step time has a relative error of at most ``KNOWN``.
        cold: Number of steps dropped as warm-up.
        steps: Number of measured steps, over all batches.
        stalls: Number of measured steps that took more than ``FAR`` times the median of their
            batch.
        worst: Maximum ratio of a step's time to the median time of its batch.
        ended: Reason why the measurement ended.
    """

    batches: int
    known: int
    cold: int
    steps: int
    stalls: int
    worst: float
    ended: str


def relative_error(values: list[float]) -> float:
    """Return the relative standard error of the median, from the median absolute deviation.

    The factor 1.4826 converts the median absolute deviation into the standard deviation of normal
    noise. The factor 1.2533, the root of pi / 2, is the ratio of the standard errors of median and
    mean.
    """
    centre = median(values)
    away = median(abs(v - centre) for v in values)
    return 1.2533 * 1.4826 * away / (centre * len(values) ** 0.5)


class Session:
    """Measuring session of one engine, with the decodes kept from one batch to the next.

    Attributes:
        engine: Engine to measure.
        limits: Limits of the engine on requests, tokens and KV cache.
        rows: Steps of the current batch measured so far, each marked as warm-up or not.
    """

    def __init__(
        self, engine: Any, seconds: float, is_asked: Callable[[], bool] = lambda: False
    ) -> None:
        """Start the clock of the session.

        Args:
            engine: Engine to measure.
            seconds: Maximum duration of the session, in seconds.
            is_asked: Function that returns whether the user asked to stop.
        """
        self.engine, self.limits, self._is_asked = engine, engine.limits, is_asked
        self._end = engine.clock() + seconds
        self._most_seconds = MOST_SHARE * seconds
        self._random = random.Random(0)
        high = min(engine.limits.vocabulary, _HIGHEST_ID)
        self._pool = self._random.choices(range(min(_LOWEST_ID, high - 1), high), k=_POOL)
        self._held: list[str] = []
        self._context, self._left, self._prefill_rate = 0, 0, 0.0
        self.rows: list[tuple[Step, bool]] = []

    @property
    def left(self) -> float:
        """Return the remaining time of the session, in seconds."""
        return self._end - self.engine.clock()

    def measure(self, wanted: Wanted) -> tuple[list[tuple[Step, bool]], bool]:
        """Return a batch's steps, each marked as warm-up or not, and whether the median is known.

        The median step time is known if its relative error is at most ``KNOWN``. Steps that build
        up the batch are dropped. If time runs out or the engine fails, ``self.rows`` contains the
        steps so far.

        Raises:
            StopError: If time has run out or the user asked to stop.
        """
        self.rows = []
        self._hold(wanted)
        cold, begun = 0, self.engine.clock()
        values: list[float] = []
        prefix = self._ids(wanted.cached)
        if prefix:
            self.engine.submit(prefix + self._ids(1), 1)
            self._run(lambda step: step.prompts and step.tokens + step.cached > wanted.cached)
        for _ in range(2 * MOST):
            for _ in range(wanted.prompts):
                self.engine.submit(prefix + self._ids(wanted.tokens), 1)
            for step in self._turn():
                if not _is(step, wanted):
                    continue
                self.rows.append((step, cold < COLD))
                if cold < COLD:
                    cold += 1
                    begun = self.engine.clock()
                    continue
                values.append(step.latency)
            self._left -= 1
            self._context += bool(wanted.decodes)
            spent = self.engine.clock() - begun
            if len(values) >= LEAST and relative_error(values) <= KNOWN:
                return self.rows, True
            if len(values) >= MOST or (spent > self._most_seconds and len(values) >= 3):
                break
            if wanted.decodes and self._left <= 1:
                break
        return self.rows, False

    def can_make(self, wanted: Wanted) -> bool:
        """Return whether a batch fits in the engine, and can be built in the remaining time."""
        if not fits(wanted, self.limits):
            return False
        kept = len(self._held) if self._keeps(wanted) else 0
        tokens = max(wanted.decodes - kept, 0) * wanted.context + wanted.cached
        seconds = tokens / self._prefill_rate if self._prefill_rate else 0.0
        return seconds <= _SETUP_SHARE * self.left

    def _keeps(self, wanted: Wanted) -> bool:
        """Return whether a batch can reuse the decodes of the previous batch."""
        near = abs(self._context - wanted.context) <= max(_NEAR * wanted.context, 64)
        return bool(self._held and wanted.decodes and near and self._left > MOST + COLD)

    def _hold(self, wanted: Wanted) -> None:
        """Start and drop requests until exactly the batch's decodes run, all prefilled."""
        if not self._keeps(wanted):
            self.release()
            self._context = wanted.context
            self._left = held_outputs(self.limits) - 2
        if len(self._held) > wanted.decodes:
            self.engine.drop(self._held[wanted.decodes :])
            del self._held[wanted.decodes :]
        more = wanted.decodes - len(self._held)
        if not more:
            return
        for _ in range(more):
            self._held.append(self.engine.submit(self._ids(wanted.context), self._left + 2))
        begun = self.engine.clock()
        steps = self._run(lambda step: not step.prompts and step.decodes == wanted.decodes)
        self._left -= steps
        self._context += steps * (wanted.decodes - more) // wanted.decodes
        spent = self.engine.clock() - begun
        if spent > 0 and more * wanted.context > 2048:
            self._prefill_rate = more * wanted.context / spent

    def _run(self, until: Callable[[Step], object]) -> int:
        """Run the engine's loop until a step satisfies ``until``; return the number of steps."""
        count = still = 0
        while True:
            found = self._turn()
            count += len(found)
            if any(until(step) for step in found):
                return count
            still = 0 if found else still + 1
            if still > 100 or count > 20000:
                raise MeasuringError("the engine did not run the requested batch")

    def _turn(self) -> list[Step]:
        if self._is_asked():
            raise StopError(ASKED_TO_STOP)
        if self.left <= 0:
            raise StopError(TIME_IS_OVER)
        found = self.engine.step()
        if any(step.preempted for step in found):
            self.release()
            raise MeasuringError("a request was preempted, because the KV cache is full")
        return found

    def release(self) -> None:
        """Abort all requests of the session, including decodes kept for the next batch."""
        self.engine.drop()
        self._held = []

    def _ids(self, count: int) -> list[int]:
        """Return random token ids for a prompt, so that the prefix cache has no hits."""
        begin = self._random.randrange(len(self._pool))
        repeats = 1 + (begin + count) // len(self._pool)
        stretch = (self._pool * repeats)[begin : begin + count]
        return (self._random.choices(self._pool, k=2) + stretch)[:count]


def _is(step: Step, wanted: Wanted) -> bool:
    """Return whether a step ran a batch, ignoring contexts, which grow with each repeat."""
    decodes, _, prompts, tokens, cached = wanted
    together = (decodes, prompts, prompts * tokens, prompts * cached)
    return (step.decodes, step.prompts, step.tokens, step.cached) == together


def measure_all(
    session: Session, wanted: Iterable[Wanted], table: Table, say: Callable[[str], None]
) -> Outcome:
    """Measure batches and write their steps to a table, until the session's time runs out.

    Errors of the engine or the disk also end the measurement, and are recorded in the outcome.
    """
    batches = known = cold = steps = stalls = misses = 0
    worst, ended = 1.0, ALL_MEASURED
    for batch in wanted:
        if not session.can_make(batch):
            continue
        is_known, stop = False, ""
        try:
            _, is_known = session.measure(batch)
        except StopError as reason:
            stop = str(reason)
            misses = 0
        except MeasuringError as error:
            misses += 1
            say(f"skipped {batch}: {error}")
            with suppress(Exception):  # the next batch reports the same error
                session.release()
            if misses >= 3:
                stop = f"three batches in a row could not be run: {error}"
        except Exception as error:
            stop = f"the engine failed at {batch}: {type(error).__name__}: {error}"[:400]
        rows = session.rows
        try:
            table.write(batches, rows)
        except OSError as error:
            stop = f"{table.folder}: {error.strerror or error}"
        values = [step.latency for step, is_cold in rows if not is_cold]
        batches, known = batches + bool(values), known + is_known
        cold, steps = cold + len(rows) - len(values), steps + len(values)
        if len(values) >= 3:
            ratios = [value / median(values) for value in values]
            stalls += sum(ratio > FAR for ratio in ratios)
            worst = max(worst, *ratios)
            say(f"{batch}: {1e3 * median(values):.3f} ms +- {100 * relative_error(values):.1f} % "
                f"({len(values)} steps)")  # fmt: skip
        if stop:
            ended = stop
            break
    return Outcome(batches, known, cold, steps, stalls, worst, ended)

"""Which limits of the scheduler need the fewest replicas on one kind of hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pinn.planning.brief import Brief
from pinn.planning.candidates import Candidate
from pinn.planning.interval import Interval, prediction_interval, widest
from pinn.planning.plan import HighestRate, LeftOut
from pinn.planning.search import WIDTH, highest_rate, is_clear, settled_rate
from pinn.planning.sizing import Sized, fewest_replicas, may_do_with_fewer
from pinn.planning.trial import Trials
from pinn.simulator.run import Run


@dataclass(frozen=True)
class Picked:
    """A candidate with as few replicas as hold the limits.

    Attributes:
        trials: Of one replica.
        rate: The highest that it holds.
        sized: The replicas.
        interval: How wrong the prediction may be; None for calibrated coefficients.
        share_per_s: Of the asked rate that one replica serves; its highest without one.
        run: Of one replica at that rate.
    """

    trials: Trials
    rate: HighestRate
    sized: Sized
    interval: Interval | None
    share_per_s: float
    run: Run

    @property
    def label(self) -> str:
        """The candidate's name."""
        return self.trials.candidate.label


def pick(
    kept: Sequence[tuple[Candidate, float]], brief: Brief
) -> tuple[Picked | None, list[LeftOut], int]:
    """Size a fleet of the candidate with the highest rate, and of others that may need fewer.

    A replica that holds a higher rate alone is not always the one of which fewer hold the asked
    rate together.

    Args:
        kept: Candidates that differ in the scheduler's limits alone, with quick highest rates.
        brief: What is asked.

    Returns:
        The one of which fewest are needed, None where nothing holds the limits with the GPUs there
        are; the others; and how many runs that took beside those of its trials.
    """
    tried = [Trials(candidate, brief.replica_load(), brief.limits) for candidate, _ in kept]
    guesses = [guess for _, guess in kept]
    first, rate = _fastest(tried, guesses)
    best: Picked | None = None
    reasons: dict[str, str] = {}
    for i in [first, *(i for i in range(len(tried)) if i != first)]:
        if best is not None:
            if not may_do_with_fewer(best.sized.replicas, tried[i], brief):
                continue
            rate = _highest(tried[i], guesses[i])
        rate = _settled(tried[i], rate)
        found = _sized(tried[i], rate, brief)
        if isinstance(found, str):
            reasons[tried[i].candidate.label] = found
        elif best is None or found.sized.replicas < best.sized.replicas:
            best = found
    others = [trials for trials in tried if best is None or trials is not best.trials]
    left_out = [
        LeftOut(
            trials.candidate.label,
            trials.candidate.deployment.gpu.name,
            reasons.get(trials.candidate.label) or _no_fewer(best, brief),
            simulated=True,
        )
        for trials in others
    ]
    return best, left_out, sum(trials.count for trials in others)


def _fastest(tried: Sequence[Trials], guesses: Sequence[float]) -> tuple[int, HighestRate]:
    """Which replica holds the highest rate on the whole load; the first where none holds any."""
    best, rate = 0, HighestRate(0.0, None)
    for i, (trials, guess) in enumerate(zip(tried, guesses, strict=True)):
        if rate.per_s > 0 and trials.excess(rate.per_s * (1 + WIDTH)) > 1:
            continue
        found = _highest(trials, max(guess, rate.per_s))
        if found.per_s > rate.per_s:
            best, rate = i, found
    return best, rate


def _highest(trials: Trials, guess: float) -> HighestRate:
    return HighestRate(*highest_rate(trials.excess, guess, stride=1.03))


def _settled(trials: Trials, rate: HighestRate) -> HighestRate:
    """A rate with clear rates on either side, else the one that fewest contradict."""
    if is_clear(trials.excess, rate.per_s, rate.fails_per_s):
        return rate
    return HighestRate(*settled_rate(trials.excess, rate.per_s))


def _sized(trials: Trials, rate: HighestRate, brief: Brief) -> Picked | str:
    """A candidate's fleet, or why there is none."""
    candidate = trials.candidate
    if rate.per_s == 0:
        return "holds 0 requests/s on the whole load"
    if rate.fails_per_s is None:
        sent = len(trials.load.at(rate.per_s))
        return f"runs all of the {sent:,} requests at once: its rate takes a longer load to find"
    sized = fewest_replicas(trials, rate.per_s, brief)
    if sized is None:
        return (
            f"holds {rate.per_s:.3g} requests/s alone, but no fleet of them that can be simulated "
            "holds the asked rate"
        )
    gpus, may_be = sized.replicas * candidate.gpus, brief.max_gpus
    if may_be is not None and gpus > may_be:
        return f"needs {gpus} GPUs at {rate.per_s:.3g} requests/s a replica, {may_be} may be"
    asked = brief.rate_per_s
    share = rate.per_s if asked is None else asked / sized.replicas
    run = trials.run(share) if asked is not None else trials.run_of(brief.load.draw(share))
    return Picked(trials, rate, sized, _interval(candidate, run, brief), share, run)


def _interval(candidate: Candidate, run: Run, brief: Brief) -> Interval | None:
    """None for calibrated coefficients, which come without one."""
    if candidate.is_calibrated:
        return None
    found = [
        prediction_interval(brief.checkpoint, latency.deployment)
        for _, latency in candidate.parts(run)
    ]
    return widest(found)


def _no_fewer(best: Picked | None, brief: Brief) -> str:
    assert best is not None, "a candidate that was sized alone has a reason of its own"
    if brief.rate_per_s is None:
        return f"holds no more than the {best.rate.per_s:.3g} requests/s of {best.label}"
    return f"needs no fewer than {best.label}, of which {best.sized.replicas} hold the limits"

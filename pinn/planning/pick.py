"""Which limits of the scheduler are worth most on one kind of hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pinn.planning.brief import Brief
from pinn.planning.candidates import Candidate
from pinn.planning.interval import Interval, prediction_interval, widest
from pinn.planning.plan import HighestRate, LeftOut
from pinn.planning.search import WIDTH, highest_rate, settled_rate
from pinn.planning.sizing import Sized, fewest_replicas, may_be_worth_more, worth_most
from pinn.planning.trial import Trials
from pinn.simulator.run import Run

#: Share of another candidate's highest rate beyond which a jagged one may turn out to be higher.
_REACH = 0.9


@dataclass(frozen=True)
class Picked:
    """A candidate with as many replicas as are worth most.

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
        """Of the candidate."""
        return self.trials.candidate.label


def pick(
    kept: Sequence[tuple[Candidate, float]], brief: Brief
) -> tuple[Picked | None, list[LeftOut], int]:
    """Size a fleet of the candidate with the highest rate, and of others that may be worth more.

    A replica that holds a higher rate alone is not always the one whose fleet is likelier to hold
    the asked rate: where that leaves room, how the limits are held when times are longer decides.

    Args:
        kept: Candidates that differ in the scheduler's limits alone, with quick highest rates.
        brief: What is asked.

    Returns:
        The one worth most, None where nothing holds the limits with the GPUs there are; the
        others; and how many runs that took beside those of its trials.
    """
    tried = [Trials(candidate, brief.replica_load(), brief.limits) for candidate, _ in kept]
    guesses = [guess for _, guess in kept]
    first, rate = _fastest(tried, guesses)
    best: Picked | None = None
    reasons: dict[str, str] = {}
    for i in [first, *(i for i in range(len(tried)) if i != first)]:
        if best is not None:
            if not may_be_worth_more(best.sized, tried[i], best.interval, brief):
                continue
            rate = _highest(tried[i], guesses[i])
        found = _sized(tried[i], rate, brief)
        if isinstance(found, str):
            reasons[tried[i].candidate.label] = found
        elif best is None or found.sized.worth > best.sized.worth:
            best = found
    others = [trials for trials in tried if best is None or trials is not best.trials]
    left_out = [
        LeftOut(
            trials.candidate.label,
            trials.candidate.deployment.gpu.name,
            reasons.get(trials.candidate.label) or _worth_less(best, brief),
            simulated=True,
        )
        for trials in others
    ]
    return best, left_out, sum(trials.count for trials in others)


def _fastest(tried: Sequence[Trials], guesses: Sequence[float]) -> tuple[int, HighestRate]:
    """Which replica holds the highest rate on the whole load; the first where none holds any."""
    best, rate = 0, HighestRate(0.0, None)
    for i, (trials, guess) in enumerate(zip(tried, guesses, strict=True)):
        # Of few requests, where rates hold beyond ones that fail, one run decides nothing.
        is_smooth = not trials.load.is_few
        if is_smooth and rate.per_s > 0 and trials.excess(rate.per_s * (1 + WIDTH)) > 1:
            continue
        found = _highest(trials, max(guess, rate.per_s), beside=rate.per_s)
        if found.per_s > rate.per_s:
            best, rate = i, found
    return best, rate


def _highest(trials: Trials, guess: float, beside: float = 0.0) -> HighestRate:
    """The highest rate; settled on few requests, unless it is far below another candidate's."""
    found = highest_rate(trials.excess, guess, stride=1.03)
    if trials.load.is_few and found[0] > _REACH * beside:
        found = settled_rate(trials.excess, found[0])
    return HighestRate(*found)


def _sized(trials: Trials, rate: HighestRate, brief: Brief) -> Picked | str:
    """A candidate's fleet, or why there is none."""
    candidate = trials.candidate
    if rate.per_s == 0:
        return "holds 0 requests/s on the whole load"
    sized = fewest_replicas(trials, rate.per_s, brief)
    if sized is None:
        return (
            f"holds {rate.per_s:.3g} requests/s alone, but no fleet of them that can be simulated "
            "holds the asked rate"
        )
    gpus, may_be = sized.replicas * candidate.gpus, brief.max_gpus
    if may_be is not None and gpus > may_be:
        return f"needs {gpus} GPUs at {rate.per_s:.3g} requests/s a replica, {may_be} may be"
    found = _at_share(trials, rate, sized, brief)
    interval = _interval(candidate, found.run, brief)
    if interval is None or brief.rate_per_s is None:
        return replace(found, interval=interval)
    most = worth_most(sized, trials, interval, brief)
    if most.replicas != sized.replicas:
        found = _at_share(trials, rate, most, brief)
    return replace(found, sized=most, interval=interval)


def _at_share(trials: Trials, rate: HighestRate, sized: Sized, brief: Brief) -> Picked:
    asked = brief.rate_per_s
    share = rate.per_s if asked is None else asked / sized.replicas
    return Picked(trials, rate, sized, None, share, trials.run(share))


def _interval(candidate: Candidate, run: Run, brief: Brief) -> Interval | None:
    """None for calibrated coefficients, which come without one."""
    if candidate.is_calibrated:
        return None
    found = [
        prediction_interval(brief.checkpoint, latency.deployment, part)
        for part, latency in candidate.parts(run)
    ]
    return widest(found)


def _worth_less(best: Picked | None, brief: Brief) -> str:
    assert best is not None, "a candidate that was sized alone has a reason of its own"
    if brief.rate_per_s is None:
        return f"holds no more than the {best.rate.per_s:.3g} requests/s of {best.label}"
    replicas, chance = best.sized.replicas, best.sized.chance
    likely = "" if chance is None else f" with a chance of {100 * chance:.0f} %"
    return f"is worth no more than {best.label}, of which {replicas} hold the limits{likely}"

"""Sentences about the extent of a plan's search: candidates tried, rejected and not tried."""

import math

from pinn.common.numbers import amount
from pinn.planning.candidate import NETWORK
from pinn.planning.plan import COMPILING, INTERRUPT, NOT_EVALUATED, NOT_TRIED, Choice, Plan

#: No reason is stated if the search exceeds its time budget by at most this many seconds.
_SMALL_EXCESS_S = 1.0


def counts(plan: Plan, shown: int) -> list[str]:
    """Return lines with the numbers of rows, candidates and simulations of a plan.

    Args:
        plan: Plan of the search.
        shown: Number of rows that a terminal shows.
    """
    more = len(plan.choices) - shown
    further_plans = amount(more, "further plan is", "further plans are")
    lines = [f"{further_plans} in plan.html, plan.json and plan.csv in the --out folder."] * (
        more > 0
    )
    ended = [each.reason.startswith((NOT_TRIED, NOT_EVALUATED)) for each in plan.left_out]
    rejected = [each for each, late in zip(plan.left_out, ended, strict=True) if not late]
    simulated = sum(each.simulated for each in rejected)
    late = sum(ended) - plan.untried
    parts = [amount(len(plan.choices), "row")]
    parts += [f"{simulated:,} rejected after simulations"] * (simulated > 0)
    parts += [f"{len(rejected) - simulated:,} rejected before"] * (simulated < len(rejected))
    parts += [f"{late:,} not evaluated in time"] * (late > 0)
    parts += [f"{plan.untried:,} not tried"] * (plan.untried > 0)
    found = f"{amount(plan.candidates, 'candidate')}: {', '.join(parts)}"
    took = f"{amount(plan.simulations, 'simulation')}, {plan.seconds:.0f} s{_beyond(plan)}"
    if compiling_s := plan.spent_s.get(COMPILING):
        took += f", after {compiling_s:.0f} s for compiling the simulator, which is needed once"
    return [*lines, f"Search: {found}; {took}."]


def _beyond(plan: Plan) -> str:
    """Return a clause about time over budget and where it was spent; empty within budget."""
    over_s = plan.seconds - (plan.time_budget_s or math.inf)
    if over_s < _SMALL_EXCESS_S:
        return ""
    within = {name: seconds for name, seconds in plan.spent_s.items() if name != COMPILING}
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in within.items())
    return f", {over_s:.0f} s beyond --time-budget ({spent})"


def probability_gap(plan: Plan, choice: Choice) -> str:
    """Return a clause why a row does not show the probability that the user requested.

    The clause is empty if the row has this probability, or if none was requested.
    """
    least = plan.ask.min_probability
    if least is None or (choice.chance is not None and choice.chance >= least - 1e-9):
        return ""
    if choice.chance is not None:
        return f"P(SLO met) is {100 * choice.chance:.0f} %, which is less"
    if choice.seen.is_burst:
        return "P(SLO met) was not computed, because the load is too short"
    if choice.is_partial:
        return "P(SLO met) was not computed in time"
    file = "the checkpoint" if choice.coefficients == NETWORK else choice.coefficients
    return f"P(SLO met) is unknown, because {file} has no intervals"


def unfinished(plan: Plan) -> list[str]:
    """Return sentences about candidates not tried in time, and how to continue."""
    if not plan.stopped:
        return []
    why = (
        "Interrupted"
        if plan.stopped == INTERRUPT
        else "The time budget (--time-budget) was used up"
    )
    late = sum(each.reason.startswith(NOT_EVALUATED) for each in plan.left_out)
    partial = sum(choice.is_partial for choice in plan.choices)
    many = amount(plan.candidates, "candidate")
    untried = f"{plan.untried:,} of {many} {'was' if plan.untried == 1 else 'were'} not tried"
    parts = [untried] * (plan.untried > 0)
    parts += [f"{late:,} not evaluated"] * (late > 0)
    parts += [amount(partial, "row is incomplete", "rows are incomplete")] * (partial > 0)
    more = "run the same command to continue"
    if plan.left_s is not None and plan.stopped != INTERRUPT:
        more += f"; about {_duration(plan.left_s)} or more are needed for all candidates"
    return [f"{why}: {', '.join(parts)}; {more}."]


def _duration(seconds: float) -> str:
    """Return a time with a suitable unit.

    >>> _duration(0.4), _duration(42.0), _duration(130.0)
    ('10 s', '50 s', '2.2 min')
    """
    if seconds <= 50:
        return f"{max(10 * math.ceil(seconds / 10), 10)} s"
    return f"{seconds / 60:,.1f} min"

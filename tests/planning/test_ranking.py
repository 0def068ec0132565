"""Order of a plan's rows, and counts of a search's candidates."""

from dataclasses import replace

from finished_plans import choice, plan

from pinn.planning.plan import TIME_BUDGET, RejectedCandidate
from pinn.planning.ranking import rank
from pinn.planning.search_extent import counts


def test_of_equal_cost_the_more_probable_row_comes_first():
    spare = replace(choice("H100-SXM", 2, 1, 15.2, 2.5), chance=0.7)
    likely = replace(choice("H100-SXM", 2, 1, 14.7, 2.5), chance=0.8)
    alike = replace(choice("H100-SXM", 2, 1, 16.0, 2.5), chance=0.8)
    late = replace(spare, chance=None, is_partial=True)
    calibrated = replace(spare, chance=None, coefficients="server.json")
    cheaper = replace(choice("H100-SXM", 1, 1, 12.1, 2.5), chance=0.1)
    rows = [late, spare, likely, alike, calibrated, cheaper]
    ordered = sorted(rows, key=lambda each: rank(each, 12.0))
    assert ordered == [cheaper, calibrated, alike, likely, spare, late]


def test_counts_of_candidates_add_up():
    made = plan()
    reasons = [("does not meet the SLO at any rate", True)] * 5 + [("does not fit", False)] * 2
    reasons += [("not evaluated: time was over", True)] * 3 + [("not tried: time was over", False)]
    left = [RejectedCandidate(f"{i}", "L40S", *each) for i, each in enumerate(reasons)]
    shown = replace(made, left_out=left, candidates=14, untried=1, stopped=TIME_BUDGET)
    beside, (*_, searched) = counts(shown, 2)[0], counts(shown, 2)
    assert beside == "1 further plan is in plan.html, plan.json and plan.csv in the --out folder."
    assert searched == (
        "Search: 14 candidates: 3 rows, 5 rejected after simulations, 2 rejected before, "
        "3 not evaluated in time, 1 not tried; 412 simulations, 38 s."
    )

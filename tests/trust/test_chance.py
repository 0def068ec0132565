"""The chance that a limit is held, and what a deployment is then worth."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from left_out_errors import left_out_errors

from pinn.evaluation.decisions import decide
from pinn.evaluation.expected_decisions import RULE, expected_decisions
from pinn.trust.chance import ErrorLaw, error_law, normal_law

EXCESS = np.geomspace(0.5, 2.0, 31)
LAWS = st.lists(st.floats(-3, 3), min_size=1, max_size=9).map(lambda x: ErrorLaw(tuple(x)))


@given(LAWS, st.floats(0.01, 0.5))
@settings(max_examples=30, deadline=None)
def test_a_tighter_limit_is_held_with_no_larger_chance(law, half):
    chance = law.chance(EXCESS, np.full(len(EXCESS), half))
    assert (np.diff(chance) <= 0).all()
    assert ((chance >= 0) & (chance <= 1)).all()


@given(LAWS, st.floats(0.01, 0.5))
@settings(max_examples=30, deadline=None)
def test_worth_is_throughput_times_chance_where_errors_are_small(law, half):
    widths = np.full(len(EXCESS), half)
    chance, worth = law.chance(EXCESS, widths), law.worth(EXCESS, widths)
    fastest, slowest = (np.exp(-half * f(law.errors)) for f in (min, max))
    assert (worth <= chance * fastest + 1e-12).all()
    assert (worth >= chance * slowest - 1e-12).all()


@given(LAWS, st.floats(-4, 4))
@settings(max_examples=30, deadline=None)
def test_trials_find_the_chance_that_a_formula_gives(law, worst):
    width = np.array([0.1])
    excess = np.exp(-0.1 * np.array([worst]))
    tried = law.held(lambda error: excess[0] * np.exp(0.1 * error) <= 1)
    assert tried == pytest.approx(law.chance(excess, width)[0])


@given(LAWS, st.floats(0.1, 10), st.floats(0, 0.5))
@settings(max_examples=30, deadline=None)
def test_the_expected_output_is_at_least_that_of_every_plan(law, most, slope):
    expected = law.expected_most(lambda error: most * np.exp(-slope * error))
    for planned in most * np.exp(-slope * np.array(law.errors)):
        reached = law.held(lambda error, x=planned: most * np.exp(-slope * error) >= x)
        assert expected >= planned * reached * (1 - 1e-9)
    assert expected <= most * np.exp(-slope * min(law.errors)) + 1e-12


def test_the_interval_of_a_normal_law_holds_its_level():
    half = np.array([0.2])
    for level in (0.5, 0.8, 0.9):
        inside = [normal_law(level).chance(np.exp(end * half), half) for end in (-1, 1)]
        # The chance to hold a limit is 1 half-width away at either end of the interval.
        assert inside[0] - inside[1] == pytest.approx(level, abs=0.05)


def test_a_law_is_that_of_the_rows_in_their_own_half_widths():
    draw = np.random.default_rng(0)
    half = draw.uniform(0.05, 0.3, 4000)
    errors = half * draw.normal(0.3, 0.5, 4000)
    law = error_law(errors, half, np.ones(4000))
    assert np.mean(law.errors) == pytest.approx(0.3, abs=0.03)
    chance = law.chance(np.exp(-0.3 * half[:1]), half[:1])
    assert chance == pytest.approx([0.5], abs=0.06)


def _offers(errors):
    """Predictions with these errors, each 3 % within a limit; the slower, the more throughput."""
    count = len(errors)
    tpot_s = 0.97 * np.resize([0.010, 0.015, 0.020, 0.030], count)
    observations = errors[["row_id", "model", "gpu"]].assign(
        prompt_tokens=1024,
        output_tokens=1024,
        concurrency=np.resize([8, 32, 32, 192], count),
        tensor_parallel_size=np.resize([1, 2], count),
    )
    predictions = errors[["split", "row_id"]].assign(
        held_out=errors["model"],
        method="network",
        tpot_s=tpot_s,
        ttft_s=1e-6,
        tpot_measured_s=tpot_s * np.exp(errors["tpot"]),
        ttft_measured_s=1e-6,
    )
    return predictions, observations


def test_where_predictions_are_far_too_short_the_rule_misses_fewer_limits():
    errors = left_out_errors(3, {"base": 0.05}, gpus=2, rows=8)
    errors["tpot"] += 0.15  # of every model: the law knows it from the others
    offers = _offers(errors)
    plain, by_rule = decide(*offers), expected_decisions(errors, *offers)
    assert (by_rule["method"] == RULE).all()
    assert len(by_rule) == len(plain) >= 18
    assert by_rule["missed"].mean() < 0.5 * plain["missed"].mean()
    assert by_rule["loss"].mean() < plain["loss"].mean()


def test_what_is_judged_chooses_nothing():
    errors = left_out_errors(3, {"base": 0.05}, gpus=2, rows=8)
    offers = _offers(errors)
    first = errors["model"] == "model 0"
    changed = errors.assign(tpot=np.where(first, -errors["tpot"], errors["tpot"]))
    of_first = [
        expected_decisions(e, *offers).query("model == 'model 0'").reset_index(drop=True)
        for e in (errors, changed)
    ]
    pd.testing.assert_frame_equal(*of_first)

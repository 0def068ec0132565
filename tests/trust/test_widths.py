"""Half-widths by traits: wider where errors are, right on held-out groups."""

from dataclasses import replace
from math import exp, log
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from calibrations import PLAIN, WIDENED, small_calibration, widened

from pinn.engines.deployment import Deployment
from pinn.evaluation.interval_widths import judge_intervals
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import VLLM, ServingSpec
from pinn.surrogate.uncertainty.intervals import step_half_width
from pinn.surrogate.uncertainty.width_fit import (
    constant_half_widths,
    fit_widths,
    group_weights,
    interval_score,
    nested_half_widths,
    with_traits,
)
from pinn.surrogate.uncertainty.widths import TRAITS, WIDE_LAYER, Widths

ENGINE, GPU, NARROW, SPREAD = TRAITS
#: Constant half-widths that errors are compared with.
HALF = {"tpot": 0.5, "ttft": 1.0}


def deployment(model="meta-llama/Llama-3.1-8B", engine=VLLM, **flags) -> Deployment:
    return Deployment(load_model(model), load_gpu("H100"), ServingSpec(engine=engine, **flags))


def drawn(groups=40, gain=2.0, seed=0, each=6, rows=12) -> pd.DataFrame:
    """Return held-out rows of groups, every other one of an engine with ``gain`` times the spread.

    A group's rows share half of their errors' variance. TTFT errors are twice as large as TPOT
    errors. On the first engine 90 % lie inside the constant.
    """
    draw = np.random.default_rng(seed)
    tables = []
    for group in range(groups):
        other = float(group % 2)
        for metric, half in HALF.items():
            error = draw.normal(0, 1) + draw.normal(0, 1, rows)
            tables.append(
                pd.DataFrame(
                    {
                        "group": f"group {group}",
                        "configuration": [f"c{i % each}" for i in range(rows)],
                        "metric": metric,
                        "half": half,
                        "error": 0.43 * half * error * gain**other,
                        ENGINE: other,
                        GPU: float(draw.integers(2)),
                        NARROW: draw.uniform(0, 1),
                        SPREAD: 0.0,
                    }
                )
            )
    return pd.concat(tables, ignore_index=True)


def share_inside(rows, half):
    return group_weights(rows) @ (rows["error"].abs().to_numpy() <= half)


def test_widths_are_twice_as_wide_where_errors_are():
    """Check factors over those fitted to the same draws with equal spreads, which show chance."""
    found, alike = (fit_widths(drawn(gain=gain)).traits for gain in (2.0, 1.0))
    gain = {name: exp(weight - alike[name]) for name, weight in found.items()}
    assert gain == pytest.approx({ENGINE: 2.0, GPU: 1.0, NARROW: 1.0, SPREAD: 1.0}, rel=0.05)


def test_what_hardly_occurs_hardly_counts():
    """Check that one group of a hundred with errors three times as large gives a smaller factor."""
    rows = drawn(groups=100, gain=1.0)
    mine = rows["group"] == "group 7"
    rows = rows.assign(error=rows["error"].where(~mine, 3 * rows["error"]))
    rows = rows.assign(**{SPREAD: mine.astype(float)})
    assert 1 < exp(fit_widths(rows).traits[SPREAD]) < 2.7


def test_a_group_has_no_say_in_its_own_widths():
    rows = drawn()
    mine = (rows["group"] == "group 3").to_numpy()
    other = rows.assign(error=rows["error"].where(~mine, 5 * rows["error"]))
    for half_widths in (nested_half_widths, constant_half_widths):
        before, after = half_widths(rows), half_widths(other)
        np.testing.assert_array_equal(before[mine], after[mine])
        assert (before[~mine] != after[~mine]).any()


def test_nested_widths_cover_their_level_and_beat_the_constant():
    """Check 90 % coverage of held-out groups of both engines; a constant covers too few of one."""
    rows = drawn(groups=100)
    half, constant = nested_half_widths(rows), constant_half_widths(rows)
    assert share_inside(rows, half) == pytest.approx(0.9, abs=0.03)
    for other in (0.0, 1.0):
        mine = (rows[ENGINE] == other).to_numpy()
        assert share_inside(rows[mine], half[mine]) == pytest.approx(0.9, abs=0.04)
    mine = (rows[ENGINE] == 1.0).to_numpy()
    assert share_inside(rows[mine], constant[mine]) < 0.86
    assert interval_score(rows, half) < 0.97 * interval_score(rows, constant)


def test_without_traits_widths_are_the_quantile_of_errors():
    rows = drawn(groups=10).assign(**dict.fromkeys(TRAITS, 0.0))
    np.testing.assert_allclose(nested_half_widths(rows), constant_half_widths(rows))


def test_levels_scale_one_metric_alone(tmp_path: Path):
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(b"a network")
    before = small_calibration(path)
    found = replace(before, widths=Widths(levels={"ttft": 2.0}))
    for metric, factor in (("tpot", 1.0), ("ttft", 2.0)):
        half = before.half_width(metric, PLAIN, gpu_known=True)
        assert found.half_width(metric, PLAIN, gpu_known=True) == factor * half


def test_the_order_and_names_of_rows_do_not_matter():
    rows = drawn(groups=10)
    shuffled = rows.sample(frac=1, random_state=0)
    half = pd.Series(nested_half_widths(shuffled), shuffled.index)[rows.index]
    np.testing.assert_allclose(half, nested_half_widths(rows))


def test_groups_weigh_the_same_and_what_is_in_them_too():
    """Check weights of groups with other numbers of rows, configurations and metrics."""
    rows = drawn(groups=3)
    few = (rows["group"] != "group 0") | (rows["configuration"] == "c0")
    rows = rows[few & ~((rows["group"] == "group 1") & (rows["metric"] == "ttft"))]
    weight = pd.Series(group_weights(rows), rows.index)
    assert weight.sum() == pytest.approx(1)
    assert weight.groupby(rows["group"]).sum().tolist() == pytest.approx([1 / 3] * 3)
    of_metric = weight.groupby([rows["group"], rows["metric"]]).sum()
    assert of_metric.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 6, 1 / 6])


def test_the_score_is_the_width_and_what_lies_outside():
    rows = drawn(groups=1, rows=2, each=2).query("metric == 'tpot'").assign(error=[0.1, -0.5])
    assert interval_score(rows, np.array([0.2, 0.2])) == pytest.approx(0.4 + 20 * 0.3 / 2)


def test_without_traits_nothing_is_multiplied():
    for known in (True, False):
        assert Widths().of(deployment(engine="sglang"), known) == 1.0
        assert Widths().reasons(deployment(engine="sglang"), known) == {}


def test_traits_are_read_off_the_deployment():
    moe = "Qwen/Qwen3-30B-A3B"
    spread = deployment(moe, tensor_parallel_size=2, enable_expert_parallel=True)
    each = [(PLAIN, True), (deployment(moe, "sglang"), False), (spread, True)]
    pairs = pd.DataFrame({"deployment": [one for one, _ in each]})
    found = with_traits(pairs, np.array([known for _, known in each]))[list(TRAITS)]
    narrow = log(WIDE_LAYER / load_model(moe).hidden_size)
    assert found.to_numpy() == pytest.approx(
        np.array([[0, 0, 0, 0], [1, 1, narrow, 0], [0, 0, narrow, 1]])
    )


def test_factors_of_traits_are_multiplied():
    widths = Widths(WIDENED)
    narrow = deployment("Qwen/Qwen3-30B-A3B", "sglang")
    least = exp(WIDENED[NARROW] * log(WIDE_LAYER / narrow.model.hidden_size))
    assert widths.of(PLAIN, True) == pytest.approx(1.0)
    assert widths.of(narrow, False) == pytest.approx(exp(0.3) * exp(0.7) * least)


def test_reasons_name_what_widens_and_the_most_first():
    widths = Widths(WIDENED | {SPREAD: -0.5})
    found = widths.reasons(deployment("Qwen/Qwen3-30B-A3B", "sglang"), False)
    assert list(found.items()) == [(ENGINE, exp(0.7)), (GPU, exp(0.3))]
    assert widths.reasons(PLAIN, True) == {}


def test_intervals_are_the_constants_times_their_factors(tmp_path: Path):
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(b"a network")
    before, found, other = small_calibration(path), widened(path), deployment(engine="trtllm")
    for one, known in ((PLAIN, True), (other, True), (other, False)):
        for metric in HALF:
            constant = before.half_width(metric, one, known)
            assert found.half_width(metric, one, known) == constant * found.widths.of(one, known)
    halves = found.log_half_widths(other, gpu_known=True)
    assert step_half_width(halves, "1 decode @ 9") == pytest.approx(0.1 * exp(0.7))
    assert step_half_width(halves, "1 prefill 9 @ 0") == pytest.approx(0.3 * exp(0.7))


def test_judging_tells_the_share_inside_and_the_worst_group():
    rows = drawn(groups=60)
    rows = rows.assign(nested=nested_half_widths(rows))
    found = judge_intervals(rows)
    assert found.covered == pytest.approx(share_inside(rows, rows["nested"].to_numpy()))
    inside = {
        group: share_inside(of_group, of_group["nested"].to_numpy())
        for group, of_group in rows.groupby("group")
    }
    assert found.worst_covered == pytest.approx(min(inside.values()))
    assert inside[found.worst] == pytest.approx(found.worst_covered)
    score = interval_score(rows, rows["nested"].to_numpy())
    assert found.constant == pytest.approx(score / interval_score(rows, constant_half_widths(rows)))
    assert found.stated == pytest.approx(score / interval_score(rows, rows["half"].to_numpy()))
    assert f"coverage {100 * found.covered:.0f} %" in str(found)

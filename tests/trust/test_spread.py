"""The learned spread: it covers what it should, grows where errors grow, and never shrinks."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from calibrations import sizes
from hypothesis import given
from hypothesis import strategies as st
from left_out_errors import left_out_errors

from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.deployment import Deployment
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.precision_override import with_precision
from pinn.specs.serving import ServingSpec
from pinn.trust.distance import KernelDistance
from pinn.trust.spread import Spread
from pinn.trust.spread_fit import fit_spread, half_widths, with_strength
from pinn.trust.spread_parts import SPREAD_PARTS, Situation, spread_parts

#: Of a normal distribution, in standard deviations, what 90 % lie within.
NINETY = 1.645

LAW = {"base": 0.02, "experts": 0.1}


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_new_models_are_covered_as_often_as_asked(level):
    known, new = (left_out_errors(16, LAW, seed=seed) for seed in (1, 2))
    half = half_widths(fit_spread(known, "tpot", level), new)
    assert np.mean(new["tpot"].abs() <= half) == pytest.approx(level, abs=0.05)


def test_the_law_behind_the_errors_is_found():
    errors = left_out_errors(24, LAW, rows=60)
    half = half_widths(with_strength(errors, "tpot", 1e-5, 0.9), errors)
    expected = NINETY * (0.02 + 0.1 * errors["experts"])
    np.testing.assert_allclose(half, expected, rtol=0.2)


def test_models_without_experts_are_tight_though_others_are_wide():
    errors = left_out_errors(16, LAW)
    half = half_widths(fit_spread(errors, "tpot"), errors)
    dense = errors["experts"] == 0
    assert half[dense].max() < 0.5 * np.median(half[~dense])


def test_a_strong_prior_keeps_its_proportions_and_a_common_factor_is_free():
    errors = left_out_errors(6, LAW)
    found = with_strength(errors, "tpot", 1e4, 0.9)
    factors = [found.sizes[name] / part.prior for name, part in SPREAD_PARTS.items()]
    assert factors == pytest.approx([factors[0]] * len(factors), rel=1e-2)
    doubled = with_strength(errors.assign(tpot=2 * errors["tpot"]), "tpot", 1e4, 0.9)
    assert doubled.sizes["gemm"] == pytest.approx(2 * found.sizes["gemm"], rel=0.05)


def test_rows_of_a_group_count_once():
    errors = left_out_errors(6, LAW)
    more = pd.concat([errors, *[errors[errors["model"] == "model 1"]] * 9], ignore_index=True)
    half = [half_widths(fit_spread(table, "tpot"), errors) for table in (errors, more)]
    np.testing.assert_allclose(*half, rtol=0.02)


def test_a_kind_with_small_errors_does_not_narrow_the_others():
    errors = left_out_errors(12, LAW)
    runs = left_out_errors(12, {"base": 0.002}, seed=3, split="serving-runs-leave-one-model-out")
    half = half_widths(fit_spread(pd.concat([errors, runs], ignore_index=True), "tpot"), errors)
    assert np.mean(errors["tpot"].abs() <= half) >= 0.89


def test_one_model_is_not_enough():
    with pytest.raises(PinnError, match="at least 2 left-out models, got 1"):
        fit_spread(left_out_errors(1, LAW), "tpot")


VALUES = st.lists(st.floats(0, 2), min_size=2 * len(SPREAD_PARTS), max_size=2 * len(SPREAD_PARTS))


@given(values=VALUES, name=st.sampled_from(list(SPREAD_PARTS)), more=st.floats(0, 3))
def test_no_part_makes_an_interval_narrower(values, name, more):
    n = len(SPREAD_PARTS)
    spread = Spread(dict(zip(SPREAD_PARTS, values[:n], strict=True)), 0.1)
    parts = dict(zip(SPREAD_PARTS, values[n:], strict=True))
    wider = spread.half_width(parts | {name: parts[name] + more})
    assert wider >= spread.half_width(parts) >= 0


def situation(precision="bf16", stretch=0.0, gap=0.0, requests=8, known=True, serving=None):
    deployment = Deployment(
        with_precision(load_model("Qwen/Qwen3-30B-A3B"), precision),
        load_gpu("H100"),
        serving or ServingSpec(),
    )
    shares = {"gemm": 0.4, "experts": 0.5, "decode_attention": 0.1}
    distance = KernelDistance(stretch + gap, {"gemm": stretch + gap}, float(gap > 0), gap, shares)
    return Situation(deployment, distance, requests, known)


def test_fewer_bits_stretch_and_what_is_unmeasured_add_to_the_parts():
    plain = spread_parts(situation())
    assert plain["experts"] == 0.5
    assert plain["few_bit_experts"] == plain["few_bit_gemm"] == plain["unknown_gpu"] == 0
    fp8, fp4 = (spread_parts(situation(precision=p)) for p in ("fp8", "nvfp4"))
    assert 0 < fp8["few_bit_experts"] < fp4["few_bit_experts"] == 0.5
    assert spread_parts(situation(stretch=0.3, gap=0.2))["stretch"] == pytest.approx(0.3)
    assert spread_parts(situation(stretch=0.3, gap=0.2))["other_gpu"] == pytest.approx(0.2)
    assert spread_parts(situation(known=False))["unknown_gpu"] == 1
    assert spread_parts(situation(requests=64))["load"] > plain["load"]
    apart = spread_parts(situation(serving=ServingSpec(2, enable_expert_parallel=True)))
    assert apart["expert_parallel"] == pytest.approx(0.5 / 3)
    assert plain["expert_parallel"] == plain["latent_attention"] == 0
    penalized = ServingSpec(override_generation_config='{"repetition_penalty": 1.1}')
    assert spread_parts(situation(serving=penalized))["penalties"] == 1 > plain["penalties"]
    for other in (fp8, fp4, spread_parts(situation(stretch=0.3, gap=0.2, known=False))):
        assert all(other[name] >= plain[name] for name in SPREAD_PARTS)


def test_uneven_experts_matter_most_where_a_step_hits_some_of_them_often():
    one, some, all_of_them = (
        spread_parts(situation(requests=requests))["uneven_experts"] for requests in (1, 32, 4096)
    )
    assert one == pytest.approx(0.0, abs=1e-3)  # a token hits its own, popular or not
    assert some > 0.03
    assert 0 <= all_of_them < 0.1 * some
    dense = Deployment(load_model("Qwen/Qwen3-8B"), load_gpu("H100"), ServingSpec())
    assert spread_parts(replace(situation(), deployment=dense))["uneven_experts"] == 0


def test_half_widths_of_rows_are_those_of_their_parts():
    errors = left_out_errors(2, LAW)
    spread = Spread(sizes(base=0.1, experts=0.3), 0.1)
    row = errors.iloc[0]
    expected = spread.half_width({name: row[name] for name in SPREAD_PARTS})
    assert half_widths(spread, errors)[0] == pytest.approx(expected)

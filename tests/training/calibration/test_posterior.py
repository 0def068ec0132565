"""Posteriors: the prior without measurements, the truth with many, intervals between."""

import itertools

import numpy as np
import pytest
from assumed_priors import beta_prior
from calibration_rows import BASE, deployment, intervals

from pinn.calibration.calibrate import calibrate_to
from pinn.calibration.posterior import (
    fit_posterior,
    percentile_half_widths,
    server_half_widths,
    trust_sentences,
)
from pinn.calibration.prior import (
    IN_TRAINING,
    SCALARS,
    KnownSteps,
    Prior,
    Start,
    all_features,
    assumed_prior,
    checkpoint_prior,
    known_steps,
    membership,
)
from pinn.common.files import find_checkpoint
from pinn.engines.configurations import make_deployment
from pinn.engines.deployment import Deployment
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs
from pinn.specs.batch import parse_batch
from pinn.surrogate.coefficient_set import CoefficientSet
from pinn.surrogate.coefficients import NAMES, Coefficients
from pinn.surrogate.step_features import (
    LAUNCHING,
    STEP_FEATURES,
    overlapped,
    seconds_by_feature,
    step_features,
)
from pinn.surrogate.surrogate import Surrogate
from pinn.surrogate.uncertainty.intervals import read_calibration, step_half_width
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE

PRIOR = beta_prior(BASE)


def prompt_features(text: str = "1 prefill 4000 @ 0") -> np.ndarray:
    return all_features(step_features(step_costs([deployment()]), sum_batches([parse_batch(text)])))


def test_every_coefficient_has_one_scalar() -> None:
    assert (membership().sum(axis=1) == 1).all()
    assert {n for group in SCALARS.values() for n in group} == set(NAMES)


def test_a_prior_told_of_a_step_keeps_its_spread() -> None:
    known = KnownSteps(prompt_features()[:, : len(STEP_FEATURES)], np.array([0.05]))
    mean = PRIOR.mean
    free, told = (assumed_prior(mean, known=k) for k in (None, known))
    spread = [p.spread(prompt_features())[0] for p in (free, told)]
    assert spread[1] < 0.05 < spread[0]
    size = np.sqrt(np.diag(told.covariance)) + 1e-30
    assert np.linalg.eigvalsh(told.covariance / np.outer(size, size)).min() > -1e-9


def test_more_rows_narrow_the_posterior_and_never_widen_it() -> None:
    rows = intervals(1.2 * BASE, 400, 0.01)
    noise = np.full(400, 0.01)
    features = all_features(rows.features)
    variance = [np.diag(PRIOR.covariance)]
    for count in (5, 50, 400):
        found = fit_posterior(PRIOR, features[:count], rows.seconds[:count], noise[:count])
        variance.append(np.diag(found.covariance))
    for before, after in itertools.pairwise(variance):
        assert (after <= before * (1 + 1e-6)).all()


def test_a_row_of_unknown_noise_tells_half_of_what_a_normal_one_would() -> None:
    """Check Fisher's information of Student's t: (d + 1) / (d + 3) rows of its scale, d = 1.

    There are five rows without a residual, and the scale of 0.02 counts as five more. The squared
    scale is therefore 0.0004 x 5 / 10. The rows narrow a spread s to
    s^2 / (1 + 5 s^2 / (2 x 0.0002)).
    """
    at = int(np.flatnonzero(np.diag(PRIOR.covariance))[0])
    variance = 0.1**2 * PRIOR.mean[at] ** 2
    prior = Prior(PRIOR.mean, np.diag(np.eye(len(PRIOR.mean))[at]) * variance)
    features = np.zeros((5, len(PRIOR.mean)))
    features[:, at] = 1.0
    found = fit_posterior(prior, features, np.full(5, PRIOR.mean[at]))
    assert found.noise == pytest.approx(np.full(5, np.sqrt(0.0002)), rel=1e-6)
    assert found.covariance[at, at] == pytest.approx(
        variance / (1 + 5 * 0.01 / (2 * 0.0002)), rel=1e-6
    )


def test_going_on_from_a_posterior_is_fitting_to_both_at_once() -> None:
    rows = intervals(1.1 * BASE, 60, 0.01)
    features, noise = all_features(rows.features), np.full(60, 0.01)
    whole = fit_posterior(PRIOR, features, rows.seconds, noise)
    first = fit_posterior(PRIOR, features[:30], rows.seconds[:30], noise[:30])
    then = fit_posterior(first, features[30:], rows.seconds[30:], noise[30:])
    assert features @ then.mean == pytest.approx(features @ whole.mean, rel=2e-3)
    assert then.spread(features) == pytest.approx(whole.spread(features), rel=0.05)


def test_known_scalars_come_back_within_their_intervals() -> None:
    """Check 200 servers with factors drawn from the prior, on steps seen and unseen."""
    rng, inside = np.random.default_rng(0), []
    unseen = prompt_features("1 prefill 2000 @ 0 + 20 decode @ 900")
    for seed in range(200):
        true = BASE.copy()
        for scalar in list(SCALARS)[:-1]:
            at = [i for i, f in enumerate(STEP_FEATURES.values()) if f.scalar == scalar]
            true[at] *= 1 + rng.uniform(0.1, 0.3)
        rows = intervals(true, 12, 0.01, seed)
        found = fit_posterior(PRIOR, all_features(rows.features), rows.seconds, np.full(12, 0.01))
        truth = np.concatenate([true, np.zeros(len(NAMES) - len(true))])
        spread = found.spread(unseen) * (unseen @ found.mean)
        inside.append(abs(unseen @ (found.mean - truth)) <= 1.645 * spread)
    assert np.mean(inside) >= 0.85


def test_one_window_that_contradicts_all_others_moves_nothing_far() -> None:
    rows = intervals(BASE, 200, 0.005)
    odd = int(np.argmax(rows.sums.prefill_tokens))
    rows.seconds[odd] *= 3
    found = calibrate_to(rows, PRIOR)
    before = prompt_features() @ PRIOR.mean
    assert prompt_features() @ found.mean == pytest.approx(before, rel=0.03)


@pytest.mark.parametrize("flags", [{"max_num_seqs": 128}, {"enforce_eager": True}])
def test_a_checkpoint_knows_prompts_that_wait_for_launching(flags: dict[str, object]) -> None:
    wanted = {"model": "meta-llama/Llama-2-7b-hf", "gpu": "H100", "engine_version": "0.15.1"}
    small, checkpoint = make_deployment(wanted | flags), find_checkpoint(None)
    found = Surrogate.load(checkpoint).coefficients([small])
    prior, missing = checkpoint_prior(checkpoint, small, found)
    assert missing is None
    features = steps_of(small, known_steps(small), found.beta[0])
    launching = seconds_by_feature(features, found.beta[0])[-1, LAUNCHING]
    assert launching.sum() > 0
    halves = read_calibration(checkpoint).log_half_widths(small, True)
    spread = prior.spread(all_features(features))
    for step, each in zip(known_steps(small), spread, strict=True):
        assert each <= step_half_width(halves, step) / NORMAL_QUANTILE


def test_a_server_in_the_training_data_is_named() -> None:
    for model, is_known in (("meta-llama/Llama-2-7b-hf", True), ("Qwen/Qwen3-8B", False)):
        start = Start(None, None, None)
        small = make_deployment({"model": model, "gpu": "H100"})
        start.prior(small, start.coefficients(small))
        assert any(note.startswith(IN_TRAINING) for note in start.notes) == is_known


def steps_of(target: Deployment, texts: list[str], beta: np.ndarray) -> np.ndarray:
    batches = [parse_batch(text) for text in texts]
    return overlapped(step_features(step_costs([target]), sum_batches(batches)), beta)


def test_the_ttft_interval_is_as_wide_as_the_held_out_errors_require() -> None:
    facts = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100-SXM"}
    target = make_deployment({"model": "meta-llama/Llama-3.1-8B", "gpu": "H100"})
    held = [("ttft_mean_s", 1.0), ("ttft_mean_s", 1.0), ("tpot_mean_s", 9.0)]

    def widths(ttft_ratio: float) -> tuple[float, float]:
        rows = [{"figure": f, "measured": 1.0, "after": r * ttft_ratio} for f, r in held]
        found = CoefficientSet(
            facts,
            Coefficients(PRIOR.beta[None], PRIOR.alpha[None]),
            calibration={"held_out": rows},
            covariance=0.01 * np.diag(PRIOR.mean**2),
        )
        return server_half_widths(found, target, "32 decode @ 700")

    step, narrow = widths(1.0)
    assert widths(1.01) == (step, narrow)
    # Student's t with two degrees of freedom: 90 % are within 2.920 standard deviations.
    assert widths(2.0) == (step, pytest.approx(2.920 * np.log(2), rel=1e-3))


def test_percentiles_have_the_half_widths_of_their_own_held_out_errors() -> None:
    rows = [
        {"figure": f"{metric}_{name}_s", "measured": 1.0, "after": ratio}
        for metric, name, ratio in (
            ("ttft", "p99", 0.7), ("ttft", "p99", 0.7), ("ttft", "p50", 1.0), ("e2e", "p99", 1.0)
        )
    ]  # fmt: skip
    coefficients = Coefficients(PRIOR.beta[None], PRIOR.alpha[None])
    found = CoefficientSet({}, coefficients, calibration={"held_out_percentiles": rows})
    expected = {"ttft": 2.920 * -np.log(0.7), "e2e": 0.0}
    assert percentile_half_widths(found, "p99") == pytest.approx(expected, rel=1e-3)
    assert percentile_half_widths(CoefficientSet({}, coefficients), "p99") == {}


def test_a_calibrated_file_says_what_was_not_measured_and_repeats_its_warnings() -> None:
    coefficients = Coefficients(PRIOR.beta[None], PRIOR.alpha[None])
    quantities = [
        {"name": name, "unit": unit, "before_error": 0.2, "after_error": error}
        for name, unit, error in (("bytes", "x", 0.05), ("prefill", "x", 0.199), ("step", "s", 0.2))
    ]
    facts = {"quantities": quantities, "warnings": ["TPOT was 35 % longer than predicted."]}
    said = trust_sentences(CoefficientSet({}, coefficients, calibration=facts))
    assert "barely constrain these calibration factors: prefill." in said
    assert said.endswith("TPOT was 35 % longer than predicted.")
    assert "constrained" not in trust_sentences(CoefficientSet({}, coefficients))

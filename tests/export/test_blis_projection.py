"""Fits of BLIS's formula find known vectors, compensate where they can, and are described."""

from __future__ import annotations

import csv
import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import yaml

from pinn.engines.configurations import make_deployments
from pinn.export.blis_batches import guard, request_lengths
from pinn.export.blis_features import (
    BASIS,
    CONSTANTS,
    BlisSums,
    Limited,
    Timed,
    blis_features,
    fit,
    project,
)
from pinn.export.blis_files import (
    coefficients_yaml,
    folder_name,
    vector_facts,
    write_configuration,
    write_summary,
)
from pinn.export.blis_loads import is_standard, steady_load
from pinn.export.blis_model import blis_model
from pinn.export.blis_vectors import (
    MIX,
    SEVERAL,
    blis_vectors,
    latency_of,
    worst_taken,
)
from pinn.export.configured import from_checkpoint
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.workload import PromptGroups, shared_prefix
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.units import MICROSECOND


def random_features(deployment, count=400):
    rng = np.random.default_rng(0)
    prefill, decodes = rng.integers(0, 900, count), rng.integers(1, 128, count)
    sums = BlisSums(
        *(x.astype(float) for x in (prefill, decodes, decodes * 700, decodes + 1, prefill * 900))
    )
    return blis_features(blis_model(deployment), sums)


def test_a_vector_in_reach_is_reproduced(llama_8b_h100):
    features = random_features(llama_8b_h100)
    beta = np.zeros(len(BASIS))
    beta[[0, 2, 5, 6]] = 0.4, 1.3, 11.0, 150.0  # part of the constant is on the weights
    found = project(Timed(features, features @ beta))
    assert (found.beta >= 0).all()
    assert features @ found.beta == pytest.approx(features @ beta, rel=1e-6)
    assert found.errors.max() < 1e-3  # the error of cutting to whole microseconds


def test_outliers_do_not_pull_the_vector(llama_8b_h100):
    features = random_features(llama_8b_h100)
    step_us = features @ np.full(len(BASIS), 0.5)
    disturbed = step_us.copy()
    disturbed[::10] *= 3
    assert features @ fit(Timed(features, disturbed)) == pytest.approx(step_us, rel=1e-2)


def test_no_guarded_batch_is_off_by_more_where_a_vector_can_do_that(llama_8b_h100):
    """A bend in the load would lead least deviations to a wrong step of one decode."""
    features = random_features(llama_8b_h100)
    step_us = features @ np.full(len(BASIS), 0.5) + 3000 * (features[:, 5] < 40)
    low = features[:, 5] < 20
    guarded = Timed(features[low], step_us[low])
    batches, limit = Timed(features, step_us), 0.15
    free, held = fit(batches), fit(batches, [Limited(guarded, limit, 100.0)])
    assert np.abs(guarded.errors(free)).max() > 1.5 * limit
    assert np.abs(guarded.errors(held)).max() < limit + 1e-3


def test_unused_terms_are_reported(llama_8b_h100):
    found = project(Timed(random_features(llama_8b_h100), np.full(400, 5000.0)))
    assert "request" in found.zeroed
    assert "moe_dispatch" not in found.zeroed  # never occurs on one GPU


@pytest.fixture(scope="module")
def released():
    """Return a dense model and a mixture of experts with the released coefficients."""
    from pinn.common.files import find_checkpoint

    kept, deployments, _ = make_deployments(
        [
            {
                "model": "meta-llama/Llama-3.1-8B",
                "gpu": "H100",
                "max_model_len": 4096,
                "max_num_seqs": 128,
            },
            {
                "model": "Qwen/Qwen3-30B-A3B",
                "gpu": "H100",
                "tensor_parallel_size": 2,
                "max_model_len": 4096,
                "max_num_seqs": 128,
            },
        ]
    )
    return from_checkpoint(find_checkpoint(), kept, deployments)


@pytest.fixture(scope="module")
def vectors(released):
    return [blis_vectors(released, row) for row in range(2)]


def usual(found):
    """Return vectors of the steady loads with the usual prompts, from few decodes to many."""
    steady = [v for v in found if is_standard(v.load)]
    lengths = sorted({v.lengths.prompt for v in steady})
    return [v for v in steady if v.lengths.prompt == lengths[len(lengths) // 2]]


def test_each_load_is_reproduced_by_its_own_vector(vectors):
    for found, most in zip(vectors, (0.01, 0.08), strict=True):
        assert found[-1].load == MIX
        assert np.median([v.projection.median_error for v in found[:-1]]) < most
        for v in found[:-1]:
            assert v.step_errors[v.load] < 2 * v.projection.median_error + 0.01


def test_loads_go_from_one_request_to_a_full_batch(released, vectors):
    for deployment, found in zip(released.deployments, vectors, strict=True):
        each = usual(found)
        assert each[0].taken[0] == 1
        assert each[-1].taken[1] == deployment.recipe.max_requests
        assert all(b.taken[0] == a.decodes for a, b in pairwise(each))
        assert each[0].decodes < 2
        assert each[-1].output_per_s > 10 * each[0].output_per_s


def test_a_dense_model_has_one_guard_and_experts_have_one_for_each_load(released, vectors):
    dense, experts = vectors
    latency = latency_of(released, 0)
    guards = {v.lengths: guard(latency, v.lengths).with_prompts(0, 1) for v in dense}
    for vector in dense:
        assert np.abs(guards[vector.lengths].batches.errors(vector.projection.beta)).max() < 0.16
    assert abs(worst_taken(experts).worst.error) < 0.25
    assert abs(experts[-1].worst.error) > abs(worst_taken(experts).worst.error)


def test_steps_with_as_many_prompts_as_a_load_brings_are_limited_too(vectors):
    # One load of the mixture exceeds its 25 %: the formula cannot meet the limits of both types.
    for found, limit in zip(vectors, (0.15, 0.28), strict=True):
        steady = [v for v in found if is_standard(v.load)]
        several = [v for v in steady if v.several is not None]
        assert len(several) > 0.5 * len(steady)
        for v in several:
            assert 2 <= v.several.prompts <= v.prompts <= 4
            assert abs(v.several.error) < limit + 1e-3
            assert vector_facts(v)["worst_batches"][SEVERAL] == str(v.several)
        assert max(v.prompts for v in steady) >= 3


def test_arrival_grows_with_the_step_time(vectors):
    for found in vectors:
        few, *_, many = usual(found)
        assert many.mean_step_us > few.mean_step_us
        assert many.alpha[0] > few.alpha[0] > 0


def test_the_api_servers_work_on_a_token_is_in_no_gap(released, vectors):
    names = list(REQUEST_FEATURES)
    assert (released.coefficients.alpha[:, names.index("output_token.constant")] > 0).all()
    assert all(v.alpha[2] == 0 for found in vectors for v in found)


def test_alpha_gives_blis_the_same_times(released, vectors):
    """BLIS schedules synchronously and knows only the three alphas of the vector.

    Its QueueingTime is a delay that occupies no server, and is modelled as one here.
    """
    latency = latency_of(released, 0)
    names = ("schedule_to_first_token.constant", "completion.constant", "output_token.constant")
    lengths = request_lengths(latency)[2]
    for load in (steady_load(latency, lengths, n) for n in (0.7, 1.4**8)):
        vector = next(v for v in vectors[0] if v.load == load.name)
        alpha = np.zeros_like(latency.alpha)
        alpha[[list(REQUEST_FEATURES).index(name) for name in names]] = vector.alpha
        bare = dataclasses.replace(latency, alpha=alpha * MICROSECOND)
        serving = dataclasses.replace(latency.deployment.serving, async_scheduling=False)
        target = dataclasses.replace(latency.deployment, serving=serving)
        blis = simulate(target, load, bare).requests
        whole = simulate(latency.deployment, load, latency).requests
        assert np.nanmedian(blis.ttft_s) == pytest.approx(np.nanmedian(whole.ttft_s), rel=0.1)
        assert np.nanmedian(blis.e2e_s) == pytest.approx(np.nanmedian(whole.e2e_s), rel=0.01)


def test_files_are_what_blis_reads(released, vectors, tmp_path):
    for row, found in enumerate(vectors):
        write_configuration(released, row, found, 1000, tmp_path)
    write_summary(released, dict(enumerate(vectors)), tmp_path / "summary.csv")
    folder = tmp_path / folder_name(released, 1)
    assert {p.name for p in folder.iterdir()} == {
        "config.json", "hardware.json", "run.sh", "pick.awk", "loads.csv", "coefficients.yaml"
    }  # fmt: skip
    mix = vectors[1][-1]
    # Any other key is fatal to BLIS.
    assert yaml.safe_load((folder / "coefficients.yaml").read_text()) == {
        "trained_physics_coefficients": {
            "alpha_coeffs": list(mix.alpha),
            "beta_coeffs": mix.projection.beta.tolist(),
        }
    }
    with (folder / "loads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["load"] for row in rows] == [v.load for v in vectors[1]]
    for row, v in zip(rows, vectors[1], strict=True):
        beta = [float(text) for name, text in row.items() if name.startswith("beta_")]
        assert beta == v.projection.beta.tolist()
        assert float(row["worst_batch_error"]) == pytest.approx(v.worst.error, abs=1e-4)
    with (tmp_path / "summary.csv").open() as file:
        assert len(list(csv.DictReader(file))) == sum(map(len, vectors))


def test_facts_in_a_coefficient_file_are_comments(vectors):
    text = coefficients_yaml(vectors[0][0], {"load": "a\nb: c"})
    assert list(yaml.safe_load(text)) == ["trained_physics_coefficients"]


def test_constants_lie_on_no_term_that_blis_may_read_otherwise(vectors):
    for found in vectors:
        by_name = [dict(zip(BASIS, v.projection.beta, strict=True)) for v in found]
        assert any(each["step"] > 0 for each in by_name)
        assert all(each[name] == 0 for each in by_name for name in CONSTANTS)


def test_a_file_says_what_a_wrong_use_costs(vectors):
    few, *_, many = usual(vectors[1])
    assert few.step_errors[many.load] > 5 * few.step_errors[few.load]
    assert many.first_token_errors[many.load] == 0
    facts = vector_facts(few)
    worst = max(few.step_errors, key=lambda load: few.step_errors[load])
    assert facts["worst_step_error"] == f"{100 * few.step_errors[worst]:.1f} % under {worst}"
    load, worst = max(few.first_token_errors.items(), key=lambda item: abs(item[1]))
    assert facts["worst_first_token_error"] == f"{100 * worst:+.1f} % under {load}"
    assert str(few.worst) in facts["worst_batches"].values()


def test_an_overloaded_load_is_in_no_mix_and_in_no_file(released, tmp_path):
    """A flood queues up for seconds; savings of common prompts are in the vector and reported."""
    flood, shared = (
        shared_prefix(
            [Stage(rate, 5.0)], PromptGroups(groups, 10, 400, 147), 248, name=name,
        )
        for name, rate, groups in (("flood", 60.0, 10), ("shared", 4.0, 1))
    )  # fmt: skip
    few = replace_serving(released, max_num_seqs=32)
    alone, found = blis_vectors(few, 1, [shared]), blis_vectors(few, 1, [shared, flood])
    overloaded = next(v for v in found if v.load == "flood")
    assert overloaded.overloaded
    assert overloaded.alpha[0] < 5 * overloaded.mean_step_us
    assert found[-1].alpha == alone[-1].alpha
    assert found[-1].projection.beta.tolist() == alone[-1].projection.beta.tolist()
    own = next(v for v in found if v.load == "shared")
    assert own.shared > 0
    assert "step times are too short" in vector_facts(own)["shared_prompts"]
    assert all(v.shared == 0 for v in found if is_standard(v.load))
    write_configuration(few, 1, found, 1000, tmp_path)
    text = (tmp_path / folder_name(few, 1) / "loads.csv").read_text()
    assert "\nshared," in text
    assert "flood" not in text


def replace_serving(configured, **flags):
    """Return the configurations with other flags."""
    deployments = [
        dataclasses.replace(d, serving=dataclasses.replace(d.serving, **flags))
        for d in configured.deployments
    ]
    return dataclasses.replace(configured, deployments=deployments)

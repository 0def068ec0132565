"""The projection finds what is there, compensates where it can, and its files say what they are."""

from __future__ import annotations

import csv
import dataclasses

import numpy as np
import pytest
import yaml

from pinn.coefficients.configurations import make_deployments
from pinn.export.blis_features import BASIS, BlisSums, blis_features
from pinn.export.blis_files import (
    coefficients_yaml,
    folder_name,
    vector_facts,
    write_configuration,
    write_summary,
)
from pinn.export.blis_model import blis_model
from pinn.export.blis_projection import CONSTANTS, fit, project
from pinn.export.blis_vectors import MIX, blis_vectors, own_errors
from pinn.export.blis_workloads import standard_loads
from pinn.export.configured import from_checkpoint
from pinn.physics.request import REQUEST_FEATURES
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.synthetic import shared_prefix
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
    beta[[0, 2, 5, 6]] = 0.4, 1.3, 11.0, 150.0  # a part of the constant lies on the weights
    found = project(features, features @ beta)
    assert (found.beta >= 0).all()
    assert features @ found.beta == pytest.approx(features @ beta, rel=1e-6)
    assert found.errors.max() < 1e-3  # what cutting to whole microseconds costs


def test_outliers_do_not_pull_the_vector(llama_8b_h100):
    features = random_features(llama_8b_h100)
    step_us = features @ np.full(len(BASIS), 0.5)
    disturbed = step_us.copy()
    disturbed[::10] *= 3
    assert features @ fit(features, disturbed) == pytest.approx(step_us, rel=1e-2)


def test_unused_terms_are_reported(llama_8b_h100):
    found = project(random_features(llama_8b_h100), np.full(400, 5000.0))
    assert "request" in found.zeroed
    assert "moe_dispatch" not in found.zeroed  # never occurs on one GPU


@pytest.fixture(scope="module")
def released():
    """A dense model and a mixture of experts with the coefficients of the released checkpoint."""
    from pinn.specs.data_folder import find_checkpoint

    kept, deployments, _ = make_deployments(
        [
            {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100", "max_model_len": 4096},
            {
                "model": "Qwen/Qwen3-30B-A3B",
                "gpu": "H100",
                "tensor_parallel_size": 2,
                "max_model_len": 4096,
            },
        ]
    )
    return from_checkpoint(find_checkpoint(), kept, deployments)


@pytest.fixture(scope="module")
def vectors(released):
    loads = standard_loads(stage_s=60.0)
    return [blis_vectors(released, row, loads) for row in range(2)]


def test_each_load_is_reproduced_by_its_own_vector(vectors):
    for found in vectors:
        assert [v.load for v in found] == [
            "general", "general-lite", "codegen", "roleplay", "reasoning", "reasoning-lite", MIX
        ]  # fmt: skip
        assert np.median(own_errors(found)) < 0.08
    assert np.median(own_errors(vectors[0])) < 0.03


def test_arrival_grows_with_the_step_time(vectors):
    for found in vectors:
        by_load = {v.load: v for v in found}
        assert by_load["reasoning"].mean_step_us > by_load["reasoning-lite"].mean_step_us
        assert by_load["reasoning"].alpha[0] > by_load["reasoning-lite"].alpha[0] > 0


def test_the_api_servers_work_on_a_token_is_in_no_gap(released, vectors):
    names = list(REQUEST_FEATURES)
    assert (released.coefficients.alpha[:, names.index("output_token.constant")] > 0).all()
    assert all(v.alpha[2] == 0 for found in vectors for v in found)


def test_alpha_gives_blis_the_same_times(released, vectors):
    """BLIS schedules synchronously and knows the three alphas of the vector alone.

    Its QueueingTime is a delay that occupies no server, so it stands as one here.
    """
    latency = LinearLatency(
        released.deployments[0], released.coefficients.beta[0], released.coefficients.alpha[0]
    )
    names = ("schedule_to_first_token.constant", "completion.constant", "output_token.constant")
    for load in standard_loads(stage_s=60.0, names=("general", "reasoning-lite")):
        vector = next(v for v in vectors[0] if v.load == load.name)
        alpha = np.zeros_like(latency.alpha)
        alpha[[list(REQUEST_FEATURES).index(name) for name in names]] = vector.alpha
        bare = dataclasses.replace(latency, alpha=alpha * MICROSECOND)
        engine = EngineSpec(async_scheduling=False)
        blis = simulate(latency.deployment, load, bare, engine).requests
        whole = simulate(latency.deployment, load, latency).requests
        assert np.nanmedian(blis.ttft_s) == pytest.approx(np.nanmedian(whole.ttft_s), rel=0.1)
        assert np.nanmedian(blis.e2e_s) == pytest.approx(np.nanmedian(whole.e2e_s), rel=0.01)


def test_files_are_what_blis_reads(released, vectors, tmp_path):
    for row, found in enumerate(vectors):
        write_configuration(released, row, found, 1000, tmp_path)
    write_summary(released, dict(enumerate(vectors)), tmp_path / "summary.csv")
    folder = tmp_path / folder_name(released, 1)
    loads = [v.load for v in vectors[1]][:-1]
    assert {p.name for p in folder.iterdir()} == {
        "config.json", "hardware.json", "run.sh", "coefficients.yaml",
        *(f"coefficients.{load}.yaml" for load in loads),
    }  # fmt: skip
    for name, vector in (("coefficients", vectors[1][-1]), ("coefficients.general", vectors[1][0])):
        values = yaml.safe_load((folder / f"{name}.yaml").read_text())
        # Any other key is fatal to BLIS.
        assert values == {
            "trained_physics_coefficients": {
                "alpha_coeffs": list(vector.alpha),
                "beta_coeffs": vector.projection.beta.tolist(),
            }
        }
        assert len(vector.projection.beta) == 11
    with (tmp_path / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 14
    assert float(rows[7]["median_error"]) == vectors[1][0].projection.median_error


def test_facts_in_a_coefficient_file_are_comments(vectors):
    text = coefficients_yaml(vectors[0][0], {"load": "a\nb: c"})
    assert list(yaml.safe_load(text)) == ["trained_physics_coefficients"]


def test_constants_lie_on_no_term_that_blis_may_read_otherwise(vectors):
    for vector in (v for found in vectors for v in found):
        by_name = dict(zip(BASIS, vector.projection.beta, strict=True))
        assert by_name["step"] > 0
        assert all(by_name[name] == 0 for name in CONSTANTS)


def test_a_file_says_what_a_wrong_use_costs(vectors):
    reasoning, lite = vectors[1][4], vectors[1][5]
    assert lite.step_errors["reasoning"] > 5 * lite.step_errors["reasoning-lite"]
    assert reasoning.first_token_errors["reasoning"] == 0
    facts = vector_facts(lite)
    assert (
        facts["worst_step_error"] == f"{100 * max(lite.step_errors.values()):.1f} % under reasoning"
    )
    load, worst = max(lite.first_token_errors.items(), key=lambda item: abs(item[1]))
    assert load != "reasoning-lite"
    assert facts["worst_first_token_error"] == f"{100 * worst:+.1f} % under {load}"


def test_an_overloaded_load_is_in_no_mix_and_its_wait_in_no_alpha(released):
    """A flood queues up for seconds; the mix is that of the other loads."""
    loads = standard_loads(stage_s=20.0, names=("general-lite", "roleplay"))
    flood = shared_prefix(
        [Stage(60.0, 5.0)], groups=10, prompts_per_group=10, shared_tokens=100,
        question_tokens=447, output_tokens=248, name="flood",
    )  # fmt: skip
    few = replace_serving(released, max_num_seqs=32)
    alone, found = blis_vectors(few, 1, loads), blis_vectors(few, 1, [*loads, flood])
    overloaded = found[2]
    assert [v.overloaded for v in found] == [False, False, True, False]
    assert overloaded.alpha[0] < 5 * overloaded.mean_step_us
    assert found[-1].alpha == alone[-1].alpha
    assert found[-1].projection.beta.tolist() == alone[-1].projection.beta.tolist()


def replace_serving(configured, **flags):
    """The same configurations with other flags."""
    deployments = [
        dataclasses.replace(d, serving=dataclasses.replace(d.serving, **flags))
        for d in configured.deployments
    ]
    return dataclasses.replace(configured, deployments=deployments)

"""``pinn coefficients``, one configuration and many."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from assumed_priors import prior_coefficients
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import deployments

import pinn
from pinn.engines.configurations import canonical, make_deployment
from pinn.export.coefficient_table import coefficient_table
from pinn.specs.batch import parse_batch
from pinn.specs.model import Sampling
from pinn.surrogate.coefficient_set import (
    CoefficientSet,
    deployment_facts,
    read_coefficient_set,
    write_coefficient_set,
)
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.surrogate.surrogate import batch_floor_seconds, batch_seconds

LLAMA = ("--model", "Llama-3.1-8B", "--gpu", "H100")
MIXED = "1 prefill 512 @ 0 + 16 decode @ 600"


def test_the_report_names_every_coefficient_with_its_unit(run):
    result = run("coefficients", *LLAMA, "--tensor-parallel-size", 2, "--betas")
    assert result.exit_code == 0, result.output
    for name in (*STEP_FEATURES, *REQUEST_FEATURES):
        assert name in result.stdout
    for text in ("us/layer", "x datasheet time", "us/token"):
        assert text in result.stdout


def test_the_first_screen_answers_in_24_lines_of_80_columns(run):
    """Whether it fits, how long steps take, how far to trust it, and where the rest is."""
    result = run("coefficients", *LLAMA, "--tensor-parallel-size", 2)
    assert result.exit_code == 0, result.output
    lines = result.stdout.rstrip().splitlines()
    assert len(lines) <= 24
    assert max(len(line.rstrip()) for line in lines) <= 80
    said = " ".join(result.stdout.split())
    for text in (
        "vllm 0.33.0, not measured: trained on releases", "memory: the engine starts, with",
        "1 decode @ 700",
        "256 decode @ 2000", "tokens/s", "The nearest measured deployment is", "--recipe",
    ):  # fmt: skip
        assert text in said
    assert "queue_to_schedule.constant" not in said


def test_the_recipe_is_a_screen_of_its_own(run):
    shown = run("coefficients", *LLAMA, "--recipe").stdout
    assert "token_budget" in shown
    assert "weights and cache: attention bf16" in shown
    assert "1 decode @ 700" not in shown


def test_a_batch_outside_the_range_of_a_calibration_is_warned_of(tmp_path):
    facts = deployment_facts(make_deployment({"model": "Llama-3.1-8B", "gpu": "H100"}))
    fitted = {"loads": {"requests_in_flight": [8.0, 64.0], "prompt_tokens": [512.0, 512.0]}}
    path = tmp_path / "server.json"
    write_coefficient_set(CoefficientSet(facts, prior_coefficients(1), calibration=fitted), path)
    said = "^the number of requests in a batch is 256, but the calibration was fitted to 8 to 64: "
    with pytest.warns(UserWarning, match=said):
        pinn.predict(coefficients=path, batch=["32 decode @ 700", "256 decode @ 700"])
    said = "^the number of requests in a batch is 1 or 256, but the calibration was fitted to 8 to "
    with pytest.warns(UserWarning, match=said):
        pinn.predict(coefficients=path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pinn.predict(coefficients=path, batch="32 decode @ 700")


def test_a_rate_outside_the_range_of_a_calibration_is_named(tmp_path):
    facts = deployment_facts(make_deployment({"model": "Llama-3.1-8B", "gpu": "H100"}))
    fitted = {"loads": {"requests_in_flight": [1.0, 2.0]}}
    path = tmp_path / "server.json"
    write_coefficient_set(CoefficientSet(facts, prior_coefficients(1), calibration=fitted), path)
    load = {"input_len": 256, "output_len": 32, "num_prompts": 64, "coefficients": path}
    said = "^at 500 requests/s: the load has .* requests in flight per server on average, but the "
    with pytest.warns(UserWarning, match=said):
        pinn.sweep(rate="20,500", **load)
    with pytest.warns(UserWarning, match="^the load has .* requests in flight"):
        found = pinn.simulate(rate="500", **load)
    line = "vllm 0.33.0 (assumed; set it with --engine-version), calibrated to measurements"
    assert line in str(found)


def test_tokens_of_a_second_are_those_of_the_step(run, tmp_path):
    path = tmp_path / "found.json"
    shown = run("coefficients", *LLAMA, "--batch", MIXED, "--json", path).stdout
    (entry,) = json.loads(path.read_text())["batches"]
    assert f"{(512 + 16) / entry['step_time_us'] * 1e6:,.0f}" in shown


def test_json_holds_values_units_batches_and_distance(run, tmp_path, measured):
    path = tmp_path / "llama.json"
    batches = ("32 decode @ 700", MIXED)
    result = run("coefficients", *LLAMA, "--batch", batches[0], "--batch", batches[1],
                 "--json", path)  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    for part, registry in (("beta", STEP_FEATURES), ("alpha", REQUEST_FEATURES)):
        assert list(report[part]) == list(registry)
        for name, feature in registry.items():
            assert report[part][name]["unit"] == feature.unit
            assert report[part][name]["value"] >= 0
    surrogate, (llama, *_) = measured
    parsed = [parse_batch(b) for b in batches]
    assert [entry["batch"] for entry in report["batches"]] == list(batches)
    times = batch_seconds(surrogate.coefficients([llama]).beta[0], llama, parsed)
    floors = batch_floor_seconds(llama, parsed)
    assert [e["step_time_us"] for e in report["batches"]] == pytest.approx(1e6 * times)
    assert [e["floor_us"] for e in report["batches"]] == pytest.approx(1e6 * floors)
    assert report["distance"]["distance"] == pytest.approx(0, abs=1e-5)
    assert report["distance"]["nearest_measured"] == "meta-llama/Meta-Llama-3.1-8B on H100-SXM"


def test_flags_reach_the_deployment(run, tmp_path):
    path = tmp_path / "mixtral.json"
    result = run(
        "coefficients", "--model", "Mixtral-8x7B", "--gpu", "A100", "--quantization", "fp8",
        "--tensor-parallel-size", 4, "--data-parallel-size", 2, "--enable-expert-parallel",
        "--max-num-batched-tokens", 4096, "--no-enable-prefix-caching", "--enforce-eager",
        "--cpu-offload-gb", 2.5, "--kv-cache-dtype", "fp8", "--generation-config", "vllm",
        "--override-generation-config", '{"top_p": 0.9}', "--json", path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    assert report["precisions"]["experts"] == report["precisions"]["kv_cache"] == "fp8"
    expected = {
        "tensor_parallel_size": 4, "data_parallel_size": 2, "enable_expert_parallel": True,
        "max_num_batched_tokens": 4096, "max_num_seqs": None, "enable_prefix_caching": False,
        "enforce_eager": True, "cpu_offload_gb": 2.5,
    }  # fmt: skip
    assert expected.items() <= report["serving"].items()
    assert report["serving"]["generation_config"] == "vllm"
    assert report["sampling"]["top_p"] == 0.9


def test_a_file_stands_for_the_deployment_that_it_was_written_for(run, tmp_path):
    # The name of the base model stands for the chat model's shapes, but not for its sampling.
    path = tmp_path / "base.json"
    run("coefficients", "--model", "Qwen/Qwen2.5-7B", "--gpu", "H100", "--quantization", "fp8",
        "--json", path)  # fmt: skip
    again = make_deployment(canonical(read_coefficient_set(path).configuration()))
    assert again.sampling == Sampling()
    assert again.model.precisions.attention.name == "fp8"
    greedy = tmp_path / "greedy.json"
    result = run("coefficients", "--coefficients", path, "--override-generation-config",
                 '{"temperature": 0}', "--json", greedy)  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(greedy.read_text())
    assert report["sampling"]["temperature"] == 0
    assert make_deployment(
        canonical(read_coefficient_set(greedy).configuration())
    ).sampling.is_greedy


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_many_configurations_become_a_table(run, tmp_path, suffix):
    (tmp_path / "list.csv").write_text("model,gpu\nLlama-3.1-8B,H100\nQwen3-32B,\n")
    out = tmp_path / f"table.{suffix}"
    result = run("coefficients", "--configs", tmp_path / "list.csv", "--gpu", "B200",
                 "--batch", MIXED, "--out", out)  # fmt: skip
    assert result.exit_code == 0, result.output
    read = {"csv": pd.read_csv, "json": pd.read_json, "parquet": pd.read_parquet}[suffix]
    table = read(out)
    # The flag holds where the row has none.
    assert table["gpu"].tolist() == ["H100", "B200"]
    assert f"beta.gemm [{STEP_FEATURES['gemm'].unit}]" in table
    assert (table[f"step_time_us: {MIXED}"] >= table[f"floor_us: {MIXED}"]).all()
    assert table["nearest_measured"].notna().all()
    assert table["distance"].iloc[0] < table["distance"].iloc[1]


def test_a_grid_crosses_a_list(run, tmp_path):
    (tmp_path / "list.yaml").write_text("- model: Llama-3.1-8B\n- model: gpt-oss-120b\n")
    grid = "gpu=H100,H200 tensor_parallel_size=1,2,7"
    result = run("coefficients", "--configs", tmp_path / "list.yaml", "--grid", grid,
                 "--skip-invalid", "--out", tmp_path / "t.csv")  # fmt: skip
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "t.csv")
    assert len(table) == 2 * 2 * 3
    refused = table[table["tensor_parallel_size"] == 7]
    assert (refused["verdict"] == "invalid").all()
    # A cell that begins with a flag would be escaped, as spreadsheets read it as a formula.
    assert refused["reason"].str.startswith("the flag --tensor-parallel-size 7 does not").all()
    assert "2 refused: the flag --tensor-parallel-size 7" in result.stdout
    assert "12 configurations written" in result.stdout


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(several=st.lists(deployments(), min_size=1, max_size=5))
def test_a_table_equals_one_configuration_at_a_time(measured, several):
    surrogate, known = measured
    both = [*several, *known, *several]
    texts = ["7 decode @ 3000", MIXED]
    table = coefficient_table(surrogate, [{}] * len(both), both, texts).to_pandas()
    each = surrogate.coefficients(both)
    beta = table.filter(regex=r"^beta\.").to_numpy()
    np.testing.assert_allclose(beta, each.beta, rtol=1e-12)
    np.testing.assert_allclose(table.filter(regex=r"^alpha\.").to_numpy(), each.alpha, rtol=1e-12)
    for row, deployment in enumerate(both):
        batches = [parse_batch(text) for text in texts]
        times = 1e6 * batch_seconds(
            surrogate.coefficients([deployment]).beta[0], deployment, batches
        )
        floors = 1e6 * batch_floor_seconds(deployment, batches)
        for text, time, floor in zip(texts, times, floors, strict=True):
            assert table[f"step_time_us: {text}"][row] == pytest.approx(time, rel=1e-12)
            assert table[f"floor_us: {text}"][row] == pytest.approx(floor, rel=1e-12)


def test_a_checkpoint_with_static_scales_is_its_base_model_in_that_format(run, tmp_path):
    found = []
    for name, model in (
        ("own", ["nvidia/Llama-3.1-70B-Instruct-FP8"]),
        ("asked", ["Llama-3.1-70B", "--precision", "fp8_static", "--kv-cache-dtype", "fp8"]),
    ):
        path = tmp_path / f"{name}.json"
        result = run("coefficients", "--model", *model, "--gpu", "H100",
                     "--tensor-parallel-size", 4, "--json", path)  # fmt: skip
        assert result.exit_code == 0, result.output
        found.append(json.loads(path.read_text())["beta"])
    assert found[0] == found[1]

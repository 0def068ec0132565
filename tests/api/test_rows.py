"""Rows of tables of predictions, which other functions accept as arguments."""

import numpy as np
import pandas as pd
import pytest

import pinn

MODEL, GPU = LLAMA = ("meta-llama/Llama-3.1-8B", "H100")
LOAD = {"prompt_tokens": 200, "output_tokens": 20, "concurrency": 4, "requests": 20}
BATCH = "32 decode @ 700"


@pytest.fixture(autouse=True)
def _small_network(monkeypatch, checkpoint_path):
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))


def test_a_row_is_predicted_and_simulated_as_in_its_table():
    given = pd.DataFrame(
        {"gpu": ["H100", "H200"], "tp": [2, None], "quantization": [None, "fp8"],
         "max_num_seqs": pd.array([None, 2], dtype="Int64")},
    )  # fmt: skip
    found = pinn.predict_many(given, BATCH, model=MODEL)
    for _, row in found.iterrows():
        flags = row[["model", *given.columns]].to_dict()
        seconds = pinn.predict(**flags).step_time(BATCH)
        assert seconds == pytest.approx(1e-6 * row[f"step_time_us: {BATCH}"])
        simulated = pinn.simulate(LOAD, **flags)
        assert simulated.figures["running_max"] == (4 if pd.isna(row["max_num_seqs"]) else 2)


@pytest.mark.parametrize("listed", [pd.Series, np.array, tuple])
def test_an_axis_of_a_grid_may_be_an_array(listed):
    found = pinn.predict_many({"gpu": listed(["H100", "H200"]), "tp": listed([1, 2])}, model=MODEL)
    assert found["gpu"].tolist() == ["H100", "H100", "H200", "H200"]
    assert found["tp"].tolist() == [1, 2, 1, 2]


def test_many_simulations_are_single_simulations():
    given = pd.DataFrame(
        {"row_id": [7, 8], "gpu": ["H100", "H200"], "tp": [2, None]}, index=["a", "b"]
    )
    loads = [LOAD, {**LOAD, "prompt_tokens": 800}]
    options = {"slo": "ttft<=30ms", "replicas": 2, "percentiles": "99.9"}
    found = pinn.simulate_many(loads, given, MODEL, **options)
    assert found["load"].tolist() == [0, 0, 1, 1]
    assert found.index.tolist() == ["a", "b", "a", "b"]
    for _, row in found.iterrows():
        alone = pinn.simulate(loads[row["load"]], MODEL, row["gpu"], tp=row["tp"], **options)
        names = ["responses_per_sec", *(n for n in alone.metrics if n.endswith("_ms"))]
        assert {"ttft_p99_ms", "scheduling_delay_p99.9_ms"} < set(names)
        assert row[names].tolist() == [alone.metrics[name] for name in names]
        assert row["slo_attainment"] == alone.goodput.attainment
        assert row["goodput_per_s"] == alone.goodput.requests_per_s
    (many,) = pinn.simulate_many(LOAD, "gpu=H100", model=MODEL).to_dict("records")
    assert "load" not in many
    assert pd.isna(many["reason"])


def test_rows_that_cannot_be_simulated_have_a_reason():
    given = [{"max_model_len": 30_000}, {"gpu": "L4"}, {"tp": "two"}, {"gpu": "H1"}, {"tp": 2}]
    with pytest.warns(UserWarning, match="^3 of 5 configurations cannot be simulated: .* L4"):
        found = pinn.simulate_many(
            None, given, "Qwen/Qwen3-32B", "H100", slo="p99 ttft<=1s",
            input_len=64, output_len=4, concurrency=2, num_prompts=8,
        )  # fmt: skip
    assert found["slo_met"].tolist() == [True, pd.NA, pd.NA, pd.NA, True]
    assert found["responses_per_sec"].isna().tolist() == [False, True, True, True, False]
    for reason, said in zip(
        found["reason"],
        ["MAY NOT START", "raise tensor_parallel_size or", "got 'two'", "GPU 'H1' is unknown", ""],
        strict=True,
    ):
        assert said in reason if said else pd.isna(reason)
    assert found["engine_release"].notna().tolist() == [True, False, False, False, True]
    assert found["kv_cache_format"][0] == "bf16"
    with pytest.warns(UserWarning, match="^1 of 1 configuration cannot be simulated"):
        none = pinn.simulate_many(LOAD, [{"gpu": "L4"}], "Qwen/Qwen3-32B")
    with pytest.warns(UserWarning, match="^1 of 1 configuration cannot be simulated"):
        of_slo = pinn.simulate_many(LOAD, [{"gpu": "L4"}], "Qwen/Qwen3-32B", slo="p99 ttft<=1s")
    assert of_slo["slo_met"].isna().all()
    for name in ("responses_per_sec", "ttft_mean_ms", "e2e_p99_ms", "engine_release"):
        assert none[name].isna().tolist() == [True]
        assert name in found


def test_a_table_of_simulations_has_the_intervals_of_each(monkeypatch):
    monkeypatch.delenv("PINN_CHECKPOINT")
    rows = [{"gpu": "H100"}, {"gpu": "H100", "tp": 3}]
    found = pinn.simulate_many(LOAD, rows, MODEL, intervals=True)
    alone = pinn.simulate(LOAD, MODEL, "H100").intervals.figures
    assert len(alone) == 11
    for metric, (low, high) in alone.items():
        stem, unit = (metric[:-3], "_ms") if metric.endswith("_ms") else (metric, "")
        assert found[f"{stem}_low{unit}"][0] == pytest.approx(low)
        assert found[f"{stem}_high{unit}"][0] == pytest.approx(high)
        assert np.isnan(found[f"{stem}_low{unit}"][1])
    none = pinn.simulate_many(LOAD, rows[1:], MODEL, intervals=True)
    assert {*found} - {*none} == {*pinn.simulate_many(LOAD, rows, MODEL)} - {*none}


def test_a_table_has_the_tokens_of_a_step_with_speculation():
    drafts = {"method": "ngram", "num_speculative_tokens": 2}
    rows = [{}, {"speculative_config": drafts, "speculative_acceptance": 0.5}]
    found = pinn.predict_many(rows, BATCH, model=MODEL, gpu=GPU)
    assert found["tokens_per_step"].tolist() == [1, 1.75]
    assert "tokens_per_step" not in pinn.predict_many(rows[:1], BATCH, model=MODEL, gpu=GPU)


@pytest.mark.parametrize(
    ("load", "given", "said"),
    [
        ({"prompt": 1}, [{}], "the workload file workload with the keys prompt is unknown"),
        ([], [{}], "workload must be a path, a mapping or a list of requests"),
        ({"chat": pd.DataFrame(LOAD, [0])}, [{}], "a value of type DataFrame cannot be written"),
        (LOAD, [{"tpp": 2}], r"configurations\[0\]: the configuration key 'tpp' is unknown"),
    ],
)
def test_a_wrong_load_or_key_is_an_error_of_all_rows(load, given, said):
    with pytest.raises(pinn.PinnError, match=said):
        pinn.simulate_many(load, given, *LLAMA)


def test_many_simulations_have_one_rate_and_no_sensitivity():
    for given in ({"rate": "1,2"}, {"sensitivity": "e2e_mean_ms"}):
        with pytest.raises(pinn.PinnError, match=r"single rate|one configuration"):
            pinn.simulate_many(LOAD, [{}], *LLAMA, **given)


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan"), pd.NA, pd.NaT])
def test_a_missing_value_means_the_default(missing):
    flags = {"max_num_seqs": missing, "quantization": missing, "enable_prefix_caching": missing}
    assert pinn.predict(*LLAMA, **flags).deployment == pinn.predict(*LLAMA).deployment
    (row,) = pinn.predict_many([flags | {"gpu": GPU}], model=MODEL).to_dict("records")
    assert row["verdict"] == "starts"


def test_short_names_of_flags_are_arguments():
    found = pinn.predict(*LLAMA, tp=2, q="fp8").deployment
    assert found == pinn.predict(*LLAMA, tensor_parallel_size=2, quantization="fp8").deployment
    with pytest.raises(pinn.PinnError, match="tensor_parallel_size is given twice, also as 'tp'"):
        pinn.predict(*LLAMA, tensor_parallel_size=2, tp=2)


@pytest.mark.parametrize("name", ["tp_siz", "tpsize"])
def test_a_mistyped_short_name_is_corrected(name):
    with pytest.raises(pinn.PinnError, match=r"did you mean tp_size\?"):
        pinn.predict(*LLAMA, **{name: 2})
    with pytest.raises(pinn.PinnError, match=r"did you mean tp_size\?"):
        pinn.predict_many([{"gpu": GPU, name: 2}], model=MODEL)


def test_a_table_has_the_format_and_the_bounds_of_the_cache():
    pairs = [("nvfp4", None), ("nvfp4_wo", None), ("nvfp4", "bf16"), (None, "fp8")]
    given = [{"quantization": weights, "kv_cache_dtype": cache} for weights, cache in pairs]
    found = pinn.predict_many(given, model=MODEL, gpu="B200")
    assert found["kv_cache_format"].tolist() == ["fp8", "bf16", "bf16", "fp8"]
    for row, flags in zip(found.to_dict("records"), given, strict=True):
        memory = pinn.predict(MODEL, "B200", **flags).memory
        ends = memory.to_json()["kv_tokens_ends"]
        assert [row["kv_tokens_low"], row["kv_tokens_high"]] == ends
        assert ("a KV cache in fp8 of " in str(memory)) == (row["kv_cache_format"] == "fp8")


def test_a_server_that_may_not_start_is_named_in_simulations_and_breakdowns():
    flags = {"model": "Qwen/Qwen3-32B", "gpu": "H100", "max_model_len": 30_000}
    assert pinn.predict(**flags).memory.verdict == "may not start"
    said = r"^Qwen/Qwen3-32B on H100-SXM TP 1 bf16: the engine MAY NOT START; .*--max-model-len"
    with pytest.warns(UserWarning, match=said) as simulated:
        found = pinn.simulate(LOAD, **flags)
    assert found.to_json()["notices"] == [str(simulated[0].message)]
    with pytest.warns(UserWarning, match=said) as broken_down:
        pinn.breakdown(**flags, batch=BATCH)
    with pytest.warns(UserWarning, match="the engine DOES NOT START"):
        pinn.breakdown("Qwen/Qwen3-32B", "L40S", batch=BATCH)
    assert {simulated[0].filename, broken_down[0].filename} == {__file__}


def test_warnings_of_a_configuration_point_to_the_call():
    with pytest.warns(UserWarning, match=r"vLLM 9.9.9 is unknown") as said:
        pinn.predict(*LLAMA, engine_version="9.9.9")
    assert said[0].filename == __file__


@pytest.mark.parametrize(
    "function", [pinn.predict_many, lambda *a, **k: pinn.simulate_many(LOAD, *a, **k)]
)
def test_a_column_that_occurs_twice_is_refused(function):
    given = pd.DataFrame([["H100", "H200", 1, 2]], columns=["gpu", "gpu", "tp", "id"])
    with pytest.raises(pinn.PinnError, match="several columns 'gpu': drop or rename all but one"):
        function(given, model=MODEL)


def test_a_column_without_values_is_kept():
    given = pd.DataFrame({"quantization": [None], "tp": [float("nan")], "run_id": [None]})
    names = ["run_id", "model", "gpu", "quantization", "tp"]
    tables = [pinn.predict_many(given, **dict(zip(("model", "gpu"), LLAMA, strict=True)))]
    tables.append(pinn.simulate_many(LOAD, given, *LLAMA))
    for found in tables:
        assert list(found)[:5] == names
        assert found[[*given]].isna().all(axis=None)

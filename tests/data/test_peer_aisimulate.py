import json
from pathlib import Path

import numpy as np
import predict_aisimulate as peer
import pytest
from predict_aiconfigurator import is_installed

from pinn.errors import PinnError
from pinn.simulator.workloads.workload import closed_loop
from pinn.training.data.released import released_predictions
from pinn.training.data.silicon import read_silicon

installed = pytest.mark.skipif(
    not is_installed(peer.PACKAGE, peer.VERSION),
    reason=f"{peer.PACKAGE} {peer.VERSION} is not installed",
)


@pytest.fixture(scope="module")
def rows():
    return read_silicon()[0]


@pytest.fixture(scope="module")
def released():
    return released_predictions("aisimulate")


def stated(rows, recipe="adapter", **wanted):
    """Return the peer's input for the first row of a kind, and the row."""
    alike = np.logical_and.reduce([rows[name] == value for name, value in wanted.items()])
    row = rows[alike].iloc[0]
    return peer.config(row, recipe, Path("requests")), row


def test_every_row_has_a_prediction_or_a_reason(rows, released):
    assert list(released["row_id"]) == list(rows["row_id"])
    answered = released["recipe"] != ""
    assert (released["reason"] == "").equals(answered)
    assert released["tpot_s"].notna().equals(answered)
    assert released["ttft_s"].notna().equals(answered)


def test_a_trace_has_the_clients_requests_and_shares_no_prompt():
    load = closed_loop(2, 3, 1000, 100, length_range=(0.8, 1.0))
    lines = [json.loads(line) for line in peer.trace(load).splitlines()]
    assert [line["input_length"] for line in lines] == load.prompt_tokens.tolist()
    assert [line["output_length"] for line in lines] == load.output_tokens.tolist()
    blocks = [block for line in lines for block in line["hash_ids"]]
    assert len(blocks) == len(set(blocks)) == sum(2 if n > 512 else 1 for n in load.prompt_tokens)


def test_a_row_is_asked_with_its_client_and_its_flags(rows):
    found, row = stated(rows, model="moonshotai/Kimi-K2.5", precision="nvfp4", kv_cache_dtype="fp8")
    assert found["traffic"] == {
        "source": {"type": "trace", "paths": ["requests"], "format": "mooncake"},
        "load": {"type": "concurrency", "concurrency": row["concurrency"]},
    }
    worker = found["engine"]["workers"]["aggregated"]
    tp = row["tensor_parallel_size"]
    assert worker["parallelism"] == {"tensor": tp, "moe_tensor": tp, "moe_expert": 1}
    formats = {"gemm": "nvfp4", "moe": "nvfp4", "kvcache": "fp8"}
    assert worker["timing"] == {f"{part}_quant_mode": name for part, name in formats.items()}
    capacity = {"memory_fraction": float(row["gpu_memory_utilization"])}
    assert worker["kv_cache"]["capacity"] == capacity


def test_an_expert_parallel_row_spreads_its_experts(rows):
    found, row = stated(rows, enable_expert_parallel=True)
    parallelism = found["engine"]["workers"]["aggregated"]["parallelism"]
    assert parallelism["moe_tensor"] == 1
    assert parallelism["moe_expert"] == row["tensor_parallel_size"]


def test_a_script_that_names_no_budget_leaves_it_to_the_package(rows):
    with_budget, _ = stated(rows, max_num_batched_tokens="2048")
    without, _ = stated(rows, max_num_batched_tokens="")
    scheduler = with_budget["engine"]["workers"]["aggregated"]["scheduler"]
    assert scheduler["max_batched_tokens"] == 2048
    assert "max_batched_tokens" not in without["engine"]["workers"]["aggregated"]["scheduler"]


def test_a_recipe_that_says_nothing_new_is_left_out(rows):
    assert stated(rows, "fp8_gemm", precision="nvfp4")[0] is None


@installed
def test_two_rows_recomputed(rows, released):
    """Regenerate with python scripts/predict_aisimulate.py data/peers."""
    answered = released[(released["recipe"] != "") & (rows["concurrency"] == 4)]
    expected = answered.iloc[[0, -1]]
    again = peer.predict(rows.loc[expected.index])
    for (row_id, ttft_s, tpot_s, recipe, _), (_, row) in zip(
        again, expected.iterrows(), strict=True
    ):
        assert (row_id, recipe) == (row["row_id"], row["recipe"])
        assert (ttft_s, tpot_s) == pytest.approx((row["ttft_s"], row["tpot_s"]), rel=1e-5)


def test_without_the_package_the_error_names_it(rows, monkeypatch):
    monkeypatch.setattr(peer, "VERSION", "0")
    with pytest.raises(PinnError, match="pip install --pre aisimulate"):
        peer.predict(rows.iloc[:1])

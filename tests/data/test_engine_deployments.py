"""SGLang's and TensorRT-LLM's rows of the file: layouts, counts, what their scripts passed."""

import math

import pandas as pd
import pytest
from silicon_row import raw_row

from pinn.measurements.deployments.launch_facts import CONFIDENCES
from pinn.measurements.deployments.measured import observed_deployment
from pinn.measurements.deployments.observations import validate
from pinn.measurements.deployments.silicon import decode_engines
from pinn.training.data.engine_deployments import (
    APART,
    LINEAR,
    SPARSE,
    read_engines,
    read_every_engine,
    read_other_attention,
    read_other_campaign,
)
from pinn.training.data.splits import leave_one_out

DUMP, PLAIN = "db-dump/2026-04-27; silicon_concurrency=64", "2026-03-25.csv; silicon_concurrency=64"
LAYOUT = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")


@pytest.fixture(scope="module")
def engines():
    return read_engines()


@pytest.mark.parametrize(
    ("source", "stored", "tp", "dp", "ep"),
    [
        (DUMP, (64, 1, 8, 8), 8, 1, 8),
        (DUMP, (1, 16, 4, 4), 1, 4, 4),
        (DUMP, (4, 1, 2, 2), 2, 1, 2),
        (DUMP, (8, 1, 8, 1), 8, 1, 1),
        (DUMP, (1, 4, 4, 1), 1, 4, 1),
        (PLAIN, (8, 1, 1, 8), 8, 1, 8),
        (PLAIN, (1, 8, 1, 8), 1, 8, 8),
        (PLAIN, (4, None, 2, 2), 4, 1, 4),
    ],
)
def test_stored_products_are_layouts(source, stored, tp, dp, ep):
    raw = raw_row(silicon_data_source=source, backend="trtllm", model_path="openai/gpt-oss-120b")
    row = decode_engines(pd.DataFrame([raw | dict(zip(LAYOUT, stored, strict=True))])).iloc[0]
    assert (row["tensor_parallel_size"], row["data_parallel_size"]) == (tp, dp)
    spread = tp * dp if row["enable_expert_parallel"] else 1
    assert spread == ep


def test_both_names_of_one_deepseek():
    raw = raw_row(backend="sglang", model_path="deepseek-ai/DeepSeek-V3")
    assert decode_engines(pd.DataFrame([raw])).iloc[0]["model"] == "deepseek-ai/DeepSeek-R1"


def test_counts_of_the_installed_file(engines):
    rows, report = engines
    assert (report.read, report.accepted) == (5221, 624)
    assert rows.groupby(["engine", "apart"]).size().to_dict() == {
        ("sglang", ""): 100,
        ("sglang", APART): 26,
        ("trtllm", ""): 498,
    }
    assert len(validate(rows)) == 624
    assert {k: n for k, n in report.noted.items() if n} == {"known": 278, "likely": 346}


def test_the_other_campaign_is_read_apart(engines):
    rows, report = read_other_campaign()
    assert report.accepted == 633
    assert not set(rows["row_id"]) & set(engines[0]["row_id"])
    assert rows.groupby("engine").size().to_dict() == {"sglang": 154, "trtllm": 479}


def test_models_with_other_attention_are_read_apart(engines):
    rows, report = read_other_attention()
    assert rows.groupby(["apart", "gpu"]).size().to_dict() == {
        (LINEAR, "b200_sxm"): 25,
        (LINEAR, "b300_sxm"): 81,
        (LINEAR, "h200_sxm"): 16,
        (SPARSE, "b200_sxm"): 28,
        (SPARSE, "b300_sxm"): 10,
        (SPARSE, "h200_sxm"): 14,
    }
    assert report.accepted + sum(report.refused.values()) == report.read
    assert not set(rows["row_id"]) & set(engines[0]["row_id"])


def test_every_engine_is_read_at_once():
    rows, report = read_every_engine()
    assert report.accepted == len(validate(rows)) == 838 + 598
    assert rows.groupby("engine").size().to_dict() == {"sglang": 100, "trtllm": 498, "vllm": 838}
    assert report.refused[APART] == 26
    assert sum(report.noted[name] for name in CONFIDENCES) == len(rows)
    left_out = [s.held_out for s in leave_one_out("engine", rows)]
    assert left_out == [("sglang",), ("trtllm",), ("vllm",)]


def test_every_row_is_a_deployment(engines):
    for _, row in engines[0].drop_duplicates("series").iterrows():
        recipe = observed_deployment(row).recipe
        assert recipe.data_parallel_size == row["data_parallel_size"]
        assert recipe.tensor_parallel_size == row["tensor_parallel_size"]
        assert recipe.tensor_parallel_size * recipe.data_parallel_size <= 8
        ranks = recipe.tensor_parallel_size * recipe.data_parallel_size
        assert recipe.expert_parallel_size == (ranks if row["enable_expert_parallel"] else 1)


def test_waits_of_measured_rows_reach_the_recipe(engines):
    """Llama's 1024 x 1024 on fewer than 8 GPUs, and attention data parallelism of the others."""
    rows = engines[0].query("engine == 'trtllm'")
    waits = rows[rows["batch_wait_timeout_iters"] != ""]
    assert set(waits["batch_wait_timeout_iters"]) == {"20", "40"}
    for _, row in waits.drop_duplicates("series").iterrows():
        recipe = observed_deployment(row).recipe
        assert recipe.prompt_wait_steps == int(row["batch_wait_timeout_iters"])
        share = float(row["batch_wait_max_tokens_ratio"])
        assert recipe.prompt_wait_tokens == math.ceil(share * int(row["max_num_batched_tokens"]))
    balanced = rows[rows["attention_dp_timeout_iters"] != ""]
    assert set(balanced["data_parallel_size"]) == {2, 4, 8}
    for _, row in balanced.drop_duplicates("series").iterrows():
        recipe = observed_deployment(row).recipe
        assert recipe.prompt_wait_steps == int(row["attention_dp_timeout_iters"])
        assert recipe.prompt_wait_tokens == 0


def test_rows_whose_label_hides_attention_data_parallelism_have_it(engines):
    """DeepSeek fp4 on B200, 2025-11-02: its script chose by the load."""
    rows = engines[0].query("engine == 'trtllm' and date == '2025-11-02' and precision == 'nvfp4'")
    spread = rows["data_parallel_size"] > 1
    assert spread.sum() == 9
    loaded = (rows["prompt_tokens"] == 8192) & (rows["concurrency"] > 32)
    assert (spread == (loaded | (rows["concurrency"] >= 256))).all()

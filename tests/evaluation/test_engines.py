"""Scores of other engines' rows: the network that predicts a row, and the lines of the table."""

from dataclasses import replace

import pandas as pd
import pytest

from pinn.evaluation import engines
from pinn.training.data.engine_deployments import LINEAR

ROW = {
    "apart": "", "engine": "sglang", "model": "m", "gpu": "g", "precision": "fp8",
    "tpot_s": 0.010, "ttft_s": 0.1, "network_tpot_s": 0.011, "network_ttft_s": 0.12,
    "aiconfigurator_tpot_s": 0.008, "aiconfigurator_ttft_s": float("nan"),
}  # fmt: skip


def cells(*changes):
    """Return (GPU, heading) -> cell of the only grid."""
    ((_, grid),) = engines.engine_grids(pd.DataFrame([ROW | change for change in changes]))
    headings = [column.heading for column in grid.columns]
    return {
        (row.cells[2], heading): cell
        for row in grid.rows
        for heading, cell in zip(headings, row.cells, strict=True)
    }


def test_a_part_and_its_engine_are_scored_where_there_is_an_answer():
    found = cells({}, {"gpu": "h", "network_tpot_s": 0.009})
    assert (found["all", "rows"], found["g", "rows"]) == ("2", "1")
    assert found["g", "network TPOT"] == "10.0 / 10.0 (+10.0)"
    assert found["all", "network TPOT"].startswith("10.0 / 10.0 (")
    assert found["all", "aiconfigurator TPOT"] == "20.0 / 20.0 (-20.0)"
    assert found["all", "aiconfigurator TTFT"] == "-"


def test_the_other_campaign_says_nothing_of_ttft():
    found = cells({"apart": engines.OTHER_CAMPAIGN})
    assert found["all", "network TTFT"] == "-"
    assert found["all", "network TPOT"] != "-"


def test_cells_say_how_many_rows_have_an_answer():
    found = cells({}, {"aiconfigurator_tpot_s": float("nan")})
    assert found["all", "aiconfigurator TPOT"].endswith(" of 1")
    assert " of " not in found["all", "network TPOT"]


def test_linear_attention_is_predicted_though_nothing_was_fitted_to_it():
    rows = engines.engine_rows()
    linear = rows[(rows["apart"] == LINEAR) & (rows["concurrency"] == 8)].iloc[:3]
    scores = engines.score_engines(linear, engines.networks())
    error = scores["network_tpot_s"] / scores["tpot_s"] - 1
    assert error.abs().median() < 0.25
    assert scores["aiconfigurator_tpot_s"].isna().all()


def test_a_left_out_model_is_predicted_by_the_network_without_it():
    of = engines.networks()
    rows = engines.engine_rows()
    llama = rows[rows["model"].str.contains("Llama-3.3") & (rows["concurrency"] == 4)].iloc[:1]
    without = engines.score_engines(llama, of)
    seen = engines.score_engines(llama, replace(of, left_out={}))
    assert without["network_tpot_s"].item() != seen["network_tpot_s"].item()
    assert without["network_tpot_s"].item() == pytest.approx(without["tpot_s"].item(), rel=0.3)
    assert without["aiconfigurator_tpot_s"].notna().all()


def network_errors(scores, metric):
    return (scores[f"network_{metric}_s"] / scores[f"{metric}_s"] - 1).abs()


def test_another_engine_and_model_that_taught_nothing_are_predicted():
    """Check DeepSeek on SGLang up to 16 clients by the bars of all rows: TPOT 6.5, TTFT 25 %."""
    rows = engines.engine_rows()
    deepseek = rows["model"].str.contains("DeepSeek") & (rows["engine"] == "sglang")
    few = rows[deepseek & (rows["apart"] == "") & (rows["concurrency"] <= 16)]
    scores = engines.score_engines(few, engines.networks())
    assert len(scores) > 40
    assert network_errors(scores, "tpot").median() < 0.065
    assert network_errors(scores, "ttft").median() < 0.25


def test_prompts_that_wait_for_others_are_predicted_with_model_and_engine_left_out():
    """Check Llama on TensorRT-LLM, 1024 x 1024, to 16 clients by bars: TPOT 15, TTFT 22 %."""
    rows = engines.engine_rows()
    waits = (rows["batch_wait_timeout_iters"] != "") & rows["model"].str.contains("Llama")
    few = rows[waits & (rows["apart"] == "") & (rows["concurrency"] <= 16)]
    scores = engines.score_engines(few, engines.networks())
    assert len(scores) > 20
    assert network_errors(scores, "tpot").mean() < 0.15
    assert network_errors(scores, "ttft").mean() < 0.22


def test_an_engines_own_decode_attention_brings_predictions_closer():
    """Check Llama with an 8-bit cache on H200, to 8 clients: error 16 % by vLLM's kernels."""
    rows = engines.engine_rows()
    llama = rows["model"].str.contains("Llama-3.3") & (rows["engine"] == "trtllm")
    few = rows[llama & (rows["gpu"] == "h200_sxm") & (rows["concurrency"] <= 8)]
    scores = engines.score_engines(few, engines.networks())
    assert len(scores) > 20
    assert network_errors(scores, "tpot").median() < 0.145


def test_mxfp4_experts_of_another_engine_are_predicted_by_vllms_kernels():
    """Check gpt-oss on TensorRT-LLM, H200, TP 2 to 8, prompts of 8192; model and engine unseen."""
    rows = engines.engine_rows()
    oss = rows["model"].str.contains("gpt-oss") & (rows["engine"] == "trtllm")
    chosen = (rows["prompt_tokens"] == 8192) & (rows["tensor_parallel_size"] > 1)
    few = rows[oss & chosen & (rows["gpu"] == "h200_sxm") & (rows["concurrency"] <= 16)]
    scores = engines.score_engines(few, engines.networks())
    assert len(scores) > 10
    assert network_errors(scores, "tpot").median() < 0.185


def test_a_checkpoint_alone_says_that_it_may_have_seen_the_models(checkpoint_path):
    with pytest.warns(UserWarning, match="no networks trained without one of the models: every"):
        assert engines.networks(checkpoint_path).left_out == {}

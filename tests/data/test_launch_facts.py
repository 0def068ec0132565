"""Flags that launch scripts passed to the engines behind measured rows: the lookup and its facts.

``PINN_LAUNCH_FACTS`` names the folder of the tables that ``data/engines/launch_facts.csv`` was made
from: ``launch_facts.csv.gz``, and ``rows.csv.gz`` with the facts of every row by another hand.
"""

import os
from pathlib import Path

import import_launch_facts
import pandas as pd
import pytest

from pinn.common.files import data_folder
from pinn.measurements.deployments import silicon as sample
from pinn.measurements.deployments.launch_facts import (
    find,
    launch_facts,
    with_launch_facts,
)
from pinn.measurements.deployments.measured import observed_deployment
from pinn.training.data import silicon
from pinn.training.data.engine_deployments import read_engines

SOURCE = os.environ.get("PINN_LAUNCH_FACTS", "")
MINIMAX, KIMI = "MiniMaxAI/MiniMax-M2.5", "moonshotai/Kimi-K2.5"
LLAMA, GPT_OSS = "meta-llama/Llama-3.3-70B-Instruct", "openai/gpt-oss-120b"
ROW = {
    "engine": "vllm",
    "model": MINIMAX,
    "gpu": "b200_sxm",
    "precision": "fp4",
    "prompt_tokens": 1024.0,
    "output_tokens": 1024.0,
    "concurrency": 256.0,
    "tensor_parallel_size": 2.0,
    "data_parallel_size": 1,
    "enable_expert_parallel": True,
    "stored_attention_dp_size": 2.0,
    "source": "db-dump/2026-04-27; measured=2026-04-22T00:00:00.000Z; "
    "vllm/vllm-openai:v0.19.0-cu130",
    "engine_version": "0.19.0",
}
#: Confidence here -> in the tables made by another hand.
CONFIDENCE = {"known": "exact", "likely": "likely", "ambiguous": "ambiguous"}


@pytest.fixture(scope="module")
def clean():
    vllm, engines = silicon.read_silicon()[0], read_engines()[0]
    return pd.concat([vllm, engines], ignore_index=True)


@pytest.fixture(scope="module")
def looked_up():
    """Every decoded row of the file with its facts, by id."""
    raw = sample.read_csv(sample.systems_folder() / "silicon_sample.csv")
    raw = raw[raw["mode"] == "agg"]
    vllm, others = raw[raw["backend"] == "vllm"], raw[raw["backend"].isin(["sglang", "trtllm"])]
    rows = pd.concat([sample.decode(vllm), sample.decode_engines(others)])
    return with_launch_facts(rows, sample.MODELS).set_index("row_id")


@pytest.fixture(scope="module")
def by_hand():
    """Rows of the other tables beside the line of facts that each ran with."""
    if not SOURCE:
        pytest.skip("PINN_LAUNCH_FACTS names no folder of the tables to compare with")
    facts, rows = (
        pd.read_csv(Path(SOURCE) / name, dtype=str, keep_default_na=False)
        for name in ("launch_facts.csv.gz", "rows.csv.gz")
    )
    found = rows.merge(facts, left_on="fact_ids", right_on="fact_id", suffixes=("", "_fact"))
    return found.set_index("row_id").loc[rows["row_id"]]


def as_passed(fact):
    """The columns of a line of the other tables under the names here."""
    clients = fact["concurrency"]
    return pd.DataFrame(
        {
            "max_num_batched_tokens": fact["max_num_batched_tokens"],
            "max_num_seqs": fact["max_num_seqs"].mask(fact["max_num_seqs"] == "CONC", clients),
            "max_model_len": fact["max_model_len"],
            "gpu_memory_utilization": fact["memory_fraction"].str.rstrip("0"),
            "max_prefill_tokens": fact["max_prefill_tokens"],
            "max_cudagraph_capture_size": fact["graph_max"].mask(
                fact["graph_max"] == "CONC", clients
            ),
            "cudagraph_mode": fact["graph_other"].str.partition("cudagraph_mode=")[2],
            "fuse_all_reduce": fact["fused_allreduce"].replace("on", "yes"),
            "kv_cache_dtype": fact["kv_cache_dtype"],
            "block_size": fact["block_size"],
            "enable_prefix_caching": fact["prefix_caching"].replace("off", "no"),
            "scheduler_recv_interval": fact["scheduler_recv_interval"],
            "stream_interval": fact["stream_interval"],
            "async_scheduling": fact["async_scheduling"].replace("on", "yes"),
            "image": fact["image"].str.replace("#", "/"),
        }
    )


def test_the_lookup_agrees_with_another_hand_for_every_row(looked_up, by_hand):
    found = looked_up.loc[by_hand.index]
    assert len(found) == 1439
    assert (found["facts"].map(CONFIDENCE) == by_hand["confidence"]).all()
    passed = as_passed(by_hand)
    # The borrowed script is that of another image than the row's.
    passed["image"] = passed["image"].mask(found["facts"] == "ambiguous", found["image"])
    pd.testing.assert_frame_equal(found[passed.columns], passed, check_names=False)
    own = ~by_hand["env"].str.contains("MARLIN|MOE_FP8=0")
    assert (found.loc[own, "moe_backend"] == by_hand.loc[own, "moe_backend"]).all()
    gpus = (found["tensor_parallel_size"] * found["data_parallel_size"]).astype(int).astype(str)
    assert (gpus == by_hand["tp_passed"]).all()
    spread = (by_hand["expert_parallel_passed"] == "yes") & (by_hand["tp_passed"] != "1")
    assert (found["enable_expert_parallel"].astype(bool) == spread).all()
    attention = by_hand["dp_attention_passed"] == "true"
    assert ((found["data_parallel_size"] > 1) == attention).all()
    paths = found["script"].str.rpartition(" ")[0]
    assert (paths == by_hand["script"].str.replace("benchmarks/", "")).all()


def test_thirty_drawn_rows_have_the_flags_of_their_facts(clean, by_hand):
    drawn = clean[clean["row_id"].isin(by_hand.index)].sample(30, random_state=20261124)
    passed = as_passed(by_hand).drop(columns=["image", "stream_interval", "async_scheduling"])
    for _, row in drawn.iterrows():
        serving = observed_deployment(row).serving
        for name, text in passed.loc[row["row_id"]].items():
            value = getattr(serving, name)
            default = getattr(type(serving), name)
            if text:
                spelled = {"True": "yes", "False": "no"}.get(str(value), str(value))
                assert spelled == text
            else:
                assert value == default


def test_the_committed_table_is_that_of_the_source():
    if not SOURCE:
        pytest.skip("PINN_LAUNCH_FACTS names no folder to make the table from")
    source = Path(SOURCE) / "launch_facts.csv.gz"
    made = import_launch_facts.compact(pd.read_csv(source, dtype=str, keep_default_na=False))
    path = data_folder("engines") / "launch_facts.csv"
    pd.testing.assert_frame_equal(made, pd.read_csv(path, dtype=str, keep_default_na=False))


def test_the_table_has_its_columns_and_one_line_for_equal_ones():
    path = data_folder("engines") / "launch_facts.csv"
    lines = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert tuple(lines.columns) == import_launch_facts.COLUMNS
    assert not lines.drop(columns="points").duplicated().any()
    assert path.stat().st_size <= 250_000


@pytest.mark.parametrize(
    ("where", "flags", "rows"),
    [
        # Asked of the scripts' author, and rows that were checked against the script by hand.
        ("model == @LLAMA and gpu == 'h100_sxm'", {"kv_cache_dtype": "fp8", "max_num_seqs": None,
          "engine_version": "0.10.2", "cudagraph_mode": ""}, 42),
        ("model == @LLAMA and gpu == 'b200_sxm' and engine == 'vllm'",
         {"cudagraph_mode": "FULL_DECODE_ONLY", "fuse_all_reduce": "yes",
          "fuse_attn_quant": "yes"}, 119),
        ("model == @GPT_OSS and gpu == 'b200_sxm' and engine_version == '0.10.2'",
         {"kv_cache_dtype": "", "precision": "mxfp4_mxfp8", "date": "2025-11-02"}, 10),
        ("model == @GPT_OSS and gpu in ('h100_sxm', 'h200_sxm') and engine_version == '0.10.2'",
         {"moe_backend": ""}, 11),
        ("model == @GPT_OSS and gpu in ('h100_sxm', 'h200_sxm') and engine_version == '0.18.0'",
         {"moe_backend": "marlin", "max_cudagraph_capture_size": "2048"}, 92),
        ("model == @KIMI and precision == 'nvfp4'",
         {"enable_expert_parallel": False, "fuse_all_reduce": "yes"}, 64),
        ("model == @KIMI and gpu == 'b300_sxm' and date == '2026-04-20'",
         {"kv_cache_dtype": "", "max_num_batched_tokens": "", "max_cudagraph_capture_size": "",
          "engine_version": "0.19.0"}, 12),
        ("model == @MINIMAX and gpu == 'h100_sxm'", {"cudagraph_mode": "PIECEWISE"}, 25),
        ("model == @MINIMAX and gpu == 'b200_sxm' and date == '2026-03-11'",
         {"moe_backend": "triton", "block_size": "32"}, 15),
        ("model == @MINIMAX and precision == 'fp8_block' and date == '2026-04-17'",
         {"block_size": "32", "environment": "VLLM_FLASHINFER_ALLREDUCE_BACKEND=mnnvl"}, 20),
        ("model == @MINIMAX and gpu == 'b300_sxm' and float32_matmul_precision == 'high'",
         {"date": "2026-04-21", "engine_version": "0.19.0"}, 40),
        ("engine == 'trtllm' and model == @GPT_OSS and gpu == 'h200_sxm'",
         {"kv_cache_dtype": "auto", "moe_backend": "TRITON", "precision": "mxfp4"}, 91),
        ("engine == 'trtllm' and model == @LLAMA",
         {"max_num_batched_tokens": "16384", "max_cudagraph_capture_size": "1024"}, 208),
        ("engine == 'sglang' and precision == 'nvfp4' and engine_version == '0.5.3rc1'",
         {"enable_expert_parallel": True}, 21),
    ],
)  # fmt: skip
def test_facts_that_were_read_in_the_scripts(clean, where, flags, rows):
    names = {"LLAMA": LLAMA, "GPT_OSS": GPT_OSS, "KIMI": KIMI, "MINIMAX": MINIMAX}
    found = clean.query(where, local_dict=names)
    assert len(found) == rows
    for name, value in flags.items():
        if value is not None:
            assert set(found[name]) == {value}, name


def test_prompts_of_each_client(clean):
    """One runner sent 50 or 20 a client to SGLang's DeepSeek of 2025-11-18."""
    sent = clean.groupby("prompts_per_client").size()
    assert sent.to_dict() == {10: len(clean) - 15, 20: 5, 50: 10}
    assert set(clean.loc[clean["prompts_per_client"] > 10, "date"]) == {"2025-11-18"}


def test_a_point_that_ran_data_parallel(looked_up):
    """The label is the same as that of rows that ran TP 2 with expert parallelism."""
    found = find(ROW)
    assert found.confidence == "known"
    assert found.fact.passed["data_parallel_size"] == "2"
    ran = looked_up.loc["minimaxm2_5_b200_vllm_fp4_agg_1024x1024_c256_cfg707"]
    assert (ran["tensor_parallel_size"], ran["data_parallel_size"]) == (1, 2)
    assert ran["enable_expert_parallel"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"concurrency": float("nan")}, "no number of clients"),
        ({"concurrency": 3.0}, "no configuration matches the measurement"),
        ({"source": "measured=2026-04-22T00:00:00.000Z; vllm/vllm-openai:v0.20.0"},
         "no configuration of its image"),
        ({"source": "measured=2026-03-22T00:00:00.000Z"}, "no configuration at its time"),
        ({"source": "somewhere"}, "no time"),
        ({"engine": "sglang", "model": "deepseek-ai/DeepSeek-R1", "tensor_parallel_size": 4.0,
          "concurrency": 4.0, "stored_attention_dp_size": 1.0, "enable_expert_parallel": False,
          "source": "measured=2026-01-10T00:00:00.000Z"},
         "no configuration of its labels"),
    ],
)  # fmt: skip
def test_a_row_that_nothing_fits_is_unknown_and_says_why(change, reason):
    found = find(ROW | change)
    assert (found.fact, found.confidence, found.reason) == (None, "unknown", reason)


def test_an_unknown_row_keeps_its_labels_and_passes_nothing():
    rows = pd.DataFrame([ROW | {"concurrency": 3.0}], index=[7])
    row = with_launch_facts(rows, {}).loc[7]
    assert row["engine_version"] == "0.19.0"
    assert row["enable_expert_parallel"]
    assert row["max_num_seqs"] == row["kv_cache_dtype"] == row["image"] == ""


def test_a_row_of_a_day_ran_after_the_change_that_started_it():
    """2026-04-22 had two sets of flags; the second is the configuration's own change."""
    of_day = [f for f in launch_facts()["vllm", MINIMAX, "b200_sxm", "fp4", "1024", "1024", "2",
              "128"] if f.passed["since"] >= "2026-04-20" and f.expert_parallel]  # fmt: skip
    assert len({fact.passed["environment"] for fact in of_day}) > 1
    assert "PRECISION=high" in find(ROW | {"concurrency": 128.0}).fact.passed["environment"]

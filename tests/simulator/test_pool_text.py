"""Pools as they are written, and ``pinn simulate --prefill --decode``."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from simulator_helpers import BLIS_KEYS
from typed import alone
from typer.testing import CliRunner

from pinn.cli import simulate as simulate_command
from pinn.engines.configurations import parse_pool, pool_text
from pinn.errors import PinnError

app = alone(simulate_command)


@pytest.mark.parametrize(
    ("text", "workers", "flags"),
    [
        ("2x tp=4", 2, {"tensor_parallel_size": 4}),
        ("tp=4", 1, {"tensor_parallel_size": 4}),
        ("3x", 3, {}),
        ("1x tp=2 pp=2 dp=4 ep", 1, {
            "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 4,
            "enable_expert_parallel": True,
        }),
        ("8x max-num-batched-tokens=16384 gpu=H200 precision=fp8", 8, {
            "max_num_batched_tokens": 16384, "gpu": "H200", "precision": "fp8",
        }),
        ("1x no_such=1", None, "--prefill: the configuration key 'no_such' is unknown"),
        ("0x tp=4", None, "has no servers"),
        ("", None, "has no servers"),
        ("2x tp", None, "has the unknown word 'tp'"),
        ("2x tp=", None, "has the unknown word 'tp='"),
        ("2x tp=two", None, "--prefill: tensor_parallel_size must be a"),
        ("2x tp=2 tp=4", None, "has tensor_parallel_size twice"),
        ("2 tp=4", None, "has the unknown word '2'"),
        ("2x model=x", None, "--model"),
    ],
)  # fmt: skip
def test_pools_as_they_are_written(text, workers, flags):
    if workers is None:
        with pytest.raises(PinnError, match=flags):
            parse_pool(text, "--prefill")
        return
    assert parse_pool(text, "--prefill") == (workers, flags)
    assert parse_pool(pool_text(workers, flags), "--prefill") == (workers, flags)


@pytest.fixture
def run(coefficients, tmp_path):
    """Serve a closed loop with further options; the command's result and the written figures."""
    load_file = tmp_path / "load.yaml"
    load_file.write_text("{prompt_tokens: 400, output_tokens: 8, concurrency: 4, requests: 20}")

    def serve(*options):
        arguments = [
            "--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", "--workload", str(load_file),
            "--coefficients", str(coefficients), "--json", str(tmp_path / "run.json"), *options,
        ]  # fmt: skip
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None:
            raise result.exception
        return result.output, json.loads((tmp_path / "run.json").read_text())

    return serve


def test_the_command_prints_and_writes_both_pools(run, tmp_path):
    requests = tmp_path / "run.parquet"
    pools = ("--prefill", "2x tp=1", "--decode", "1x tp=2 max-num-seqs=64")
    output, found = run(*pools, "--requests", str(requests))
    assert "20 of 20 served" in output
    assert "2 x H100-SXM TP 1 bf16" in output
    assert "1 x H100-SXM TP 2 bf16" in output
    assert set(BLIS_KEYS) | {"tpot_mean_ms", "pools", "kv_transfer", "assumptions"} <= set(found)
    assert {name: pool["gpus"] for name, pool in found["pools"].items()} == {
        "prefill": 2, "decode": 2,
    }  # fmt: skip
    # 32 layers x 2 x 8 heads x 128 x 2 bytes a token; two GPUs take them, one sends them.
    transfer = found["kv_transfer"]
    assert transfer["gigabytes_mean"] == pytest.approx(400 * 131072 / 1e9)
    assert transfer["link_mean_ms"] == pytest.approx(400 * 131072 / 50e9 * 1e3)
    assert pq.read_table(requests)["transfer_tokens"].to_pylist() == [400] * 20


def test_an_instant_link_takes_no_time(run):
    pools = ("--prefill", "1x", "--decode", "1x")
    instant = run(*pools, "--kv-link-gb-per-s", "inf")[1]
    assert instant["kv_transfer"]["link_mean_ms"] == 0
    assert instant["kv_transfer"]["link_bytes_per_s"] is None
    assert instant["ttft_mean_ms"] < run(*pools, "--kv-link-gb-per-s", "0.1")[1]["ttft_mean_ms"]


NGRAM = '{"method":"ngram","num_speculative_tokens":3}'
HALF = ("--speculative-acceptance", "0.5")


@pytest.mark.parametrize(
    ("options", "pools", "first_token"),
    [
        (("--engine", "sglang"), ("1x tp=2", "1x"), "sends"),
        (("--engine", "trtllm"), ("1x", "2x"), "sends"),
        (
            ("--engine", "sglang", "--speculative-algorithm", "NGRAM", *HALF),
            ("1x", "1x"),
            "sends",
        ),
        (("--speculative-config", NGRAM, *HALF), ("1x", "1x"), "NixlConnector"),
        ((), ("1x gpu=H100", "1x gpu=H200"), "NixlConnector"),
        (HALF, ("1x", f"1x speculative-config={NGRAM}"), "NixlConnector"),
    ],
)
def test_pools_of_other_engines_of_two_gpus_and_with_drafts(tmp_path, options, pools, first_token):
    load_file = tmp_path / "load.yaml"
    load_file.write_text("{prompt_tokens: 400, output_tokens: 8, concurrency: 4, requests: 20}")
    arguments = ["--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", *options]
    arguments += ["--workload", str(load_file), "--prefill", pools[0], "--decode", pools[1]]
    result = CliRunner().invoke(app, [*arguments, "--json", str(tmp_path / "run.json")])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["completed_requests"] == 20
    assert any(first_token in text for text in found["assumptions"])


def test_pools_of_two_engines_are_refused_by_name(run):
    with pytest.raises(PinnError, match="have the --engine sglang, but the decode workers vllm"):
        run("--prefill", "1x engine=sglang", "--decode", "1x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prefill", "1x"), "--decode is missing"),
        (("--decode", "1x"), "--prefill is missing"),
        (("--kv-link-gb-per-s", "10"), "--prefill is missing"),
        (("--prefill", "1x", "--decode", "1x", "--replicas", "2"), "number of servers in each"),
        (("--prefill", "1x", "--decode", "1x", "--timeline", "x.png"), "plots one engine"),
        (("--prefill", "1x", "--decode", "1x", "--kv-link-gb-per-s", "0"), "positive bandwidth"),
        (("--prefill", "1x", "--decode", "1x block-size=32"), "give both pools equal values"),
    ],
)
def test_what_cannot_be_is_refused(run, options, message):
    with pytest.raises(PinnError, match=message):
        run(*options)

"""Files of a real vLLM 0.32.0 (``make live-test``), its CPU build: client, pages and log agree.

Six requests of a closed loop of three clients. Of the pages a few series were kept, of the log the
lines about flags, cache and iterations; the model's answers are removed.
"""

import json
from pathlib import Path

import pytest

from pinn.measurements.benchmarks.read import read_benchmarks
from pinn.measurements.benchmarks.reading import GivenLoad
from pinn.measurements.benchmarks.vllm_log import read_iteration_log

FILES = Path(__file__).with_name("files")
CLIENT = FILES / "vllm_0.32.0_bench_serve_c3.json"
LOG = FILES / "vllm_0.32.0_iteration.log"
PAGES = [FILES / f"vllm_0.32.0_metrics_{side}.txt" for side in ("before", "after")]


def one(paths, **given):
    (run,), report = read_benchmarks(paths, GivenLoad(**given))
    assert (report.read, report.accepted) == (1, 1)
    return run


@pytest.fixture(scope="module")
def client():
    return one([CLIENT])


def test_the_clients_file_gives_the_load_and_what_its_clients_saw(client):
    assert (client.tool, client.served, client.failed) == ("vllm bench serve", 6, 0)
    assert (client.load.concurrency, client.load.rate_per_s) == (3, None)
    told = json.loads(CLIENT.read_text())
    assert list(client.load.prompt.each) == told["input_lens"]
    assert list(client.load.output.each) == told["output_lens"]
    # New with this release: each request's own latency, which the sum of its gaps comes to.
    assert client.figures["e2e_mean_s"] == pytest.approx(sum(told["latencies"]) / 6, rel=1e-3)


def test_details_come_to_the_figures_that_the_file_states(client, tmp_path):
    told = json.loads(CLIENT.read_text())
    detailed = tmp_path / "detailed.json"
    stated = ("mean_tpot_ms", "mean_itl_ms", "mean_e2el_ms", "median_ttft_ms", "p99_ttft_ms")
    detailed.write_text(json.dumps({k: v for k, v in told.items() if k not in stated}))
    figures = one([detailed]).figures
    for name in ("tpot_mean_s", "itl_mean_s", "e2e_mean_s", "ttft_p50_s", "ttft_p99_s"):
        assert figures[name] == pytest.approx(client.figures[name], rel=2e-3), name


def test_pages_agree_with_the_client(client):
    run = one(PAGES, concurrency=3)
    assert run.served == client.served
    assert run.load.prompt.mean == pytest.approx(client.load.prompt.mean)
    assert run.load.output.mean == pytest.approx(client.load.output.mean)
    # What client and front end spend on a request is not in the pages.
    for name in ("ttft_mean_s", "e2e_mean_s"):
        assert 0 <= client.figures[name] - run.figures[name] < 0.1 * client.figures[name], name
    assert run.figures["tpot_mean_s"] == pytest.approx(client.figures["tpot_mean_s"], rel=0.02)
    assert (run.server.kv_tokens, run.server.flags["block_size"]) == (65536, 128)


def test_the_log_tells_its_server_and_every_token(client):
    table, report = read_iteration_log(LOG)
    assert report.accepted == report.read - sum(report.refused.values()) == 22
    decoded = sum(client.load.output.each) - client.served
    assert sum(table["prefill_tokens"].to_pylist()) == sum(client.load.prompt.each)
    assert sum(table["decode_tokens"].to_pylist()) == decoded
    run = one([LOG])
    assert (run.server.engine, run.server.kv_tokens) == ("vllm 0.32.0", 65536)
    assert run.server.flags["max_num_batched_tokens"] == 512
    assert run.server.flags["enforce_eager"] is True
    assert (run.load.requests, run.load.concurrency) == (client.served, client.load.concurrency)
    assert run.load.prompt.mean == pytest.approx(client.load.prompt.mean)

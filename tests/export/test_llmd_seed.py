"""Seeds for llm-d: entries of the documented form, true to their runs, and posted as documented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import score_llmd_seed as score
from pages import command_on, missing
from typer.testing import CliRunner

import pinn
from pinn.cli.main import app
from pinn.engines.configurations import make_deployments, parse_grid
from pinn.export.configured import from_checkpoint
from pinn.export.llmd_autoscaler import fit_autoscaler
from pinn.export.llmd_seed import FIELDS, pod_states, seed_entries, seed_loads
from pinn.simulator.simulate import simulate
from pinn.specs.batch import Batch
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE

GRID = "model=Llama-3.1-8B gpu=H100 max_model_len=4096 enable_prefix_caching={}"
WHOLE = {
    "input_token_length", "num_request_waiting", "num_request_running", "num_tokens_generated",
    "prefill_tokens_in_flight", "decode_tokens_in_flight", "encoder_matched_size",
    "encoder_input_size",
}  # fmt: skip
HALVES = {"tpot": 0.11, "ttft": 0.32}


@pytest.fixture(scope="module")
def latency(checkpoint_path):
    from pinn.export.blis_vectors import latency_of

    kept, deployments, _ = make_deployments(parse_grid(GRID.format("true")))
    return latency_of(from_checkpoint(checkpoint_path, kept, deployments), 0)


@pytest.fixture(scope="module")
def entries(latency):
    return seed_entries(latency, {}, 960, 7)


@pytest.fixture(scope="module")
def folder(checkpoint_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("seed")
    arguments = ("--out", out, "--entries", 96, "--checkpoint", checkpoint_path)
    command = ["export", "llm-d", "--configs", GRID.format("false"), *map(str, arguments)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    (made,) = out.iterdir()
    return made, result.output


def test_a_folder_has_entries_of_exactly_the_documented_fields(folder):
    made, said = folder
    files = {"entries.jsonl", "autoscaler.json", "seed.json", "post.py"}
    assert {path.name for path in made.iterdir()} == files
    rows = [json.loads(line) for line in (made / "entries.jsonl").read_text().splitlines()]
    assert len(rows) == 96
    for row in rows:
        assert list(row) == [*FIELDS, "timestamp"]
        assert all(isinstance(row[name], int) and row[name] >= 0 for name in WHOLE)
        assert 0 <= row["kv_cache_percentage"] <= 1
        assert row["prefix_cache_score"] == 0  # prefix caching is off
        assert row["pod_type"] == ""
        assert (row["actual_ttft_ms"] > 0) != (row["actual_tpot_ms"] > 0)
        pd.Timestamp(row["timestamp"])
    facts = json.loads((made / "seed.json").read_text())
    assert facts["entries"] == 96
    assert facts["noise"]["half_widths"] == {}  # the small network has no intervals
    assert len(facts["provenance"]["checkpoint_sha256"]) == 64
    assert "entries of TTFT" in said
    assert "without noise: the file of intervals" in " ".join(said.split())
    assert all(len(line) <= 100 for line in said.splitlines() if "noise" not in line)


def without_timestamps(folder):
    lines = (folder / "entries.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "timestamp"} for line in lines]


def test_the_function_writes_what_the_command_does(folder, checkpoint_path, tmp_path):
    made, said = folder
    written = pinn.export_llm_d(
        tmp_path, GRID.format("false"), entries=96, checkpoint=checkpoint_path
    )
    assert written.path == tmp_path
    assert str(written) == said.rstrip("\n")
    assert without_timestamps(tmp_path / made.name) == without_timestamps(made)
    for name in ("autoscaler.json", "seed.json", "post.py"):
        assert (tmp_path / made.name / name).read_text() == (made / name).read_text()


def test_entries_span_the_range_of_load(entries):
    ttft = entries["actual_ttft_ms"] > 0
    assert abs(int(ttft.sum()) - len(entries) / 2) < 0.1 * len(entries)
    assert entries["num_request_running"].min() == 0
    assert entries["num_request_running"].max() > 100
    assert entries["num_request_waiting"].max() > 0
    assert 0.05 < (entries["num_request_waiting"] > 0).mean() < 0.5
    assert entries["kv_cache_percentage"].max() > 0.3
    assert entries["input_token_length"].min() < 32
    assert entries["input_token_length"].max() > 2000
    assert entries["prefix_cache_score"].max() > 0.5
    assert (entries["num_tokens_generated"] > 0).mean() == pytest.approx(0.25, abs=0.05)
    assert (entries.loc[ttft, "num_tokens_generated"] == 0).all()
    running = entries["num_request_running"] > 4
    assert (entries.loc[running, "decode_tokens_in_flight"] == 0).mean() == pytest.approx(
        0.5, abs=0.15
    )


def test_noise_has_the_width_of_the_intervals(latency, entries):
    noisy = seed_entries(latency, HALVES, len(entries), 7)
    for metric, half in HALVES.items():
        column = f"actual_{metric}_ms"
        known = entries[column] > 0
        noise = np.log(noisy.loc[known, column] / entries.loc[known, column])
        assert noise.std() == pytest.approx(half / NORMAL_QUANTILE, rel=0.15)
        assert abs(noise.mean()) < 0.03
    same = [name for name in FIELDS if not name.startswith("actual_")]
    pd.testing.assert_frame_equal(noisy[same], entries[same])


def test_a_seed_draws_the_same_entries_and_another_seed_others(latency):
    first, again, other = (seed_entries(latency, {}, 64, seed) for seed in (7, 7, 8))
    pd.testing.assert_frame_equal(first, again)
    assert not first.equals(other)


def test_states_are_those_of_requests_counted_one_by_one(latency):
    load = seed_loads(latency, 3, 0)[2]
    run = simulate(latency.deployment, load, latency)
    r, some = run.requests, np.arange(10, len(load), 7)
    found = pod_states(run, r.arrival_s[some])
    for i, now in enumerate(r.arrival_s[some]):
        running = (r.scheduled_s < now) & (r.engine_finish_s >= now)
        waiting = (r.arrival_s < now) & (r.scheduled_s >= now)
        prompts = (r.arrival_s < now) & (r.engine_first_token_s >= now)
        assert found["num_request_running"][i] == running.sum()
        assert found["num_request_waiting"][i] == waiting.sum()
        assert found["prefill_tokens_in_flight"][i] == r.prompt_tokens[prompts].sum()
        decoding = (r.engine_first_token_s < now) & (r.engine_finish_s >= now)
        part = (now - r.engine_first_token_s) / (r.engine_finish_s - r.engine_first_token_s)
        tokens = (part * r.output_tokens)[decoding].sum()
        assert found["decode_tokens_in_flight"][i] == pytest.approx(tokens, abs=1)
        held = (r.prompt_tokens * running)[~prompts].sum() + tokens
        least = held / latency.deployment.recipe.block_tokens / run.kv_blocks
        assert found["kv_cache_percentage"][i] >= 0.9 * least - 0.002


def test_lines_of_the_autoscaler_have_the_errors_that_they_state(latency):
    found = fit_autoscaler(latency)
    alpha, beta, gamma, delta = found.parameters.values()
    assert min(alpha, beta, delta) > 0
    assert gamma >= 0
    for line, constant, slope in (
        (found.decode, alpha, beta), (found.prefill, gamma, delta)
    ):  # fmt: skip
        assert 0 < line.median_error <= abs(line.worst_error)
        assert (line.constant_ms, line.slope_ms) == (constant, slope)
    count, context = map(int, found.decode.worst_at.split(" decodes @ "))
    took_ms = 1000 * latency.step_time(Batch.decode(count, context))
    assert (alpha + beta * count) / took_ms - 1 == pytest.approx(found.decode.worst_error)
    document = found.to_json()
    assert {name: document[name] for name in ("alpha", "beta", "gamma", "delta")} == (
        found.parameters
    )


class TrainingServer(ThreadingHTTPServer):
    """A stand-in with the training server's endpoints; not ready at the first question."""

    def __init__(self, accepts=202):
        super().__init__(("127.0.0.1", 0), Handler)
        self.accepts, self.entries, self.asked = accepts, [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        ready = self.server.asked.count("/readyz") > 1
        self.answer(200 if ready else 503, {"entries": len(self.server.entries)})

    def do_POST(self):
        self.server.asked.append(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/add_training_data_bulk" and self.server.accepts == 202:
            self.server.entries += json.loads(body)["entries"]
        self.answer(self.server.accepts if self.path.startswith("/add") else 200, {})

    def answer(self, status, content):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_):
        pass


def posted(folder, server, *arguments):
    command = [sys.executable, str(folder / "post.py"), server.url, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        server.shutdown()
        server.server_close()


def test_the_script_posts_every_entry_once(folder):
    made, _ = folder
    server = TrainingServer()
    (_, _, url), shown = command_on("llm-d.md", "post.py")
    result = posted(made, server, "--per-request", "40", "--flush")
    assert result.returncode == 0, result.stderr
    assert not missing(shown.replace(url, server.url), result.stdout)
    assert result.stdout.startswith("flushed: {}\n96 entries posted")
    assert '{"entries": 96}' in result.stdout
    lines = (made / "entries.jsonl").read_text().splitlines()
    assert server.entries == [json.loads(line) for line in lines]
    bulk = ["/add_training_data_bulk"] * 3
    assert server.asked == ["/readyz", "/readyz", "/flush", *bulk, "/data/status"]


def test_the_script_says_what_a_server_refuses(folder):
    made, _ = folder
    result = posted(made, TrainingServer(accepts=422))
    assert result.returncode == 1
    assert "entries 1 to 96: status 422, not 202" in result.stdout


@pytest.fixture(scope="module")
def scored():
    if "PINN_LLMD_TRACES" not in os.environ:
        pytest.skip("set PINN_LLMD_TRACES to the folder of recorded traffic")
    folder = Path(os.environ["PINN_LLMD_TRACES"])
    traces = {name: score.read_rows(folder / f"{name}.jsonl.gz") for name in score.TRACES}
    learners = [name for name in score.LEARNERS if "quantile" not in name]
    table = score.scores(score.default_seed(), traces, learners)
    return table.set_index(["fitted to", "metric", "trace", "learner"]).sort_index()["median APE %"]


LINEAR = "bayesian ridge"
#: Limits of the median APE of TPOT in %. XGBoost's varies most with the noise of the seed, whose
#: width is that of the checkpoint's intervals: 25.7 to 28.0 with three checkpoints.
TPOT_LIMITS = pd.Series({LINEAR: 24.0, "lightgbm, mean": 25.0, "xgboost, mean": 28.5})


@pytest.mark.parametrize("trace", ["sharegpt-h200", "bimodal-h200"])
def test_learners_of_the_seed_alone_predict_recorded_traffic(scored, trace):
    tpot, ttft = scored.loc["seed", "tpot", trace], scored.loc["seed", "ttft", trace]
    assert len(tpot) == len(ttft) == 3
    assert (tpot <= TPOT_LIMITS[tpot.index]).all(), tpot
    # A TTFT is far from linear in the state, so a ridge fits overloaded loads alone.
    assert (ttft.drop(LINEAR) <= 40).all(), ttft


def test_first_rows_with_the_seed_beat_those_alone(scored):
    trees = scored.drop(LINEAR, level="learner")
    both, alone = trees.loc["both"], trees.loc["first rows"]
    assert len(both) == 8
    assert (both < alone).all(), (both, alone)

"""Requests that ask for no output: embeddings, scores, classes."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_cases import Case, cases, crowded, latency_of
from simulator_helpers import Recorder, deployment, load
from typed import alone
from typer.testing import CliRunner

from pinn.cli import simulate as simulate_command
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.simulator.pools import Pool, simulate_pools
from pinn.simulator.result import Simulation
from pinn.simulator.run import Run
from pinn.simulator.simulate import simulate
from pinn.simulator.statistics import run_statistics

app = alone(simulate_command)

#: What differs between a request without output and one of a single token.
_DIFFERENT = {"output_tokens", "first_token_s", "completion_s"}


def with_outputs(case: Case, alike: int, asked: int) -> Run:
    """A case's run, where every so many-th request, from the first, asks for so many tokens."""
    target, workload, spec = case.build()
    outputs = np.where(np.arange(case.requests) % alike == 0, asked, workload.output_tokens)
    workload = dataclasses.replace(workload, output_tokens=outputs)
    return simulate(target, workload, latency_of(target), spec)


@given(cases(), st.sampled_from([1, 2, 3]))
@example(crowded(), 1)
@example(crowded(), 2)
@settings(max_examples=60)
def test_the_schedule_is_that_of_one_output_token(case, alike):
    none, one = (with_outputs(case, alike, asked) for asked in (0, 1))
    assert np.array_equal(none.steps.table, one.steps.table, equal_nan=True)
    assert np.array_equal(none.gaps.seconds, one.gaps.seconds)
    for f in dataclasses.fields(none.requests):
        if f.name not in _DIFFERENT:
            np.testing.assert_array_equal(
                getattr(none.requests, f.name), getattr(one.requests, f.name), f.name
            )
    kept = {"preemption_count", "recomputed_tokens", "responses_per_sec", "e2e_p99_ms"}
    figures = [run_statistics(run) for run in (none, one)]
    for name in kept:
        np.testing.assert_equal(figures[0][name], figures[1][name], name)


@given(cases(), st.sampled_from([1, 2]))
@settings(max_examples=30)
def test_the_result_is_the_first_token_and_the_last(case, alike):
    run = with_outputs(case, alike, 0)
    r, mine = run.requests, run.workload.output_tokens == 0
    done = r.finished & mine
    assert (r.ttft_s[done] == r.e2e_s[done]).all()
    assert (r.output_tokens[mine] == 0).all()
    assert np.isnan(r.mean_itl_s[mine]).all()
    assert (r.output_tokens[r.finished & ~mine] > 0).all()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_every_engine_ends_a_request_with_its_last_prompt_token(engine):
    target = deployment(engine=engine, max_num_batched_tokens=16, enable_chunked_prefill=True)
    model = Recorder(completion_s=0.25)
    run = simulate(target, load([8, 40], [0, 0], [0.0, 100.0]), model)
    assert model.batches[0] == ["8@0"]
    assert sum(int(row.split("@")[0]) for batch in model.batches for row in batch) == 48
    steps = len(model.batches) - 1
    assert run.requests.e2e_s.tolist() == [1.25, steps + 0.25]
    assert (run.requests.ttft_s == run.requests.e2e_s).all()


def test_plain_code_does_as_compiled_code():
    target, workload, spec = crowded().build()
    workload = dataclasses.replace(workload, output_tokens=np.zeros(30, np.int64))
    compiled, plain = (
        simulate(target, workload, latency_of(target), spec, compiled=way) for way in (True, False)
    )
    assert np.array_equal(compiled.requests.finish_s, plain.requests.finish_s)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_prompt_may_fill_the_context(compiled):
    target = deployment(max_model_len=64, max_num_batched_tokens=16)
    run = simulate(target, load([64, 9], [0, 9]), latency_of(target), compiled=compiled)
    assert run.requests.finished.all()
    assert run.requests.computed_tokens.tolist() == [64, 17]
    with pytest.raises(PinnError, match="65 prompt and 0 output tokens, 65 together"):
        simulate(target, load([65], [0]), latency_of(target))
    with pytest.raises(PinnError, match="65 together"):
        simulate(target, load([64], [1]), latency_of(target))


def test_nothing_printed_or_written_is_no_number():
    target = deployment()
    asked = load([8, 9, 10], [0, 0, 0], [0.0, 0.5, 0.0], stage=[0, 0, 1], stage_starts_s=(0.0, 9.0))
    found = Simulation(target, simulate(target, asked, latency_of(target)))
    text = str(found)
    assert "nan" not in text.lower()
    assert not [line for line in text.splitlines() if line.startswith("ITL")]
    assert "prompt tokens/s" in text
    written = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(written)["itl_mean_ms"] is None


def test_tables_say_nothing_of_what_nobody_saw():
    target = deployment()
    stages = {"stage": [0, 1], "stage_starts_s": (0.0, 9.0), "timeout_s": [np.inf, 1e-9]}
    asked = load([60, 60], [0, 0], **stages)
    text = str(Simulation(target, simulate(target, asked, latency_of(target))))
    assert "1 timed out" in text
    assert "nan" not in text


@pytest.mark.parametrize(
    ("name", "text", "outputs"),
    [
        ("load.yaml", "{prompt_tokens: 100, output_tokens: 0, concurrency: 1, requests: 3}", 0),
        ("load.csv", "arrival_s,prompt_tokens,output_tokens\n0,100,0\n1,200,5\n", 5),
        ("load.csv", "arrival_s,prompt_tokens,output_tokens\n0,100,0\n1,200,1\n", 1),
    ],
)
def test_files_may_ask_for_no_output(coefficients, tmp_path, name, text, outputs):
    (tmp_path / name).write_text(text)
    arguments = ["--workload", str(tmp_path / name)]
    found, printed = _simulated(coefficients, tmp_path, arguments)
    assert found["completed_requests"] == found["injected_requests"]
    assert found["total_output_tokens"] == outputs
    assert ("ITL" in printed) == (outputs > 1)
    assert (found["itl_mean_ms"] is None) == (outputs <= 1)


def test_flags_may_ask_for_no_output(coefficients, tmp_path):
    arguments = ["--input-len", "512", "--rate", "20", "--duration", "5", "--range-ratio", "0.5"]
    found, printed = _simulated(coefficients, tmp_path, [*arguments, "--output-len", "0"])
    assert found["ttft_p99_ms"] == found["e2e_p99_ms"]
    assert "512 tokens in, 0 out" in " ".join(printed.split())
    assert found["completed_requests"] == 100


def _simulated(coefficients, folder, arguments):
    common = ["--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100"]
    output = ["--coefficients", str(coefficients), "--json", str(folder / "run.json")]
    result = CliRunner().invoke(app, [*common, *output, *arguments])
    assert result.exit_code == 0, result.output
    assert "nan" not in result.output.lower().split()
    text = (folder / "run.json").read_text()
    assert "NaN" not in text
    return json.loads(text), result.output


def test_decode_servers_need_output():
    target = deployment()
    pool = Pool(target, latency_of(target), EngineSpec())
    with pytest.raises(PinnError, match="has no output tokens"):
        simulate_pools(pool, pool, load([8, 9], [0, 0]))
    mixed = simulate_pools(pool, pool, load([8, 9], [0, 3])).decode.requests
    assert mixed.finished.all()
    assert mixed.output_tokens.tolist() == [0, 3]
    assert mixed.ttft_s[0] == mixed.e2e_s[0]

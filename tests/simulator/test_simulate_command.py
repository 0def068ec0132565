"""``pinn simulate`` from its command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields

import pyarrow.parquet as pq
import pytest
from simulator_helpers import BLIS_KEYS
from typed import alone
from typer.main import get_command
from typer.testing import CliRunner

from pinn.cli import simulate as simulate_command
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.specs.flags import flags_of
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

app = alone(simulate_command)


def test_the_command_prints_and_writes(coefficients, tmp_path):
    load_file = tmp_path / "load.yaml"
    load_file.write_text("{prompt_tokens: 100, output_tokens: 8, concurrency: 1, requests: 20}")
    arguments = [
        "--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", "--workload", str(load_file),
        "--coefficients", str(coefficients), "--json", str(tmp_path / "run.json"),
        "--requests", str(tmp_path / "run.parquet"), "--max-num-seqs", "64",
        "--no-async-scheduling", "--sensitivity", "e2e_mean_ms",
    ]  # fmt: skip
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "20 of 20 served" in result.output
    written = json.loads((tmp_path / "run.json").read_text())
    assert set(BLIS_KEYS) <= set(written)
    assert len(written["stages"]) == 1
    hangs_on = written["sensitivity"]
    assert (hangs_on["figure"], hangs_on["value"]) == ("e2e_mean_ms", written["e2e_mean_ms"])
    shares = {name: found["elasticity"] for name, found in hangs_on["coefficients"].items()}
    assert set(shares) == {*STEP_FEATURES, *REQUEST_FEATURES}
    # Scaling all that is in seconds scales time; one client's batches stay as they are.
    seconds = [share for name, share in shares.items() if not name.endswith(".step_time")]
    assert sum(seconds) == pytest.approx(1, abs=1e-3)
    assert "e2e_mean_ms" in result.output
    assert pq.read_table(tmp_path / "run.parquet").num_rows == 20


def test_a_figure_that_nobody_knows_is_refused(coefficients, tmp_path):
    load_file = tmp_path / "load.yaml"
    load_file.write_text("{prompt_tokens: 100, output_tokens: 8, concurrency: 1, requests: 2}")
    arguments = [
        "--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", "--workload", str(load_file),
        "--coefficients", str(coefficients), "--sensitivity", "e2e",
    ]  # fmt: skip
    error = CliRunner().invoke(app, arguments).exception
    assert "use one of injected_requests" in str(error)


def test_the_command_needs_no_torch():
    modules = "pinn.cli.simulate, pinn.simulator.simulate, pinn.simulator.workloads.load"
    check = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.fixture
def burst(coefficients, tmp_path):
    """Serve a burst with further flags; the written figures."""
    load_file = tmp_path / "load.yaml"
    load_file.write_text("{prompt_tokens: 10, output_tokens: 4, concurrency: 64, requests: 64}")

    def run(*flags):
        arguments = [
            "--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", "--workload", str(load_file),
            "--coefficients", str(coefficients), "--json", str(tmp_path / "run.json"), *flags,
        ]  # fmt: skip
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None:
            raise result.exception
        return json.loads((tmp_path / "run.json").read_text())

    return run


def figures(found):
    """Return the output without the flags as they were typed."""
    return {name: value for name, value in found.items() if name != "serving"}


def test_two_api_servers_take_a_burst_in_twice_as_fast(burst):
    one, two = burst()["ttft_p99_ms"], burst("--api-server-count", "2")["ttft_p99_ms"]
    # 64 requests of 3 ms each are handed over within 192 ms, or 96.
    assert one == pytest.approx(192, rel=0.2)
    assert two == pytest.approx(96, rel=0.3)
    assert figures(burst("--api-server-count", "1")) == figures(burst())


def test_an_engine_in_the_servers_process_is_slower(burst):
    apart = burst("--v1-multiprocessing")
    assert figures(apart) == figures(burst())
    assert burst("--no-v1-multiprocessing")["e2e_mean_ms"] > apart["e2e_mean_ms"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--api-server-count", "0"), "--api-server-count must be a positive whole number, got 0"),
        (("--api-server-count", "2", "--no-v1-multiprocessing"), "a separate process"),
    ],
)
def test_front_ends_that_there_are_not_are_refused(burst, flags, message):
    with pytest.raises(PinnError, match=message):
        burst(*flags)


def test_every_engine_setting_is_an_option():
    options = {p.name for p in get_command(app).params}
    assert [f.name for f in flags_of(EngineSpec)] == [f.name for f in fields(EngineSpec)]
    assert {f.name for f in fields(EngineSpec)} <= options

"""A calibration's verdict for users: errors by metric, and likely causes of large ones."""

import json
import re

import pytest
from benchmark_files import vllm_bench
from served_load import served

import pinn
from pinn.simulator.linear_latency import LinearLatency
from pinn.surrogate.coefficient_set import read_coefficient_set

LLAMA = ("--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100")


@pytest.fixture
def coefficients(run, tmp_path):
    path = tmp_path / "set.json"
    assert run("coefficients", *LLAMA, "--json", path).exit_code == 0
    return path


@pytest.fixture
def benchmarks(coefficients, tmp_path):
    """Write files of three loads of a server that is 20 % slower; TTFTs times factors."""
    found = read_coefficient_set(coefficients)

    def write(*factors):
        paths = []
        for clients, factor in zip((4, 16, 32), factors, strict=True):
            of = served(lambda d: LinearLatency(d, 1.2 * found.beta, found.alpha), clients,
                        requests=64)  # fmt: skip
            figures = vllm_bench(of)
            scaled = {k: factor * v for k, v in figures.items() if "ttft" in k and "mean" in k}
            paths.append(tmp_path / f"c{clients}.json")
            paths[-1].write_text(json.dumps(figures | scaled))
        return paths

    return write


def test_errors_are_told_by_metric_before_and_after(run, coefficients, benchmarks, tmp_path):
    out = tmp_path / "server.json"
    words = ("calibrate", "--base", coefficients, "-o", out, *LLAMA, "--benchmarks")
    found = run(*words, *benchmarks(1, 1, 1))
    assert found.exit_code == 0, found.output
    row = re.search(r"^TPOT +3 +([\d.]+) % +([\d.]+) % +better", found.stdout, re.MULTILINE)
    before, after = map(float, row.groups())
    assert before == pytest.approx(100 * (1 - 1 / 1.2), abs=3)
    assert after < before / 2
    assert "MAPE, held-out loads" in found.stdout
    assert "weighted MAPE on held-out data" in found.stdout
    assert re.search(r"likelihood ratio \d+\.\d\d", found.stdout)
    assert "probable" not in found.stdout
    held_out = json.loads(out.read_text())["calibration"]["held_out"]
    assert {row["figure"] for row in held_out} == {"ttft_mean_s", "tpot_mean_s"}


def test_a_run_of_an_overloaded_server_is_excluded(run, coefficients, benchmarks, tmp_path):
    out, (*files, last) = tmp_path / "server.json", benchmarks(1, 1, 1)
    values = json.loads(last.read_text())
    last.write_text(json.dumps(values | {"failed": 9 * values["completed"]}))
    words = ("calibrate", "--base", coefficients, "-o", out, *LLAMA, "--benchmarks")
    found = run(*words, *files, last)
    assert found.exit_code == 0, found.output
    assert "excluded: c32.json: 576 of 640 requests failed" in found.stdout
    assert "fitted to 4 metrics of 2 runs" in found.stdout
    alone = run(*words, last)
    assert alone.exit_code == 1
    assert "c32.json: 576 of 640 requests failed), so no run is left to fit: " in alone.output


def test_a_large_error_needs_to_be_accepted(run, coefficients, benchmarks, tmp_path):
    out = tmp_path / "server.json"
    words = ("calibrate", "--base", coefficients, "-o", out, *LLAMA, "--force", "--benchmarks")
    files = benchmarks(3.0, 0.3, 3.0)  # times to first tokens that no coefficient explains
    found = run(*words, *files)
    assert found.exit_code == 1, found.output
    said = " ".join(found.stdout.split())
    error = re.search(r"WARNING: TTFT: median APE is still (\d+) % over 3 held-out", said)
    assert int(error[1]) > 25
    assert "Likely causes: a server at or beyond saturation" in said
    assert "nothing written: the error of TTFT is still large" in said
    assert not out.exists()
    server = pinn.calibrate(files, *LLAMA[1::2], base=coefficients, force=True)
    assert server.kept
    with pytest.raises(pinn.PinnError, match="or write the file with --accept"):
        server.save(out)
    accepted = run(*words, *files, "--accept")
    assert accepted.exit_code == 0, accepted.output
    assert out.exists()


def test_a_metric_that_gets_worse_is_left_alone(run, coefficients, benchmarks, tmp_path):
    out = tmp_path / "server.json"
    words = ("calibrate", "--base", coefficients, "-o", out, *LLAMA, "--force", "--accept",
             "--benchmarks")  # fmt: skip
    found = run(*words, *benchmarks(3.0, 0.3, 3.0))
    assert found.exit_code == 0, found.output
    assert re.search(r"^TTFT .* left as it was *$", found.stdout, re.MULTILINE)
    row = re.search(r"^TPOT +3 +[\d.]+ % +([\d.]+) % +better", found.stdout, re.MULTILINE)
    assert float(row[1]) < 8
    fitted = json.loads(out.read_text())["calibration"]["figures"]
    assert {row["figure"] for row in fitted} == {"tpot_mean_s"}

"""Plans for loads that ask for no output."""

from __future__ import annotations

import json

import pytest
from typed import alone
from typer.testing import CliRunner

from pinn.cli import plan as plan_command

app = alone(plan_command)

GRID = """
gpus_per_machine: 8
grid: {tensor_parallel_size: [1, 2], max_num_batched_tokens: [2048], max_num_seqs: [64]}
"""


def planned(folder, *arguments):
    (folder / "grid.yaml").write_text(GRID)
    common = ["--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", "--workers", "1"]
    common += ["--time-budget", "inf"]
    asked = ["--input-len", "512", "--output-len", "0", "--rate", "150", "--duration", "20"]
    grid = ["--candidates", str(folder / "grid.yaml")]
    return CliRunner().invoke(app, [*common, *asked, *grid, *arguments])


@pytest.mark.parametrize("slo", ["p99 ttft<=500ms", "e2e<=500ms for 99 %"])
def test_a_fleet_is_found(tmp_path, slo):
    arguments = ["--slo", slo, "--price", "H100-SXM=2", "--out", str(tmp_path / "out")]
    found = planned(tmp_path, *arguments)
    assert found.exit_code == 0, found.output
    assert "nan" not in found.stdout.lower().split()
    assert "TPOT" not in found.stdout
    text = (tmp_path / "out" / "plan.json").read_text()
    assert "NaN" not in text
    best = json.loads(text)["choices"][0]
    assert best["replicas"] > 1
    assert best["fleets"][-1]["point"]["holds"]
    assert best["cost_per_hour"] == 2 * best["gpus"]
    assert best["cost_per_million_output_tokens"] is None
    latency = best["at_rate"]["latency_s"]
    assert latency["ttft"] == latency["e2e"]
    assert set(latency["tpot"].values()) == set(latency["itl"].values()) == {None}
    assert "TPOT" not in (tmp_path / "out" / "plan.html").read_text()


@pytest.mark.parametrize(
    ("slo", "metric"),
    [
        ("p99 tpot<=40ms", "TPOT"),
        ("mean ttft<=1s; p95 itl<=40ms", "ITL"),
        ("ttft<=1s, tpot<=40ms for 95 %", "TPOT"),
    ],
)
def test_limits_on_gaps_are_refused(tmp_path, slo, metric):
    found = planned(tmp_path, "--slo", slo)
    assert f"so there is no {metric}: limit ttft or e2e" in str(found.exception)


def test_there_is_nothing_to_disaggregate(tmp_path):
    found = planned(tmp_path, "--slo", "p99 ttft<=1s", "--disaggregate")
    assert "has no output tokens" in str(found.exception)

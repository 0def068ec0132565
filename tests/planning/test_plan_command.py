"""Tests of ``pinn plan`` by its command line, on loads that take moments."""

from __future__ import annotations

import csv
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from assumed_priors import prior_coefficients
from finished_plans import read_plan
from typed import alone
from typer.testing import CliRunner

from pinn.cli import plan as plan_command
from pinn.cli import simulate as simulate_command
from pinn.cli.main import app as main_app
from pinn.common.files import find_checkpoint
from pinn.common.numbers import number
from pinn.engines.configurations import make_deployment
from pinn.planning.plan_files import FILES
from pinn.planning.report import print_plan
from pinn.surrogate.coefficient_set import CoefficientSet, deployment_facts, write_coefficient_set
from pinn.surrogate.uncertainty.intervals import read_calibration

app = alone(plan_command)
simulate_app = alone(simulate_command)

MODEL = "meta-llama/Llama-3.1-8B"
SLO = "ttft<=300ms, tpot<=20ms for 90 %"
GRID = """
gpus_per_machine: 8
grid: {tensor_parallel_size: [1, 2], max_num_batched_tokens: [2048], max_num_seqs: [8, 64, 128]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a load, a grid, and the files of a plan for them."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "load.yaml").write_text(
        "{prompt_tokens: 256, output_tokens: 16, stages: [{rate: 2, duration: 20}]}"
    )
    (folder / "grid.yaml").write_text(GRID)
    found = planned(
        folder, "--gpu", "H100,L40S", "--rate", "120", "--slo", SLO,
        "--price", "H100=2 L40S=1", "--out", str(folder / "out"),
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    (folder / "printed.txt").write_text(found.stdout)
    return folder


def planned(folder, *arguments):
    common = ["--model", MODEL, "--workload", str(folder / "load.yaml"), "--workers", "1"]
    common += ["--cache", str(folder / "cache"), "--time-budget", "inf"]
    return CliRunner().invoke(app, [*common, "--candidates", str(folder / "grid.yaml"), *arguments])


def test_a_plan_that_misses_the_slo_writes_its_reasons(folder, tmp_path):
    out, manifest = tmp_path / "plan", tmp_path / "servers.yaml"
    given = ["--gpu", "H100,L40S", "--rate", "2", "--slo", "p99 ttft<=1ms"]
    found = planned(folder, *given, "--out", str(out), "--manifest", str(manifest))
    said = str(found.exception)
    assert "the closest of 2 GPUs is H100-SXM: infeasible" in said
    assert "Written" not in str(planned(folder, *given).exception)
    assert f"Written: {out}/plan.json, with the reasons by GPU; no manifest was written" in said
    assert [path.name for path in out.iterdir()] == ["plan.json"]
    assert not manifest.exists()
    plan = json.loads((out / "plan.json").read_text())
    assert plan["choices"] == []
    assert {each["gpu"] for each in plan["by_gpu"]} == {"H100-SXM", "L40S"}
    for each in plan["by_gpu"]:
        assert each["reason"].startswith("infeasible: on an idle server")
        assert f"none on {each['gpu']}: {each['reason']}" in found.stderr


@pytest.fixture(scope="module")
def plan(folder):
    return read_plan(folder / "out" / "plan.json")


def test_choices_are_ranked_by_price_and_hold_the_limits(plan):
    costs = [choice.cost_per_hour for choice in plan.choices]
    assert costs == sorted(costs)
    for choice in plan.choices:
        assert choice.gpus == choice.replicas * choice.gpus_per_replica
        price = plan.ask.prices_per_gpu_hour[choice.gpu]
        assert choice.cost_per_hour == pytest.approx(choice.gpus * price)
        behind = ["random", "least-requests"] if choice.replicas > 1 else ["least_loaded"]
        assert [fleet.routing for fleet in choice.fleets] == behind
        assert choice.fleets[-1].point.holds
        assert choice.highest_rate.per_s > 0
        assert len(choice.highest_rate.seeds_per_s) == 5
        assert sum(choice.step_time.values()) == pytest.approx(1, abs=1e-5)
        assert [p.holds for p in choice.ladder][-2:] == [True, False]


def test_the_interval_holds_the_rate_and_decides_what_is_safe(plan):
    law = read_calibration(find_checkpoint()).error_law("tpot")
    within = np.mean([error <= 1 for error in law.errors])
    assert within >= 0.9  # a tenth of the errors is outside the interval
    for choice in plan.choices:
        low, high = choice.fleet_rate.interval_per_s
        assert low <= choice.fleet_rate.per_s * 1.01
        assert high >= choice.fleet_rate.per_s * 0.99
        assert choice.chance >= within if choice.safe else choice.chance <= within
        assert choice.safe == (low >= plan.ask.rate_per_s)  # the rate of all replicas together


def test_a_row_says_what_its_fleet_holds(plan, folder):
    printed = (folder / "printed.txt").read_text()
    best = [plan.choices[each.rank - 1] for each in plan.by_gpu]
    for choice in plan.choices:
        one, together = choice.highest_rate, choice.fleet_rate
        assert together.per_s >= plan.ask.rate_per_s
        assert together.per_s > (choice.replicas - 0.3) * one.per_s
        used = plan.ask.rate_per_s / together.per_s
        assert choice.utilization == pytest.approx(used, rel=1e-5)
        assert used <= 1
        if choice in best:
            rate, low, high = (
                f"{x:#.3g}".rstrip(".") for x in (together.per_s, *together.interval_per_s)
            )
            assert re.search(rf" {rate} .*\n.* {low}-{high} ", printed)
    first = plan.choices[0]
    said = " ".join(printed.split())
    assert first.replicas == 1 or f"{first.replicas} replicas with --router least-requests" in said
    assert first.beside_one_by_one in said


def test_every_candidate_is_accounted_for(plan):
    assert plan.candidates == len(plan.choices) + len(plan.left_out)
    assert all(each.reason for each in plan.left_out)


def test_the_frontier_falls(plan):
    best = [point for point in plan.frontier if point.best]
    speeds = [point.user_tokens_per_s for point in best]
    throughput = [point.output_tokens_per_gpu_s for point in best]
    assert speeds == sorted(speeds, reverse=True)
    assert throughput == sorted(throughput)
    for point in plan.frontier:
        assert point.best or any(
            other.user_tokens_per_s >= point.user_tokens_per_s
            and other.output_tokens_per_gpu_s >= point.output_tokens_per_gpu_s
            for other in best
        )


def test_the_simulate_line_gives_the_fleets_figures(plan, folder):
    choice = plan.choices[0]
    words = shlex.split(choice.simulate_command)
    assert words[:2] == ["pinn", "simulate"]
    out = folder / "run.json"
    seen = [([], choice.seen)]  # the metrics of the table
    seen += [
        (["--router", each.routing], each.point) for each in choice.fleets if choice.replicas > 1
    ]
    for routing, point in seen:
        found = CliRunner().invoke(simulate_app, [*words[2:], *routing, "--json", str(out)])
        assert found.exit_code == 0, found.output
        written = json.loads(out.read_text())
        for metric in ("ttft", "itl", "e2e"):
            for name in ("mean", "p99"):
                ms = written[f"{metric}_{name}_ms"]
                assert ms == pytest.approx(1000 * point.latency_s[metric][name], rel=1e-5)


def test_the_table_is_printed(plan, folder, capsys):
    printed = (folder / "printed.txt").read_text()
    assert plan.choices[0].serve_command in printed.replace(" \\\n   ", "")
    assert max(map(len, printed.splitlines())) <= 80
    # Long names of folders would take more lines; each limit that was asked is a column.
    # A first run also has a line on compiling.
    ask = replace(plan.ask, workload="load.yaml")
    print_plan(replace(plan, ask=ask, spent_s={}), Path("out"))
    assert len(capsys.readouterr().out.splitlines()) <= 33
    assert "best on each GPU" in printed
    assert "\nNo serving data of L40S: " in printed
    assert (
        "\nRequests may have up to 1,024 tokens, from the load's longest request (272)" in printed
    )
    assert sorted(path.name for path in (folder / "out").iterdir()) == sorted(FILES)
    assert all(name in printed for name in FILES)
    for each in plan.by_gpu:
        choice = plan.choices[each.rank - 1]
        row, below = re.findall(rf"^ +(\d+ .* x {choice.gpu}.*)\n(.*)", printed, re.MULTILINE)[0]
        cost = f"{choice.cost_per_hour:.2f}"
        assert row.split()[:3] == [str(each.rank), str(choice.gpus), cost]
        assert number(choice.cost_per_million_prompt_tokens) in row.split()
        assert number(choice.cost_per_million_output_tokens) in below.split()
    manifest = (folder / "out" / "manifest.yaml").read_text()
    assert shlex.split(plan.choices[0].serve_command)[2] in manifest
    page = (folder / "out" / "plan.html").read_text(encoding="utf-8")
    assert plan.choices[0].label in page
    with (folder / "out" / "plan.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["gpu"] for row in rows] == [choice.gpu for choice in plan.choices]
    assert [row["label"] for row in rows] == [choice.label for choice in plan.choices]
    assert {row["model"] for row in rows} == {MODEL}
    assert float(rows[0]["cost_per_hour"]) == plan.choices[0].cost_per_hour


def test_without_a_rate_or_prices_gpus_are_compared(folder, caplog):
    caplog.set_level("INFO", "pinn")
    found = planned(folder, "--gpu", "H100", "--slo", "p95 itl<=30ms", "--out", str(folder / "b"))
    assert found.exit_code == 0, found.output
    plan = read_plan(folder / "b" / "plan.json")
    kinds = len({each.label.partition(",")[0] for each in (*plan.choices, *plan.left_out)})
    said = f"screened {kinds} of {kinds} hardware configurations, sized {len(plan.choices)} fleets"
    assert said in caplog.text
    each = [choice.highest_rate.per_s / choice.gpus for choice in plan.choices]
    assert each == sorted(each, reverse=True)
    assert all(choice.replicas == 1 and choice.chance is None for choice in plan.choices)
    assert all(choice.cost_per_hour is None for choice in plan.choices)


@pytest.mark.parametrize("has_posterior", [False, True])
def test_a_calibrated_server_is_marked_and_has_the_interval_of_its_calibration(
    folder, has_posterior
):
    rows = folder / "rows.csv"
    rows.write_text("gpu,tensor_parallel_size,max_num_seqs\nH100,1,64\nH100,2,64\n")
    target = make_deployment({"model": MODEL, "gpu": "H100", "tensor_parallel_size": 1})
    prior = prior_coefficients(1)
    file = folder / f"server{has_posterior:d}.json"
    fitted = {"loads": {"prompt_tokens": [1024, 2048], "output_tokens": [8, 32]}}
    calibrated = CoefficientSet(deployment_facts(target), prior, calibration=fitted)
    if has_posterior:
        values = np.concatenate([prior.beta[0], prior.alpha[0]])
        calibrated = replace(calibrated, covariance=0.01 * np.diag(values**2))
    write_coefficient_set(calibrated, file)
    found = planned(
        folder, "--configs", str(rows), "--coefficients", str(file), "--rate", "20", "--slo", SLO,
        "--out", str(folder / f"c{has_posterior:d}"),
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    sources = {}
    plans = read_plan(folder / f"c{has_posterior:d}" / "plan.json")
    for choice in plans.choices:
        sources.setdefault(choice.flags["tensor_parallel_size"], set()).add(choice.coefficients)
        has_interval = has_posterior or choice.coefficients == "network"
        assert (choice.chance is not None) == has_interval
        assert (choice.fleet_rate.interval_per_s is not None) == has_interval
    assert sources == {1: {str(file)}, 2: {"network"}}
    assert file.name in found.stdout
    shown = " ".join(found.stdout.split())
    first = plans.choices[0].coefficients == str(file)
    missing = f"without an interval and P(SLO met), which {file} does not have"
    assert (missing.replace(" ", "") in shown.replace(" ", "")) == (first and not has_posterior)
    line = "vllm 0.33.0 (assumed; set it with --engine-version), calibrated to measurements"
    for choice in plans.choices:
        assert (line in choice.assumptions) == (choice.coefficients == str(file))
    warned = "The load has a mean prompt length of 256 tokens, but the calibration was fitted to"
    for choice in plans.choices:
        is_warned = choice.assumptions[-1].startswith(warned)
        assert is_warned == (choice.coefficients == str(file))


def test_engines_are_candidates_where_asked_for(folder):
    asked = ["--gpu", "H100", "--slo", SLO, "--max-gpus", "1", "--engine", "vllm,sglang"]
    found = planned(folder, *asked, "--out", str(folder / "d"))
    assert found.exit_code == 0, found.output
    choices = {choice.engine: choice for choice in read_plan(folder / "d" / "plan.json").choices}
    assert set(choices) == {"vllm", "sglang"}
    assert "sglang" in choices["sglang"].label
    assert choices["sglang"].serve_command.startswith("python -m sglang.launch_server")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--gpu", "H100", "--slo", "ttft<=1ms for 95 %"],
            r"on an idle server of H100-SXM .* \(limit 1 ms\)",
        ),
        (
            ["--gpu", "H100", "--slo", SLO, "--rate", "500", "--max-gpus", "2"],
            r"closest is H100-SXM TP 1 .*: needs more GPUs than --max-gpus 2: "
            r"\d replicas behind --router least-requests miss the SLO at 500 requests/s; one",
        ),
        (["--gpu", "H1000", "--slo", SLO], "the GPU 'H1000' is unknown"),
        (["--gpu", "H100", "--slo", SLO, "--rate", "-1"], "--rate must be positive"),
        (["--gpu", "H100", "--slo", SLO, "--rate", "1e6"], r"1e\+06 requests/s over 20 s"),
        (["--gpu", "H100", "--slo", SLO, "--input-len", "9"], "--input-len both describe the load"),
        (["--gpu", "H100", "--slo", SLO, "--time-budget", "0"], "--time-budget must be positive"),
        (["--gpu", "H100", "--slo", SLO, "--purchase-price", "H100=9"], "needs --purchase-years"),
        (["--gpu", "H100", "--slo", SLO, "--price", "H100"], "cannot read 'H100'"),
        (
            ["--gpu", "L4", "--slo", SLO, "--max-model-len", "300"],
            r"on an idle server of L4 .* \(limit 20 ms\)",
        ),
        (["--gpu", "H100", "--slo", SLO, "--engine", "vllm,tgi"], "--engine 'tgi' is unknown"),
        (["--slo", SLO], "--model and --gpu are required"),
    ],
)
def test_bad_input_is_refused_with_the_number_that_breaks_it(folder, arguments, says):
    assert re.search(says, str(planned(folder, *arguments).exception))


def test_a_model_that_fits_nowhere_is_told_what_would_do(folder):
    arguments = ["--model", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "L40S", "--slo", SLO]
    error = str(planned(folder, *arguments).exception)
    assert "meta-llama/Llama-3.3-70B-Instruct does not fit: its weights take" in error
    assert "these would fit: L40S TP 8" in error


def test_a_load_without_end_is_refused(folder):
    load = folder / "endless.yaml"
    load.write_text("{prompt_tokens: 9, output_tokens: 9, stages: [{rate: 2, duration: .inf}]}")
    error = planned(folder, "--workload", str(load), "--gpu", "H100", "--slo", SLO).exception
    assert "duration of a load stage must be above 0 and at most 3.2e+08 s, got inf s" in str(error)


def test_replicas_are_the_least_number_and_are_paid_for(folder):
    """One H100 serves 30 requests/s: the second replica is asked."""
    question = ["--gpu", "H100", "--rate", "30", "--slo", SLO, "--price", "H100=2"]
    rows = {}
    for least in ("1", "2"):
        out = folder / f"least{least}"
        found = planned(folder, *question, "--replicas", least, "--out", str(out))
        assert found.exit_code == 0, found.output
        rows[least] = read_plan(out / "plan.json").choices
        said = "on at least 2 replicas" in " ".join(found.stdout.split())
        assert said == (least == "2")
    one, two = rows["1"][0], rows["2"][0]
    assert (one.replicas, one.cost_per_hour) == (1, 2.0)
    assert (two.replicas, two.cost_per_hour) == (2, 4.0)
    assert two.highest_rate == one.highest_rate  # of one replica, in both
    assert two.fleet_rate.per_s > 1.7 * one.fleet_rate.per_s
    assert "--replicas 2" in two.simulate_command
    assert "--replicas" not in one.simulate_command


def test_a_requested_probability_takes_more_replicas(folder):
    """Three H100 meet the SLO as predicted, and miss it if steps take a little longer."""
    question = ["--gpu", "H100", "--rate", "120", "--slo", SLO, "--tensor-parallel-size", "1"]
    rows = {}
    for least in ("0.05", "0.95"):
        out = folder / f"probability{least}"
        found = planned(folder, *question, "--min-probability", least, "--out", str(out))
        assert found.exit_code == 0, found.output
        rows[least] = read_plan(out / "plan.json").choices[0]
        said = " ".join(found.stdout.split())
        assert f"with P(SLO met) of at least {100 * float(least):g} %, 256 prompt" in said
        assert "Requested P(SLO met)" not in (out / "manifest.yaml").read_text()
    assert rows["0.05"].chance < 0.95 <= rows["0.95"].chance
    assert rows["0.95"].replicas > rows["0.05"].replicas


def test_a_plan_with_headroom_meets_the_slo_at_that_rate(folder):
    out = folder / "headroom"
    question = ["--gpu", "H100", "--rate", "60", "--slo", SLO, "--headroom", "0.5"]
    found = planned(folder, *question, "--out", str(out))
    assert found.exit_code == 0, found.output
    for choice in read_plan(out / "plan.json").choices:
        assert choice.fleet_rate.per_s >= 90
        assert choice.with_headroom.rate_per_s == 90
        assert choice.with_headroom.holds
        assert choice.seen.rate_per_s == 60
    printed = " ".join(found.stdout.split())
    assert "60 requests/s (with headroom: 90)" in printed
    assert "With headroom, at 90 requests/s: " in printed


def test_a_plan_with_a_spare_replica_meets_the_slo_without_it(folder):
    """Without a spare, a plan says what the loss of a replica does."""
    question = ["--gpu", "H100", "--rate", "250", "--slo", SLO, "--tensor-parallel-size", "1"]
    firsts = {}
    for spares in ("0", "1"):
        out = folder / f"spares{spares}"
        found = planned(folder, *question, "--spare-replicas", spares, "--out", str(out))
        assert found.exit_code == 0, found.output
        plan = read_plan(out / "plan.json")
        firsts[spares] = first = plan.choices[0]
        printed = " ".join(found.stdout.split())
        assert ("with 1 spare replica" in printed) == (spares == "1")
        lost = printed.partition("With one replica lost, at 250 requests/s: ")[2].partition(". ")[0]
        assert first.with_one_lost.limits[0].value in lost
        assert ("MISSED" in lost) == ("--spare-replicas" in lost) == (spares == "0")
    assert firsts["1"].replicas == firsts["0"].replicas + 1
    assert firsts["1"].with_one_lost == firsts["0"].seen
    found = planned(folder, "--gpu", "H100", "--slo", SLO, "--spare-replicas", "1")
    assert "--spare-replicas needs --rate" in str(found.exception)


def test_flags_that_a_plan_cannot_use_are_not_in_its_help():
    shown = " ".join(CliRunner().invoke(main_app, ["plan", "--help"]).stdout.split())
    for name in ("--concurrency", "--disaggregation-mode"):
        assert not re.search(rf"{name} <", shown)
    assert "default: least-requests" in shown
    assert "Minimum number of replicas" in shown

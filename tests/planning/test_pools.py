"""``pinn plan --disaggregate``: disaggregated P/D compared with servers that do both."""

from __future__ import annotations

import csv
import json
import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from finished_plans import plan as made_up
from finished_plans import read_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from typed import alone
from typer.testing import CliRunner

from pinn.cli import plan as plan_command
from pinn.cli import simulate as simulate_command
from pinn.common.files import find_checkpoint
from pinn.engines.configurations import make_deployment, parse_pool
from pinn.engines.engine_spec import EngineSpec
from pinn.planning import fleet
from pinn.planning.candidates import SearchSpace, read_candidates_file
from pinn.planning.plan import GpuOutcome
from pinn.planning.pools import find_pools
from pinn.planning.report import print_plan
from pinn.planning.screening import least_latencies_s
from pinn.planning.trials import ErrorScenario, latencies_s
from pinn.simulator.pools_error import POOLS_BIAS
from pinn.simulator.workloads.load import load_workload
from pinn.simulator.workloads.rates import at_rate
from pinn.surrogate.encoder_time import HALF_WIDTH
from pinn.surrogate.uncertainty.quantiles import ErrorLaw

app = alone(plan_command)
simulate_app = alone(simulate_command)

MODEL = "meta-llama/Llama-3.1-8B"
SLO = "ttft<=300ms, tpot<=20ms for 90 %"
GRID = """
gpus_per_machine: 8
grid: {tensor_parallel_size: [1], max_num_batched_tokens: [2048], max_num_seqs: [128]}
"""
POOLS = "pools: {prefill: [1x tp=1, 2x tp=1], decode: [1x tp=1 max-num-seqs=64, 2x tp=1]}"
ASKED = ("--gpu", "H100", "--rate", "150", "--slo", SLO)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pools")
    (folder / "load.yaml").write_text(
        "{prompt_tokens: 512, output_tokens: 16, stages: [{rate: 2, duration: 8}]}"
    )
    (folder / "grid.yaml").write_text(GRID + POOLS)
    (folder / "none.yaml").write_text(GRID)
    return folder


def planned(folder, *arguments, grid="grid.yaml"):
    common = ["--model", MODEL, "--workload", str(folder / "load.yaml"), "--workers", "1"]
    common += ["--time-budget", "inf"]
    return CliRunner().invoke(app, [*common, "--candidates", str(folder / grid), *arguments])


@pytest.fixture(scope="module")
def plan(folder):
    found = planned(folder, *ASKED, "--disaggregate", "--out", str(folder / "out"))
    assert found.exit_code == 0, found.output
    (folder / "printed.txt").write_text(found.stdout)
    return read_plan(folder / "out" / "plan.json")


@pytest.fixture(scope="module")
def apart(plan):
    return next(choice for choice in plan.choices if choice.pools)


@pytest.fixture(scope="module")
def candidates(folder):
    space = SearchSpace({"model": MODEL}, ["H100"], [None], EngineSpec(), None)
    workload = load_workload(folder / "load.yaml")
    found, _ = find_pools(space, workload, find_checkpoint(None), folder / "grid.yaml")
    return found


def test_pools_are_judged_beside_servers_that_do_both(plan, apart):
    assert any(choice.pools is None for choice in plan.choices)
    gpus = [choice.gpus for choice in plan.choices]
    assert gpus == sorted(gpus)
    (prefills, _), (decodes, _) = (parse_pool(text, "pool") for text in apart.pools)
    assert apart.gpus == prefills + decodes == apart.replicas * apart.gpus_per_replica
    assert all(each.point.holds for each in apart.fleets)
    low, high = apart.fleet_rate.interval_per_s
    assert low <= apart.fleet_rate.per_s <= high
    assert apart.pool_sizes == ((prefills, 1), (decodes, 1))
    assert sum(apart.step_time.values()) == pytest.approx(1)
    assert plan.candidates == len(plan.choices) + len(plan.left_out)


def test_servers_that_do_both_are_planned_as_without_pools(plan, folder):
    out = folder / "without"
    found = planned(folder, *ASKED, "--out", str(out), grid="none.yaml")
    assert found.exit_code == 0, found.output
    assert list(read_plan(out / "plan.json").choices) == [c for c in plan.choices if not c.pools]
    assert (out / "plan.csv").read_text().splitlines()[0].endswith(",simulate_command")


def test_the_simulate_line_gives_the_fleets_figures(apart, folder):
    words, out = shlex.split(apart.simulate_command), folder / "run.json"
    assert words[words.index("--prefill") + 1] == apart.pools[0]
    for each in apart.fleets:
        routing = ["--router", each.routing] if apart.replicas > 1 else []
        found = CliRunner().invoke(simulate_app, [*words[2:], *routing, "--json", str(out)])
        assert found.exit_code == 0, found.output
        written = json.loads(out.read_text())
        for metric in ("ttft", "tpot", "e2e"):
            p99_s = each.point.latency_s[metric]["p99"]
            assert written[f"{metric}_p99_ms"] == pytest.approx(1000 * p99_s, rel=1e-5)


def test_each_pool_has_its_own_line(apart):
    lines = apart.serve_command.splitlines()
    assert [line.split(", ")[-1] for line in lines] == ["prefill", "decode"]
    for line, text in zip(lines, apart.pools, strict=True):
        words = shlex.split(line, comments=True)
        assert words[:3] == ["vllm", "serve", MODEL]
        transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
        assert transfer["kv_connector"] == "NixlConnector"
        _, flags = parse_pool(text, "pool")
        assert ("--max-num-seqs" in words) == ("max_num_seqs" in flags)


def test_table_page_and_csv_say_what_is_apart(apart, plan, folder):
    printed = (folder / "printed.txt").read_text()
    page = (folder / "out" / "plan.html").read_text(encoding="utf-8")
    assert re.search(r"\dx tp=1 prefill \+ \dx tp=1.* decode bf16", apart.label)
    if plan.choices[0] is apart:
        (prefills, _), (decodes, _) = apart.pool_sizes
        assert f"{prefills} prefill server" in page
        assert f"{decodes} decode server" in page
    assert apart.label in page
    # A cell of the table is folded: the row's metrics are between its lines.
    assert re.search(r"(?: |.*\n *)".join(map(re.escape, apart.label.split())), printed)
    for text in (page, " ".join(printed.split())):
        assert "a bias of +8 % for TPOT (too long) and -62 % for TTFT (too short)" in text
    with (folder / "out" / "plan.csv").open() as file:
        rows = list(csv.DictReader(file))
    got = [(row["prefill"], row["decode"]) for row in rows]
    assert got == [choice.pools or ("", "") for choice in plan.choices]
    manifest = (folder / "out" / "manifest.yaml").read_text()
    assert ("Assumed KV transfers between the pools: 50 GB/s per GPU." in printed) == (
        plan.choices[0].pools is not None
    )
    assert "Assumed KV transfers between the pools: 50 GB/s per GPU." in apart.assumptions
    if plan.choices[0].pools is not None:
        assert "toy_proxy_server.py of vLLM's repository." in manifest
        assert "-62 % for TTFT (too short)" in manifest


def test_a_terminal_shows_the_cheapest_row_of_both_serving_modes(capsys):
    """All cheap rows are disaggregated; the ordinary row comes last."""
    made = made_up()
    ordinary = made.choices[0]
    several = [
        replace(ordinary, pools=("2x tp=1", "1x tp=2"), weights_gib=60.0 + i) for i in range(4)
    ]
    shown = replace(made, choices=[*several, ordinary], by_gpu=[GpuOutcome("H200-SXM", 1)])
    print_plan(shown, None)
    printed = capsys.readouterr().out.partition("Recommended")[0]
    assert re.findall(r"^ +(\d+) +12 38\.40 3 x ", printed, re.MULTILINE) == ["1", "2", "3", "5"]


def test_the_stated_bias_is_that_of_the_notes():
    notes = Path(__file__).parents[2] / "docs" / "disaggregation_notes.md"
    rows = re.search(r"\| all \| all \| all \| all \| (\d+) \|(.*)\|(.*)\|", notes.read_text())
    tpot, ttft = (float(re.search(r"\(([-+.\d]+)\)", cell)[1]) for cell in rows.groups()[1:])
    assert f"{rows[1]} measured deployments" in POOLS_BIAS
    assert f"{tpot:+.0f} % for TPOT" in POOLS_BIAS
    assert f"{ttft:+.0f} % for TTFT" in POOLS_BIAS


def test_a_multiple_of_a_pair_is_its_replicas(candidates):
    counts = [(each.prefill_servers, each.decode_servers) for each in candidates]
    assert counts == [(1, 1), (1, 2), (2, 1)]
    assert [each.gpus for each in candidates] == [2, 3, 3]
    assert candidates[2].pool_texts(3) == ("6x tp=1", "3x tp=1 max_num_seqs=64")


@settings(max_examples=10, deadline=None)
@given(st.integers(16, 980), st.integers(2, 40))
def test_the_floor_is_below_a_lone_request(candidates, folder, prompt, output):
    each = candidates[0]
    whole = load_workload(folder / "load.yaml")
    lone = replace(
        at_rate(whole, 1e-3),
        prompt_tokens=np.full(len(whole), prompt),
        output_tokens=np.full(len(whole), output),
    )
    floor = least_latencies_s(lone, each.latency, each.prompt_latency)
    run = each.serve(lone, EngineSpec(), lambda x: x, None)
    for metric, seconds in latencies_s(run).items():
        assert (seconds >= floor[metric] * (1 - 1e-9)).all()


def test_both_pools_are_as_far_off_as_either_may_be(monkeypatch):
    class Crossing:
        level, law = 0.9, ErrorLaw((0.0,))

        def half_width(self, metric, _, known):
            return {"tpot": (0.3, 0.1), "ttft": (0.2, 0.4)}[metric][known]

        def error_law(self, _):
            return self.law

    one, other = (make_deployment({"model": MODEL, "gpu": gpu}) for gpu in ("H100", "A100"))
    monkeypatch.setattr(fleet, "read_calibration", lambda _: Crossing())
    monkeypatch.setattr(fleet, "gpu_is_known", lambda _, deployment: deployment is one)
    interval = partial(fleet.prediction_interval, find_checkpoint(None))
    assert interval(one).bad == ErrorScenario(0.1, 0.4, HALF_WIDTH)
    assert (
        interval(one, other).bad == interval(other, one).bad == ErrorScenario(0.3, 0.4, HALF_WIDTH)
    )
    assert interval(one, other).law is Crossing.law


def test_a_checkpoint_without_intervals_gives_none(tmp_path):
    deployment = make_deployment({"model": MODEL, "gpu": "H100"})
    assert fleet.prediction_interval(tmp_path / "pinn.safetensors", deployment, deployment) is None


def test_the_shipped_pools_are_deployments():
    pools = read_candidates_file(None).pools
    for text in {*pools.prefill, *pools.decode}:
        _, flags = parse_pool(text, "pools")
        assert make_deployment({"model": MODEL, "gpu": "H100", **flags})


@pytest.mark.parametrize(
    ("more", "grid", "says"),
    [
        (["--engine", "vllm,sglang"], POOLS, "is for vllm only"),
        (["--configs", "rows.csv"], POOLS, "--configs and --disaggregate both set the candidates"),
        (["--kv-transfer-bytes-per-s", "1e9"], POOLS, "which assumes the GPUs' network ports"),
        ([], "", "has no pools, which --disaggregate combines"),
        ([], "pools: {prefill: 1x tp=1, decode: [1x tp=1]}", "lists of workers"),
        ([], "pools: {prefill: [1x gpu=H200], decode: [1x tp=1]}", "have the same gpu"),
        ([], "pools: {prefill: [0x tp=1], decode: [1x tp=1]}", "has no servers"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(tmp_path, folder, more, grid, says):
    (tmp_path / "grid.yaml").write_text(GRID + grid)
    (tmp_path / "rows.csv").write_text("gpu\nH100\n")
    (tmp_path / "load.yaml").write_text((folder / "load.yaml").read_text())
    more = [str(tmp_path / word) if word == "rows.csv" else word for word in more]
    found = planned(tmp_path, *ASKED, "--disaggregate", *more)
    assert says in str(found.exception)

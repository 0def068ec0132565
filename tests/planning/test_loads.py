"""A plan depends on the load, not on how it is given or on how short its file is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from finished_plans import read_plan
from typed import alone
from typer.testing import CliRunner

from pinn.cli import plan as plan_command
from pinn.common.files import find_checkpoint
from pinn.engines.configurations import make_deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.planning.bottleneck import KV_MEMORY, MOST_REQUESTS, bottleneck, waited_for
from pinn.planning.candidate import Candidate
from pinn.planning.problem import LEAST_REQUESTS, MOST_REPEATED, replica_load
from pinn.planning.rate_search import highest_rate
from pinn.planning.trials import Trials
from pinn.simulator.linear_latency import latency_from_checkpoint
from pinn.simulator.simulate import simulate
from pinn.simulator.slo import parse_slo
from pinn.simulator.workloads.arrivals import Gaps, Stage
from pinn.simulator.workloads.rates import at_rate, mean_rate_per_s
from pinn.simulator.workloads.workload import open_loop

app = alone(plan_command)

GRID = """
gpus_per_machine: 8
grid: {tensor_parallel_size: [1], max_num_batched_tokens: [2048], max_num_seqs: [256]}
"""


def planned(folder, slo, *words):
    (folder / "grid.yaml").write_text(GRID)
    asked = ["--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100", "--workers", "1", "--slo", slo]
    asked += ["--time-budget", "inf"]
    made = [*asked, "--candidates", str(folder / "grid.yaml"), "--out", str(folder / "out"), *words]
    found = CliRunner().invoke(app, made)
    assert found.exit_code == 0, found.exception
    return read_plan(folder / "out" / "plan.json"), found.stdout


@pytest.mark.parametrize(("slow", "fast", "prompt"), [(2, 90, 256), (5, 130, 128)])
def test_the_fleet_is_the_same_whichever_way_the_rate_is_said(tmp_path, slow, fast, prompt):
    """A file of few requests, sent faster, must not fit on one GPU whatever the rate."""
    fleets = []
    for rate in (slow, fast):
        load = tmp_path / "load.yaml"
        stages = f"stages: [{{rate: {rate}, duration: 8}}]"
        load.write_text(f"{{prompt_tokens: {prompt}, output_tokens: 16, {stages}}}")
        words = ["--workload", str(load), "--rate", str(fast)]
        plan, _ = planned(tmp_path, "p99 ttft<=400ms, mean tpot<=20ms", *words)
        assert plan.ask.requests == 8 * fast
        fleets.append([(c.label, c.replicas, c.fleet_rate, c.chance) for c in plan.choices])
    flags = [
        "--input-len",
        str(prompt),
        "--output-len",
        "16",
        "--rate",
        str(fast),
        "--duration",
        "8",
    ]
    plan, _ = planned(tmp_path, "p99 ttft<=400ms, mean tpot<=20ms", *flags)
    fleets.append([(c.label, c.replicas) for c in plan.choices])
    assert fleets[0] == fleets[1]
    assert [row[:2] for row in fleets[0]] == fleets[2]


def test_a_load_of_few_answers_has_no_verdict(tmp_path):
    words = ["--input-len", "256", "--output-len", "64", "--rate", "100", "--duration", "2"]
    plan, printed = planned(tmp_path, "p99 ttft<=2s", *words)
    first = plan.choices[0]
    assert (first.chance, first.safe) == (None, None)
    assert (
        "lasts 2.00 s, less than 10 times its mean E2E latency, so no probability is given"
        in " ".join(printed.split())
    )
    assert "safe" not in printed
    # A burst does not show that fewer replicas suffice than dividing the rate suggests.
    assert first.replicas >= plan.ask.rate_per_s / first.highest_rate.per_s
    assert "--input-len 256 --output-len 64 --duration 2 --rate 100" in first.simulate_command


@pytest.mark.parametrize("keep_all", [False, True])
def test_a_server_is_sent_enough_requests_of_a_short_load(keep_all):
    """A search then takes no more runs than on a long load, whose percentiles are smooth."""
    short = open_loop([Stage(4, 100)], 100, 10)
    load = replica_load(short, 0, keep_all=keep_all)
    own = mean_rate_per_s(short)
    for rate, count in (
        (own / 3, LEAST_REQUESTS),
        (own, LEAST_REQUESTS),
        (1e3 * own, MOST_REPEATED),
    ):
        sent = load.at(rate)
        assert len(sent) == count
        assert mean_rate_per_s(sent) == pytest.approx(rate)
    assert len(load.at(10 * own)) == 4000  # it lasts as long as the load


def test_a_long_load_is_thinned_and_kept_whole_without_a_rate():
    long = open_loop([Stage(40, 100)], 100, 10)
    assert len(replica_load(long, 0).at(0.75 * mean_rate_per_s(long))) == 3000
    assert len(replica_load(long, 0, keep_all=True).at(1.0)) == len(long)
    assert len(replica_load(long, 0, most=1000).at(1.0)) == 1000


def test_kv_memory_limits_a_fleet_as_it_does_each_of_its_replicas():
    """Blocks of a step are those of the replica that ran it, not of all replicas."""
    flags = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100", "max_model_len": 1024}
    deployment = make_deployment(flags)
    latency = latency_from_checkpoint(deployment, find_checkpoint())
    load = open_loop([Stage(1, 600)], 512, 64, gaps=Gaps("constant"))
    engine = EngineSpec(num_gpu_blocks_override=400, data_parallel_routing="round_robin")
    for replicas in (1, 3):
        together = replace(engine, replicas=replicas)
        run = simulate(deployment, at_rate(load, 30.0 * replicas), latency, together)
        each = run.steps["used_blocks"].max() / run.kv_blocks * run.groups / run.replicas
        assert 0.9 < each <= 1
        assert KV_MEMORY in waited_for(run, latency)
        lone = replace(run, kv_blocks=100 * run.kv_blocks)
        assert KV_MEMORY not in waited_for(lone, latency)
    assert np.unique(run.steps["group"]).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("flags", "blocks", "lengths", "expected"),
    [
        ({"max_num_seqs": 4}, None, (512, 64), MOST_REQUESTS),
        ({}, 400, (512, 64), KV_MEMORY),
        # Prompts keep the GPU busy: an overloaded server fills its batches all the same.
        ({"max_num_seqs": 32}, None, (960, 16), "prefill compute"),
    ],
)
def test_a_bottleneck_is_what_has_to_increase_for_a_higher_rate(flags, blocks, lengths, expected):
    row = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100", "max_model_len": 1024, **flags}
    deployment = make_deployment(row)
    latency = latency_from_checkpoint(deployment, find_checkpoint())
    candidate = Candidate(row, latency, EngineSpec(num_gpu_blocks_override=blocks))
    load = replica_load(open_loop([Stage(4, 600)], *lengths), 0)
    trials = Trials(candidate, load, parse_slo("ttft<=1s, tpot<=40ms for 95 %"))
    rate_per_s, _ = highest_rate(trials.excess, 10.0, stride=1.1)
    beyond = trials.run(1.1 * rate_per_s)
    assert waited_for(beyond, latency)
    assert bottleneck(trials, beyond, rate_per_s) == expected

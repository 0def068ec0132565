"""Batches and times equal those of vLLM's own schedulers, recorded once.

The command that records them anew is in record_vllm_schedules.py. Most loads are kept as a digest;
it also says how to see the whole schedule of one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded_schedules import LOADS, WHOLE, digest, paced_case, random_case
from repeated_schedules import check_schedule, schedule_of
from simulator_helpers import deployment

RECORDED = json.loads(Path(__file__).with_name("vllm_schedules.json").read_text())
CASES = [random_case(seed) for seed in range(LOADS)]
RELEASES = [name for name in RECORDED if name != "loads"]


def _target(case, release):
    return deployment(**case["serving"], engine_version=release)


def test_the_loads_are_those_that_were_recorded():
    assert digest(CASES) == RECORDED["loads"], "NumPy draws other loads: record them anew"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("seed", range(WHOLE))
def test_schedule_is_that_of_vllm(seed, release):
    case = CASES[seed]
    check_schedule(case | RECORDED[release]["whole"][seed], _target(case, release))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("first", range(0, LOADS, 50))
def test_digest_is_that_of_vllm(first, release):
    recorded = RECORDED[release]["digests"]
    found = [
        seed
        for seed in range(first, first + 50)
        if digest(schedule_of(CASES[seed], _target(CASES[seed], release))) != recorded[seed]
    ]
    assert not found, (
        f"the schedules of loads {found} are not those of vLLM {release}; compare schedule_of with "
        f"what `record_vllm_schedules.py --case {found[0]} {release}=FOLDER` prints"
    )


@pytest.mark.parametrize("first", range(0, LOADS, 50))
def test_prompts_are_held_back_as_vllm_does(first):
    recorded = RECORDED["0.33.0"]["paced"]
    loads = {seed: paced_case(seed) for seed in range(first, first + 50)}
    found = [
        seed
        for seed, case in loads.items()
        if digest(schedule_of(case, _target(case, "0.33.0"))) != recorded[seed]
    ]
    assert not found
    assert sum(recorded[seed] != RECORDED["0.33.0"]["digests"][seed] for seed in loads) > 15


def test_releases_differ_and_each_load_is_hard_somewhere():
    assert {"0.15.1", "0.33.0"} <= set(RELEASES)
    one, other = (RECORDED[name]["digests"] for name in ("0.15.1", "0.33.0"))
    assert sum(a != b for a, b in zip(one, other, strict=True)) > LOADS / 2
    assert {case["engine"]["async_scheduling"] for case in CASES} == {True, False}
    assert {case["serving"]["pipeline_parallel_size"] for case in CASES} == {1, 2, 3}
    assert sum(case["engine"]["num_gpu_blocks_override"] < 40 for case in CASES) > 50
    assert any(run["timed_out"] for name in RELEASES for run in RECORDED[name]["whole"])

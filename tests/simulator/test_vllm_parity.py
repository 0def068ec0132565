"""Batches and times equal those of vLLM 0.15.1's own scheduler, recorded once.

The command that records them anew is in record_vllm_schedules.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from repeated_schedules import check_schedule
from simulator_helpers import deployment

CASES = json.loads(Path(__file__).with_name("vllm_schedules.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_schedule_is_that_of_vllm(case):
    run = check_schedule(case, deployment(**case["serving"]))
    assert np.flatnonzero(run.requests.status == "timed_out").tolist() == case["timed_out"]


def test_the_recorded_cases_hold_what_is_hard():
    batches = sum(len(case["batches"]) for case in CASES)
    preempting = sum(case["engine"]["num_gpu_blocks_override"] < 40 for case in CASES)
    assert batches > 1000
    assert preempting >= 4
    assert any(case["timed_out"] for case in CASES)
    assert {case["engine"]["async_scheduling"] for case in CASES} == {True, False}
    assert {case["serving"]["pipeline_parallel_size"] for case in CASES} == {1, 2}

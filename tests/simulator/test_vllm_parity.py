"""Batches and times equal those of vLLM 0.15.1's own scheduler, recorded once.

The command that records them anew is in record_vllm_schedules.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from simulator_helpers import Recorder, deployment, load

from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.simulate import simulate
from pinn.specs.batch import Batch

CASES = json.loads(Path(__file__).with_name("vllm_schedules.json").read_text())


class _SimulatedGpu(Recorder):
    """The step time of record_vllm_schedules.py."""

    def step_time(self, batch: Batch) -> float:
        rows = zip(batch.new_tokens, batch.cached_tokens, strict=True)
        self.batches.append(sorted([new, cached] for new, cached in rows))
        return 1e-3 + 1e-5 * sum(batch.new_tokens) + 1e-7 * sum(batch.cached_tokens)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_schedule_is_that_of_vllm(case):
    workload = load(
        case["prompts"],
        case["outputs"],
        case["offsets"],
        shares_with=case["donors"],
        shared_tokens=case["shared"],
        timeout_s=[np.inf if t is None else t for t in case["timeouts"]],
    )
    gpu = _SimulatedGpu()
    target = deployment(**case["serving"])
    run = simulate(target, workload, gpu, EngineSpec(**case["engine"]))
    assert gpu.batches == case["batches"]
    np.testing.assert_allclose(run.steps["start_s"], case["starts"], atol=2e-8)
    np.testing.assert_allclose(run.requests.finish_s, case["finish"], atol=2e-8)
    assert np.flatnonzero(run.requests.status == "timed_out").tolist() == case["timed_out"]


def test_the_recorded_cases_hold_what_is_hard():
    batches = sum(len(case["batches"]) for case in CASES)
    preempting = sum(case["engine"]["num_gpu_blocks_override"] < 40 for case in CASES)
    assert batches > 1000
    assert preempting >= 4
    assert any(case["timed_out"] for case in CASES)
    assert {case["engine"]["async_scheduling"] for case in CASES} == {True, False}
    assert {case["serving"]["pipeline_parallel_size"] for case in CASES} == {1, 2}

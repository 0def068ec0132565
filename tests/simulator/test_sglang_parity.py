"""Batches and times equal those of SGLang 0.5.9's own scheduler, recorded once.

The command that records them anew is in record_sglang_schedules.py.
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

CASES = json.loads(Path(__file__).with_name("sglang_schedules.json").read_text())


class _SimulatedGpu(Recorder):
    """The step time of record_sglang_schedules.py."""

    def step_time(self, batch: Batch) -> float:
        rows = zip(batch.new_tokens, batch.cached_tokens, strict=True)
        self.batches.append(sorted([new, cached] for new, cached in rows))
        return 1e-3 + 1e-5 * sum(batch.new_tokens) + 1e-7 * sum(batch.cached_tokens)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_schedule_is_that_of_sglang(case):
    workload = load(
        case["prompts"],
        case["outputs"],
        case["offsets"],
        shares_with=case["donors"],
        shared_tokens=case["shared"],
    )
    gpu = _SimulatedGpu()
    # Without rounding up: the recorded loop has no CUDA graphs.
    target = deployment(engine="sglang", cudagraph_padding=False, **case["serving"])
    run = simulate(target, workload, gpu, EngineSpec(**case["engine"]))
    assert gpu.batches == case["batches"]
    np.testing.assert_allclose(run.steps["start_s"], case["starts"], atol=2e-8)
    np.testing.assert_allclose(run.requests.finish_s, case["finish"], atol=2e-8)

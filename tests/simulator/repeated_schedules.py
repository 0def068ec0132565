"""A recorded schedule repeated: the same batches at the same times."""

from __future__ import annotations

from typing import Any

import numpy as np
from recorded_schedules import step_seconds
from simulator_helpers import Recorder, load, scheduled

from pinn.engines.deployment import Deployment
from pinn.simulator.run import Run
from pinn.simulator.simulate import simulate
from pinn.specs.batch import Batch


class _SimulatedGpu(Recorder):
    def step_time(self, batch: Batch) -> float:
        rows = zip(batch.new_tokens, batch.cached_tokens, strict=True)
        self.batches.append(sorted([new, cached] for new, cached in rows))
        return step_seconds(sum(batch.new_tokens), sum(batch.cached_tokens))


def repeat(case: dict[str, Any], target: Deployment) -> tuple[list[Any], Run]:
    """Serve a load; its batches as a recording has them, and the run."""
    workload = load(
        case["prompts"],
        case["outputs"],
        case["offsets"],
        shares_with=case["donors"],
        shared_tokens=case["shared"],
        timeout_s=[np.inf if t is None else t for t in case.get("timeouts", ())],
    )
    gpu = _SimulatedGpu()
    target, engine = scheduled(target, case["engine"])
    run = simulate(target, workload, gpu, engine)
    return gpu.batches, run


def schedule_of(case: dict[str, Any], target: Deployment) -> dict[str, Any]:
    """Return a load as the recorder of vLLM's schedules writes it down."""
    batches, run = repeat(case, target)
    return {
        "batches": batches,
        "starts": run.steps["start_s"].tolist(),
        "finish": run.requests.finish_s.tolist(),
        "timed_out": np.flatnonzero(run.requests.status == "timed_out").tolist(),
    }


def check_schedule(case: dict[str, Any], target: Deployment) -> None:
    """Serve a recorded case; its batches, their starts and the requests' ends must be the same."""
    batches, run = repeat(case, target)
    assert batches == case["batches"]
    np.testing.assert_allclose(run.steps["start_s"], case["starts"], atol=2e-8)
    np.testing.assert_allclose(run.requests.finish_s, case["finish"], atol=2e-8)

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.simulator.run import Run
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.workload import Workload
from pinn.specs.batch import Batch
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import AttentionSpec, DenseFfnSpec, LayerGroup, ModelSpec, MoeFfnSpec
from pinn.specs.serving import ServingSpec

GPU = GpuSpec("test", 3e12, 80e9, {"bf16": 1e15}, 132, 50e6, 9.0, 450e9, 64e9, True, "made up")
DENSE = ModelSpec(
    "dense", "llama", 512, 1000, (LayerGroup(4, AttentionSpec(8, 4, 64), DenseFfnSpec(1024)),)
)
MIXTURE = dataclasses.replace(
    DENSE,
    name="mixture",
    layer_groups=(LayerGroup(4, AttentionSpec(8, 4, 64, 128), MoeFfnSpec(16, 2, 256)),),
)

#: Figures by the names that BLIS gives them.
BLIS_KEYS = [
    f"{name}_{figure}_ms"
    for name in ("e2e", "ttft", "itl")
    for figure in ("mean", "p90", "p95", "p99")
] + ["responses_per_sec", "tokens_per_sec", "completed_requests", "preemption_count"]


@dataclass
class Recorder:
    """A latency model with steps of a second that writes down every batch."""

    step_s: float = 1.0
    queueing_s: float = 0.0
    scheduling_s: float = 0.0
    output_s: float = 0.0
    preemption_s: float = 0.0
    completion_s: float = 0.0
    batches: list[list[str]] = field(default_factory=list)

    def step_time(self, batch: Batch) -> float:
        rows = zip(batch.new_tokens, batch.cached_tokens, strict=True)
        self.batches.append([f"{new}@{cached}" for new, cached in rows])
        return self.step_s

    def queueing_time(self, _: float) -> float:
        return self.queueing_s

    def output_token_processing_time(self) -> float:
        return self.output_s

    def scheduling_processing_time(self, _: float) -> float:
        return self.scheduling_s

    def preemption_processing_time(self, _: float) -> float:
        return self.preemption_s

    def post_decode_fixed_overhead(self) -> float:
        return self.completion_s


def deployment(model: ModelSpec = DENSE, **serving) -> Deployment:
    defaults = {
        "max_num_batched_tokens": 64, "max_num_seqs": 8, "block_size": 4, "max_model_len": 64
    }  # fmt: skip
    return Deployment(model, GPU, ServingSpec(**(defaults | serving)), force=True)


def scheduled(target: Deployment, engine: dict) -> tuple[Deployment, EngineSpec]:
    """A deployment and scheduler settings; ``async_scheduling`` among them is the deployment's."""
    rest = dict(engine)
    serving = dataclasses.replace(
        target.serving, async_scheduling=rest.pop("async_scheduling", None)
    )
    return dataclasses.replace(target, serving=serving), EngineSpec(**rest)


def load(prompts, outputs, arrivals=None, **columns) -> Workload:
    n = len(prompts)
    arrivals = np.zeros(n) if arrivals is None else arrivals
    columns = {k: np.asarray(v) if isinstance(v, list) else v for k, v in columns.items()}
    return Workload("test", np.array(prompts), np.array(outputs), np.array(arrivals), **columns)


@dataclass
class Schedule:
    """A run and the batches that it launched."""

    run: Run
    batches: list[list[str]]
    recorder: Recorder


def play(workload: Workload, *, recorder=None, engine=None, **serving) -> Schedule:
    """Run a small workload in plain Python with steps of one second, one batch in flight."""
    recorder = recorder or Recorder()
    settings = {"async_scheduling": False} | (engine or {})
    target, spec = scheduled(deployment(**serving), settings)
    result = simulate(target, workload, recorder, spec)
    return Schedule(result, getattr(recorder, "batches", []), recorder)

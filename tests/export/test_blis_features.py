"""BLIS's basis functions by hand, and from simulated batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from assumed_priors import prior_coefficients

from pinn.engines.configurations import make_deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.export.blis_batches import timed
from pinn.export.blis_features import (
    BASIS,
    BlisSums,
    blis_features,
    blis_step_us,
    recorded_sums,
)
from pinn.export.blis_model import BlisModel, blis_model, hardware_entry
from pinn.physics.batch_sums import sum_batches
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.workload import closed_loop
from pinn.specs.batch import Batch
from pinn.specs.gpu import load_gpu
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.step_features import LAUNCHING
from pinn.units import MICROSECOND

#: Two layers of width 8, 4 heads of 2, 2 KV heads; 1 TFLOP/s = 1e6 FLOP/us, 1 TB/s likewise.
DENSE = BlisModel(
    layers=2, hidden_size=8, heads=4, kv_heads=2, expert_width=0, dense_width=16, shared_width=0,
    experts=0, top_k=1, interleave=0, weight_bytes=2.0, activation_bytes=2.0, tensor_parallel=1,
    data_parallel=1, peak_tflops=1e-6, bandwidth_tb_s=1e-6,
)  # fmt: skip
#: 3 new prompt tokens of 5 and of 4, and two decodes after 10 tokens together.
BATCH = BlisSums(*(np.array([x]) for x in (6.0, 2.0, 10.0, 4.0, 3 * (5 + 1.5) + 3 * (4 + 1.5))))


def by_name(model, sums=BATCH):
    return dict(zip(BASIS, blis_features(model, sums)[0], strict=True))


def test_a_dense_model_by_hand():
    found = by_name(DENSE)
    q = 2 * 8 + 2 * (2 * 2)
    per_token = 2 * 2 * 8 * q + 6 * 8 * 2 * 16
    assert found["prefill_compute"] == pytest.approx(per_token * 6 + 2 * 4 * 4 * 2 * 36.0)
    assert found["decode_compute"] == pytest.approx(per_token * 2 + 2 * 4 * 4 * 2 * 10)
    assert found["weights"] == pytest.approx(2 * 8 * q * 2 + 3 * 8 * 2 * 2 * 16)
    assert found["prefill_kv_write"] == pytest.approx(4 * 2 * 4 * 6)
    assert found["decode_kv"] == pytest.approx(4 * 2 * 4 * 12)
    assert (found["layer"], found["request"], found["step"]) == (2, 4, 1)
    for name in ("all_reduce", "interleaved_moe_layer", "moe_dispatch"):
        assert found[name] == 0


def test_a_mixture_of_experts_on_four_gpus_by_hand():
    moe = dataclasses.replace(
        DENSE, expert_width=16, dense_width=0, shared_width=4, experts=8, top_k=2,
        tensor_parallel=2, data_parallel=2,
    )  # fmt: skip
    found, q = by_name(moe), 24
    per_token = 2 * 2 * 8 * q / 4 + 6 * 8 * 2 * (2 * 16 / 4 + 4 / 4)
    assert found["decode_compute"] == pytest.approx(per_token * 2 + 2 / 2 * 4 * 2 * 10 * 2)
    stored = 8 * 16 / 4 + 4 / 2
    assert found["weights"] == pytest.approx(2 * 8 * q * 2 / 2 + 3 * 8 * 2 * 2 * stored)
    assert found["all_reduce"] == pytest.approx(2 * 8 * 8 * 2 * 2 * 1 / 2 / 2)
    assert found["moe_dispatch"] == pytest.approx(2 * (8 / 2) * (3 / 4) * 2 * 8 * 2)


@pytest.mark.parametrize(
    ("name", "layers", "interleave"),
    [
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", 48, 0),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 24, 1),
        ("deepseek-ai/DeepSeek-V2-Lite", 27, 0),
    ],
)
def test_expert_layers_are_counted_as_they_are(name, layers, interleave):
    deployment = make_deployment({"model": name, "gpu": "H200", "tensor_parallel_size": 8})
    model = blis_model(deployment)
    assert (model.moe_layers, model.interleave) == (layers, interleave)
    assert by_name(model)["interleaved_moe_layer"] == (layers if interleave else 0)


def test_one_byte_weights_multiply_at_the_fp8_rate():
    scout = "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic"
    model = blis_model(make_deployment({"model": scout, "gpu": "H100", "tensor_parallel_size": 4}))
    assert model.weight_bytes == 1
    assert model.peak_tflops == pytest.approx(1979, rel=0.01)


def test_explicit_head_dim_is_ignored():
    deployment = make_deployment({"model": "Qwen/Qwen3-30B-A3B", "gpu": "H100"})
    model = blis_model(deployment)
    assert (model.head_dim, deployment.model.layer_groups[0].attention.head_dim) == (64, 128)


def test_step_times_are_cut_and_at_least_one():
    assert blis_step_us(np.array([[0.2], [7.9]]), np.array([1.0])).tolist() == [1, 7]


def test_batches_are_timed_as_whole_steps(llama_8b_h100):
    prior = prior_coefficients(1)
    beta = np.where(LAUNCHING, 2.0, 1.0) * prior.beta[0]
    latency = LinearLatency(llama_8b_h100, beta, prior.alpha[0])
    batches = [Batch.prefill(1, 16), Batch.decode(3, 700), Batch.prefill(1, 8192)]
    seconds = [latency.step_time(batch) for batch in batches]
    assert timed(latency, batches).step_us * MICROSECOND == pytest.approx(seconds)
    features = deployment_features(llama_8b_h100, sum_batches(batches, None))
    assert (features @ beta > 1.01 * np.array(seconds)).tolist() == [True, False, True]


def test_hardware_is_the_datasheet():
    entry = hardware_entry(load_gpu("H100"))
    assert entry["BwPeakTBs"] == pytest.approx(3.35)
    assert entry["TFlopsPeak"] == pytest.approx(989, rel=0.01)


class Recorder(LinearLatency):
    """Latency model that records the batches that it was asked about."""

    def step_time(self, batch):
        self.__dict__.setdefault("batches", []).append(batch)
        return super().step_time(batch)


def test_sums_of_simulated_steps_are_those_of_their_batches(llama_8b_h100):
    deployment = dataclasses.replace(
        llama_8b_h100,
        serving=dataclasses.replace(
            llama_8b_h100.serving, max_num_batched_tokens=64, async_scheduling=False
        ),
    )
    prior = prior_coefficients(1)
    workload = closed_loop(6, 12, 100, 5)
    recorder = Recorder(deployment, prior.beta[0], prior.alpha[0])
    run = simulate(deployment, workload, recorder, EngineSpec(), compiled=False)
    sums = recorded_sums(run.steps)
    assert len(recorder.batches) == len(run.steps)
    for i, batch in enumerate(recorder.batches):
        rows = list(zip(batch.new_tokens, batch.cached_tokens, batch.is_prefill, strict=True))
        reach = sum(new * (100 + new / 2) for new, _, prefill in rows if prefill)
        assert sums.prompt_reach[i] == pytest.approx(reach)
        assert sums.decode_context[i] == sum(c for _, c, prefill in rows if not prefill)
        assert sums.requests[i] == len(rows)
        assert sums.prefill_tokens[i] == sum(new for new, _, prefill in rows if prefill)
    compiled = simulate(
        deployment, workload, LinearLatency(deployment, prior.beta[0], prior.alpha[0])
    )
    assert compiled.steps["prompt_reach"] == pytest.approx(run.steps["prompt_reach"])

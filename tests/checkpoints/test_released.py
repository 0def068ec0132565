"""The checkpoint in the repository loads, keeps the laws, and carries its own record."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pinn
from pinn.common.files import file_sha256
from pinn.engines.deployment import Deployment
from pinn.evaluation.folds import CHECKPOINT_COLUMN
from pinn.specs.batch import Batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import list_gpus, load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.network import CoefficientNetwork
from pinn.surrogate.surrogate import Surrogate, batch_floor_seconds, batch_seconds

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "pinn.safetensors"
BATCHES = [Batch.decode(n, c) for n in (1, 32, 256) for c in (0, 700, 8000)] + [
    Batch.prefill(1, n, c) for n in (16, 512, 8192) for c in (0, 4000)
]


@pytest.fixture(scope="module")
def released():
    return Surrogate.load(CHECKPOINT)


def test_it_is_small_and_says_where_it_comes_from(released):
    assert CoefficientNetwork.from_weights(released.checkpoint.network).parameter_count <= 100_000
    metadata = released.checkpoint.metadata
    said = {"command", "date", "recipe_sha256", "data_sha256", "code_sha256", "sources"}
    assert said <= metadata.keys()
    assert all(source["table_sha256"] for source in metadata["sources"])
    assert len(released.checkpoint.anchor_names) == len(released.checkpoint.anchors) > 0


def test_the_results_beside_it_are_those_it_carries(released):
    beside = pd.read_csv(CHECKPOINT.with_suffix(".results.csv"))
    carried = pd.DataFrame(released.checkpoint.metadata["held_out_results"])
    assert set(beside.pop(CHECKPOINT_COLUMN)) == {file_sha256(CHECKPOINT)}
    pd.testing.assert_frame_equal(beside, carried[list(beside.columns)], check_exact=False)


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3", "gpt-oss-120b"])
@pytest.mark.parametrize("tp", [1, 8])
def test_its_steps_respect_the_floor_and_grow_with_context_on_every_gpu(released, model, tp):
    spec = load_model(model)
    tp = tp if model != "Qwen3-30B-A3B" else min(tp, 4)
    for name in list_gpus():
        # A T4 has no kernels of mxfp4; laws of times apply all the same.
        flags = ServingSpec(tensor_parallel_size=tp)
        deployment = Deployment(spec, load_gpu(name), flags, force=True)
        times = batch_seconds(released.coefficients([deployment]).beta[0], deployment, BATCHES)
        assert np.isfinite(times).all()
        assert (times >= batch_floor_seconds(deployment, BATCHES) * (1 - 1e-12)).all()
        decodes = times[:9].reshape(3, 3)
        assert (np.diff(decodes, axis=0) >= 0).all()
        assert (np.diff(decodes, axis=1) >= 0).all()


def test_no_gpu_name_matters(released, llama_8b_h100):
    renamed = replace(llama_8b_h100, gpu=replace(llama_8b_h100.gpu, name="X"))
    renamed = replace(renamed, model=replace(renamed.model, name="Y"))
    both = released.coefficients([llama_8b_h100, renamed])
    np.testing.assert_allclose(both.beta[0], both.beta[1], rtol=1e-12)
    np.testing.assert_allclose(both.alpha[0], both.alpha[1], rtol=1e-12)


def test_a_table_has_the_intervals_of_single_predictions():
    batches = ["32 decode @ 700", "1 prefill 512 @ 0 + 16 decode @ 600"]
    rows = [("Llama-3.1-8B", "H100"), ("openai/gpt-oss-120b", "L40S")]
    wanted = [{"model": model, "gpu": gpu} for model, gpu in rows]
    table = pinn.predict_many(wanted, batches, force=True)
    for row, (model, gpu) in enumerate(rows):
        one = pinn.predict(model, gpu, force=True)
        for batch, (low, high) in zip(batches, one.interval(batches), strict=True):
            ends = (table[f"step_time_{end}_us: {batch}"][row] for end in ("low", "high"))
            assert tuple(ends) == pytest.approx((1e6 * low, 1e6 * high), rel=1e-9)
            assert low >= one.floor(batch)

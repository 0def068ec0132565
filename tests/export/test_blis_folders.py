"""Exported folders through BLIS's rules: flags, look-ups, refusals, KV blocks, step time."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blis_engine.config import RefusedError, check, kv_blocks, read_inputs, read_model
from blis_engine.flags import flags_of, parse
from blis_engine.formula import formula

from pinn.coefficients.configuration_files import read_configurations
from pinn.coefficients.configurations import make_deployment, make_deployments
from pinn.export.blis_config import blis_config, blis_flags, blis_gpu_name, blis_kv_blocks
from pinn.export.blis_features import BASIS, BlisSums, blis_features, blis_step_us
from pinn.export.blis_files import folder_name, write_configuration
from pinn.export.blis_model import blis_model
from pinn.export.blis_projection import Projection
from pinn.export.blis_vectors import BlisVector
from pinn.export.configured import from_checkpoint
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.memory import kv_layout
from pinn.specs.data_folder import find_checkpoint
from pinn.specs.gpu_catalog import load_gpu

CONFIGURATIONS = Path(__file__).resolve().parents[2] / "export" / "blis" / "configurations.csv"
LENGTH = 800


def vector(load: str) -> BlisVector:
    """Coefficients of which each term shows in a step time."""
    beta = np.linspace(0.3, 1.3, len(BASIS))
    projection = Projection(beta, (), np.zeros(1))
    none = {load: 0.0}
    return BlisVector(load, (9e3, 500.0, 0.0), projection, 1e4, False, none, none)


@pytest.fixture(scope="module")
def exported():
    """The configurations that the project is judged by."""
    kept, deployments, _ = make_deployments(read_configurations(CONFIGURATIONS))
    return from_checkpoint(find_checkpoint(), kept, deployments)


@pytest.fixture(scope="module")
def folders(exported, tmp_path_factory):
    out = tmp_path_factory.mktemp("blis")
    for row, deployment in enumerate(exported.deployments):
        blocks = blis_kv_blocks(deployment, LENGTH)
        write_configuration(exported, row, [vector("chat")], blocks, out)
    return [out / folder_name(exported, row) for row in range(len(exported))]


def test_the_configurations_are_of_every_kind(exported):
    deployments = exported.deployments
    assert len(deployments) == 30
    assert len({d.gpu.name for d in deployments}) == 5
    assert {d.serving.tensor_parallel_size for d in deployments} == {1, 2, 4, 8}
    each = [(d.model.moe, d.model.precisions) for d in deployments]
    formats = {(p.experts if moe else p.dense_ffn).name for moe, p in each}
    assert {"bf16", "fp8", "int4_wo", "mxfp4", "fp8_block"} <= formats
    assert any(d.model.is_latent for d in deployments)


def test_every_folder_passes_the_rules(exported, folders):
    for deployment, folder in zip(exported.deployments, folders, strict=True):
        inputs = read_inputs(flags_of(folder / "run.sh", "--workload-spec", "x.yaml"))
        flags, m = inputs.flags, blis_model(deployment)
        # Nothing is left to rules that the number of blocks lets BLIS skip.
        check(inputs.model, flags.tp, flags.dp, blocks_given=False)
        assert inputs.model.weight_bytes == m.weight_bytes
        assert flags.workload_spec == "x.yaml"
        assert (flags.tp, flags.max_num_seqs, flags.max_model_len) == (
            deployment.serving.tensor_parallel_size, 128, 4096,
        )  # fmt: skip
        assert flags.max_num_batched_tokens == deployment.recipe.token_budget
        assert (
            inputs.hardware
            == json.loads((folder / "hardware.json").read_text())[deployment.gpu.name]
        )


def test_blocks_are_those_of_the_simulator_and_not_those_that_blis_works_out(exported, folders):
    off = []
    for deployment, folder in zip(exported.deployments, folders, strict=True):
        flags = flags_of(folder / "run.sh")
        layout = kv_layout(deployment, EngineSpec())
        if layout.window_groups:
            # As many requests of that length fit.
            held = layout.request_blocks(LENGTH, 16)
            assert flags.total_kv_blocks // 50 == pytest.approx(layout.blocks // held, abs=1)
        else:
            assert flags.total_kv_blocks == layout.blocks
        inputs = read_inputs(flags)
        try:
            own = kv_blocks(inputs.model, inputs.hardware["MemoryGiB"], flags)
        except RefusedError:
            continue
        off.append((flags.tp, own / layout.blocks))
    assert np.median([ratio for tp, ratio in off if tp > 1]) > 1.5
    assert min(ratio for _, ratio in off) < 0.7


def test_the_stand_in_counts_blocks_as_documented():
    deployment = make_deployment({"model": "meta-llama/Llama-3.1-8B", "gpu": "H100"})
    model = read_model(blis_config(deployment), "x")
    found = []
    for tp in (1, 2, 4):
        serving = replace(deployment.serving, tensor_parallel_size=tp)
        flags = blis_flags(replace(deployment, serving=serving), 1)
        parsed = parse(["run", *(text for k, v in flags.items() for text in (f"--{k}", v))])
        found.append(kv_blocks(model, 80, parsed))
    assert found == [26312, 125278, 543011]


def test_step_times_of_the_folder_are_those_of_its_vector(exported, folders):
    """BLIS's formula, written down twice, on mixed batches."""
    rng = np.random.default_rng(0)
    beta = vector("chat").projection.beta
    for deployment, folder in zip(exported.deployments, folders, strict=True):
        step = formula(read_inputs(flags_of(folder / "run.sh")))
        for _ in range(5):
            prompts = rng.integers(20, 3000, 20).tolist()
            batch = [(p + i, 1, p) for i, p in enumerate(prompts[:15])]
            batch += [(0, max(p // 2, 1), p) for p in prompts[15:]]
            prefills = [(new, p) for at, new, p in batch if at < p]
            decodes = [at for at, _, p in batch if at >= p]
            sums = BlisSums(
                *(
                    np.array([float(x)])
                    for x in (
                        sum(new for new, _ in prefills), len(decodes), sum(decodes), len(batch),
                        sum(new * (p + new / 2) for new, p in prefills),
                    )
                )
            )  # fmt: skip
            wanted = blis_step_us(blis_features(blis_model(deployment), sums), beta)[0]
            assert step.step_us(batch) == pytest.approx(wanted, abs=1)


def test_a_folder_runs_wherever_it_lies(folders, tmp_path):
    moved = tmp_path / "a folder" / "elsewhere"
    shutil.copytree(folders[0], moved)
    inputs = read_inputs(flags_of(moved / "run.sh"))
    assert inputs.flags.model_config_folder == str(moved)
    assert inputs.alpha == [9e3, 500.0, 0.0]


def test_a_load_has_coefficients_of_its_own(exported, tmp_path):
    vectors = [vector("chat"), replace(vector("code"), alpha=(1.0, 2.0, 0.0)), vector("mix")]
    write_configuration(exported, 0, vectors, 1000, tmp_path)
    script = tmp_path / folder_name(exported, 0) / "run.sh"
    assert read_inputs(flags_of(script)).alpha == [9e3, 500.0, 0.0]
    assert read_inputs(flags_of(script, load="code")).alpha == [1.0, 2.0, 0.0]


def test_bytes_per_weight_are_ours_whatever_the_name_says():
    source = {"model": "nvidia/Llama-3.1-8B-Instruct-FP8", "gpu": "H100", "precision": "bf16"}
    deployment = make_deployment(source)
    assert read_model(blis_config(deployment), deployment.model.name).weight_bytes == 2
    plain = make_deployment(source | {"model": "meta-llama/Llama-3.1-8B"})
    assert "quantization_config" not in blis_config(plain)


def test_what_blis_reads_of_the_weights_hardly_changes_a_step(folders):
    """The published config.json of an fp8 deployment may be the bf16 model's."""
    inputs = read_inputs(flags_of(folders[0] / "run.sh"))
    vectors = np.zeros(len(BASIS))
    vectors[[5, 6, 8, 9]] = 20.0, 5000.0, 1.0, 1.5
    batch = [(700 + i, 1, 547) for i in range(32)]
    times = {
        formula(
            replace(inputs, beta=vectors, model=replace(inputs.model, weight_bytes=each))
        ).step_us(batch)
        for each in (0.5, 1.0, 2.0)
    }
    assert len(times) == 1


def test_gpus_have_the_names_that_users_of_blis_type():
    names = {"H100": "H100", "A100-SXM": "A100-SXM", "A100-80": "A100-SXM", "L40S": "L40S"}
    assert {name: blis_gpu_name(load_gpu(name)) for name in names} == names
    assert blis_gpu_name(load_gpu("B200")) == "B200-SXM"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"torch_dtype": None, "quantization_config": None}, "BytesPerParam"),
        ({"num_key_value_heads": 4}, "must be divisible by TP"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_act": "gelu"}, "unsupported activation"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok"),
    ],
)
def test_the_stand_in_refuses_as_documented(change, reason):
    deployment = make_deployment(
        {"model": "Qwen/Qwen3-235B-A22B", "gpu": "H200", "tensor_parallel_size": 8}
    )
    config = blis_config(deployment)
    check(read_model(config, "x"), 8, 1, blocks_given=False)
    with pytest.raises(RefusedError, match=reason):
        check(read_model(config | change, "x"), 8, 1, blocks_given=False)

"""Documents for BLIS's latency kernel: valid by its rules, and right by its own law."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import yaml
from blis_kernel import (
    REQUIRED,
    applicable,
    read_chip,
    read_run,
    read_set,
    read_shape,
    step_us,
)

from pinn import export_blis
from pinn.common.files import find_checkpoint
from pinn.engines.configurations import make_deployments, read_configurations
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.export.blis_vectors import latency_of
from pinn.export.configured import from_checkpoint
from pinn.export.kernel_files import chip_name, model_name
from pinn.export.kernel_law import random_batches, step_seconds
from pinn.memory.kv_cache import kv_layout
from pinn.memory.weights import gpu_weight_bytes
from pinn.physics.costs import model_costs

FILE = Path(__file__).resolve().parents[2] / "export" / "blis" / "configurations.csv"
FAMILIES = (
    "gemm_eps_max", "gemm_m_half", "collective_floor", "collective_peak_rate",
    "collective_transition_rate", "attention_decode_floor", "attention_decode_rate",
)  # fmt: skip


@pytest.fixture(scope="module")
def configured():
    """Return the configurations on which the project is evaluated."""
    kept, deployments, _ = make_deployments(read_configurations(FILE))
    return from_checkpoint(find_checkpoint(), kept, deployments)


@pytest.fixture(scope="module")
def out(configured, tmp_path_factory):
    """Return a folder with the documents of all configurations, and what was printed."""
    out = tmp_path_factory.mktemp("kernel")
    said = export_blis(out, configured.configurations, target="kernel", skip_invalid=True)
    return out, said.lines


def written(configured, out):
    """Return row, coefficient entries, scenario and deployment of each written configuration."""
    by_cell = {
        (model_name(d), chip_name(d.gpu), d.recipe.tensor_parallel_size,
         d.serving.enable_expert_parallel): row
        for row, d in enumerate(configured.deployments)
    }  # fmt: skip
    for path in sorted((out[0] / "scenarios").iterdir()):
        scenario, deployment = read_run(path)
        parallel = deployment["pools"][0]["parallel"]
        cell = (scenario["model"], scenario["cluster"]["hardware"], parallel["tp"],
                parallel.get("enable_expert_parallel", False))  # fmt: skip
        (name,) = scenario["coefficients"]
        entries = read_set(out[0] / "registry" / "coefficients" / f"{name}.yaml")
        yield by_cell[cell], applicable(entries, cell[1].upper(), *cell[:1], cell[2]), deployment


def families(values):
    """Return coefficients without format, size and chip in their names; a law's key needs none."""
    found = dict(values)
    for family in FAMILIES:
        names = [n for n in values if n.startswith(family) and "_swa" not in n]
        names = [n for n in names if "all_reduce" in n or "collective" not in n]
        found[family] = values[names[0]]
        assert len({values[n] for n in names}) == 1, names
    return found


def facts_of(deployment):
    """Return a deployment's FLOP and bytes per GPU, as a graph of its model has them."""
    c, gpu = model_costs([deployment]), deployment.gpu
    flop, memory = gpu.peak_flop_per_s["bf16"] / 1e6, gpu.memory_bandwidth_bytes_per_s / 1e6
    one = {name: float(getattr(c, name)[0]) for name in (
        "gemm_token_s", "expert_token_s", "head_sequence_s", "experts", "expert_share", "layers",
        "gemm_weights_s", "expert_read_s", "kv_read_s", "windowed_kv_read_s", "prefill_pair_s",
        "windowed_prefill_pair_s", "graph_tokens", "all_reduce_token_bytes",
    )}  # fmt: skip
    return {
        "flop_per_us": flop, "bytes_per_us": memory, "layers": one["layers"],
        "token_flop": 1e6 * (one["gemm_token_s"] + one["expert_token_s"]) * flop,
        "head_flop": 1e6 * one["head_sequence_s"] * flop, "experts": one["experts"],
        "expert_share": one["expert_share"], "weight_bytes": 1e6 * one["gemm_weights_s"] * memory,
        "expert_bytes": 1e6 * one["expert_read_s"] * memory,
        "kv_bytes": 1e6 * one["kv_read_s"] * memory,
        "near_kv_bytes": 1e6 * one["windowed_kv_read_s"] * memory,
        "pair_flop": 1e6 * one["prefill_pair_s"] * flop,
        "near_pair_flop": 1e6 * one["windowed_prefill_pair_s"] * flop,
        "graph_tokens": one["graph_tokens"], "message_bytes": one["all_reduce_token_bytes"],
        "collectives": 2 * one["layers"] if deployment.recipe.tensor_parallel_size > 1 else 0,
    }  # fmt: skip


def test_documents_are_valid_by_every_rule(configured, out):
    found = list(written(configured, out))
    assert len(found) >= 20
    for row, values, _ in found:
        deployment = configured.deployments[row]
        size, chip = deployment.recipe.tensor_parallel_size, chip_name(deployment.gpu)
        assert set(REQUIRED) <= set(values)
        for operation in ("all_reduce", "all_gather", "reduce_scatter", "alltoall"):
            for part in ("floor", "peak_rate", "transition_rate"):
                where = f"fp16_{max(size, 2)}rank_{chip.replace('-', '_')}"
                assert f"collective_{part}_{operation}_{where}" in values
        assert any(name.startswith("gemm_eps_max_") for name in values)
        assert 0 < values["hbm_derate"] <= 1
        kind = "moe" if deployment.model.moe else "dense"
        assert f"activation_buffer_count_{kind}_{size}rank" in values
        assert (f"nccl_communicator_bytes_{size}rank" in values) == (size > 1)
    shape = read_shape(out[0] / "catalog" / "workloads" / "pinn-chat.yaml")
    assert shape["prompt"]["tokens"] == 600
    for path in (out[0] / "registry" / "coefficients").iterdir():
        text = path.read_text()
        digest = configured.provenance["checkpoint_sha256"]
        assert f'# checkpoint_sha256: "{digest}"' in text
        assert '# engine: "vllm 0.' in text


def test_steps_by_the_kernels_own_law_are_the_surrogates(configured, out):
    """Random batches of another seed than the fit's and the printed errors'."""
    all_errors = {"dense": [], "experts": []}
    for row, values, _ in written(configured, out):
        deployment, latency = configured.deployments[row], latency_of(configured, row)
        sums = random_batches(latency, seed=7, count=400)
        wanted, facts = 1e6 * step_seconds(latency, sums), facts_of(deployment)
        value = families(values)
        got = [
            step_us(value, facts, {
                "tokens": sums.tokens[i], "requests": sums.requests[i],
                "decodes": sums.decode_requests[i], "context": sums.decode_context[i],
                "near": sums.windowed_decode_context[i], "prompts": sums.prefill_requests[i],
                "pairs": sums.prefill_pairs[i], "near_pairs": sums.windowed_prefill_pairs[i],
            })
            for i in range(len(wanted))
        ]  # fmt: skip
        kind = "experts" if deployment.model.moe else "dense"
        all_errors[kind].append(np.abs(np.array(got) / wanted - 1))
    for kind, median, worst in (("dense", 0.04, 0.20), ("experts", 0.06, 0.30)):
        errors = np.concatenate(all_errors[kind])
        print(kind, len(all_errors[kind]), np.median(errors), errors.max())
        assert np.median(errors) < median
        # These batches are others than those by which configurations are refused.
        assert errors.max() < 1.1 * worst


def test_what_is_refused_is_told_with_its_error(configured, out):
    lines = "\n".join(out[1])
    refused = [line for line in out[1] if "left out" in line]
    with (out[0] / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) + len(refused) == len(configured)
    assert "matrix products of bf16, fp8 and nvfp4" in lines
    assert all(float(row["worst_error"]) <= 0.3 for row in rows)
    for line in refused:
        assert "has int4" in line or "mxfp4" in line or "the kernel's law would be off by" in line
    readme = (out[0] / "README.md").read_text()
    assert all(row["name"] in readme for row in rows)


def test_the_kernel_finds_the_simulators_blocks(configured, out):
    for row, values, deployment in written(configured, out):
        d = configured.deployments[row]
        share = deployment["pools"][0]["engine"]["gpu_memory_utilization"]
        layout = kv_layout(d, EngineSpec())
        left = d.gpu.memory_bytes * share - values["engine_workspace_bytes"] - gpu_weight_bytes(d)
        assert left // layout.block_bytes == pytest.approx(layout.blocks, abs=1)


def test_a_chip_that_the_catalog_lacks_is_written(tmp_path):
    export_blis(tmp_path, "model=Llama-3.1-8B gpu=RTX-4090 max_model_len=4096", target="kernel",
                worst_error=9.0)  # fmt: skip
    chip = read_chip(tmp_path / "catalog" / "hardware" / "rtx-4090.yaml")
    assert chip["SMCount"] == 128
    assert chip["BwPeakTBs"] == pytest.approx(1.008)


def test_the_last_entry_of_a_cell_wins(out, tmp_path):
    path = next((out[0] / "registry" / "coefficients").iterdir())
    document = yaml.safe_load(path.read_text())
    name, entry = "hbm_derate", {"value": 0.5, "units": "dimensionless", "method": "assumed",
                                 "fitted": False, "rationale": "x", "scope": {}}  # fmt: skip
    document["coefficients"].append({name: entry})
    changed = tmp_path / path.name
    changed.write_text(yaml.safe_dump(document))
    assert applicable(read_set(changed), "any", "any", 1) == {"hbm_derate": 0.5}
    document["coefficients"].append({name: entry})
    changed.write_text(yaml.safe_dump(document))
    with pytest.raises(AssertionError, match="twice"):
        read_set(changed)
    entry["units"] = "seconds"
    changed.write_text(yaml.safe_dump(document | {"coefficients": [{name: entry}]}))
    with pytest.raises(AssertionError):
        read_set(changed)


def test_bad_targets_are_refused(tmp_path):
    with pytest.raises(PinnError, match="give folder or kernel"):
        export_blis(tmp_path, "model=Llama-3.1-8B gpu=H100", target="kernels")
    with pytest.raises(PinnError, match="--workload is of --target folder"):
        export_blis(tmp_path, "model=Llama-3.1-8B gpu=H100", target="kernel",
                    workloads=["x.yaml"])  # fmt: skip

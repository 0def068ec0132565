"""Documents for BLIS's latency kernel: valid by its rules, and right by its own law.

A few configurations run by default. ``PINN_BLIS_KERNEL=all pytest -s`` on this file runs all thirty
of ``export/blis/configurations.csv`` and prints a line for each.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml
from blis_kernel import (
    CATALOG,
    RuleError,
    applicable,
    read_chip,
    read_run,
    read_set,
    read_shape,
    required_names,
    step_us,
)
from pages import command_on
from typer.testing import CliRunner

from pinn import export_blis
from pinn.cli.main import app
from pinn.common.files import find_checkpoint
from pinn.engines.configurations import make_deployments, read_configurations
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.export.blis_vectors import latency_of
from pinn.export.configured import from_checkpoint
from pinn.export.kernel_documents import chip_name, set_name, weight_formats
from pinn.export.kernel_fit import error_limit, random_batches, step_seconds
from pinn.memory.kv_cache import kv_layout
from pinn.memory.weights import gpu_weight_bytes
from pinn.physics.costs import model_costs

FILE = Path(__file__).resolve().parents[2] / "export" / "blis" / "configurations.csv"
ALL = os.environ.get("PINN_BLIS_KERNEL") == "all"
#: Indices of a dense model, a mixture of experts, one with latent attention in fp8, a dense model
#: whose steps are too curved, and one in mxfp4, for which the kernel has no name.
FEW = (6, 18, 26, 9, 22)
#: A model in nvfp4, the kernel's 4-bit format.
FP4 = {
    "model": "nvidia/Llama-3.3-70B-Instruct-FP4", "gpu": "B200", "tensor_parallel_size": 1,
    "max_model_len": 4096, "max_num_seqs": 128,
}  # fmt: skip
FAMILIES = (
    "gemm_eps_max", "gemm_m_half", "collective_floor_all_reduce", "collective_peak_rate_all_reduce",
    "collective_transition_rate_all_reduce", "attention_decode_floor", "attention_decode_rate",
)  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """Folder of an export, what it printed, and the configurations with their coefficients."""

    folder: Path
    lines: list[str]
    configured: object


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    rows = read_configurations(FILE)
    rows = rows if ALL else [*(rows[i] for i in FEW), FP4]
    out = tmp_path_factory.mktemp("kernel")
    said = export_blis(out, rows, target="kernel", skip_invalid=True)
    rows = [{"engine_version": "0.29.0"} | row for row in rows]
    kept, deployments, _ = make_deployments(rows)
    return Exported(out, list(said.lines), from_checkpoint(find_checkpoint(), kept, deployments))


@dataclass(frozen=True)
class Written:
    """One configuration whose documents obey the rules."""

    row: int
    values: dict[str, float]
    scenario: dict
    engine: dict


@pytest.fixture(scope="module")
def written(exported):
    """Return each written configuration, by the name of its set."""
    rows = {}
    for row, deployment in enumerate(exported.configured.deployments):
        try:
            rows[set_name(deployment)] = row
        except PinnError:  # a format without a name
            continue
    found = {}
    for path in sorted((exported.folder / "scenarios").iterdir()):
        scenario, deployment = read_run(path)
        (pool,), (name,) = deployment["pools"], scenario["coefficients"]
        entries = read_set(exported.folder / "registry" / "coefficients" / f"{name}.yaml")
        chip, tp = scenario["cluster"]["hardware"], pool["parallel"]["tp"]
        values = applicable(entries, chip.upper(), scenario["model"], tp)
        assert len(values) == len(entries)
        found[name] = Written(rows[name], values, scenario, pool["engine"])
    return found


def family_values(values):
    """Return coefficients without format, size and chip in their names."""
    found = dict(values)
    for family in FAMILIES:
        named = {value for name, value in values.items() if name.startswith(family)
                 and not name.endswith("_swa")}  # fmt: skip
        (found[family.removesuffix("_all_reduce")],) = named
    return found


def facts_of(deployment):
    """Return a deployment's FLOP and bytes per GPU, as a graph of its model has them."""
    c, gpu = model_costs([deployment]), deployment.gpu
    flop, memory = gpu.peak_flop_per_s["bf16"] / 1e6, gpu.memory_bandwidth_bytes_per_s / 1e6
    one = {name: 1e6 * float(getattr(c, name)[0]) for name in (
        "gemm_token_s", "expert_token_s", "head_sequence_s", "gemm_weights_s", "expert_read_s",
        "kv_read_s", "windowed_kv_read_s", "prefill_pair_s", "windowed_prefill_pair_s",
    )}  # fmt: skip
    parallel = deployment.recipe.tensor_parallel_size > 1
    return {
        "flop_per_us": flop, "bytes_per_us": memory, "layers": deployment.model.layers,
        "token_flop": (one["gemm_token_s"] + one["expert_token_s"]) * flop,
        "head_flop": one["head_sequence_s"] * flop, "experts": float(c.experts[0]),
        "expert_share": float(c.expert_share[0]), "weight_bytes": one["gemm_weights_s"] * memory,
        "expert_bytes": one["expert_read_s"] * memory, "kv_bytes": one["kv_read_s"] * memory,
        "near_kv_bytes": one["windowed_kv_read_s"] * memory,
        "pair_flop": one["prefill_pair_s"] * flop,
        "near_pair_flop": one["windowed_prefill_pair_s"] * flop,
        "graph_tokens": float(c.graph_tokens[0]),
        "message_bytes": 2 * deployment.model.hidden_size,
        "collectives": 2 * deployment.model.layers * parallel,
    }  # fmt: skip


def law_errors(exported, one, seed=7):
    """Return the errors of the own law over batches that no fit and no file has seen."""
    deployment, latency = exported.configured.deployments[one.row], latency_of(
        exported.configured, one.row
    )  # fmt: skip
    sums = random_batches(deployment, seed)
    batch = {
        "tokens": sums.tokens, "requests": sums.requests, "decodes": sums.decode_requests,
        "context": sums.decode_context, "near": sums.windowed_decode_context,
        "prompts": sums.prefill_requests, "pairs": sums.prefill_pairs,
        "near_pairs": sums.windowed_prefill_pairs,
    }  # fmt: skip
    assert sums.prefill_requests.max() == 8
    assert sums.decode_requests.max() == deployment.recipe.max_requests
    got = step_us(family_values(one.values), facts_of(deployment), batch)
    return got / (1e6 * step_seconds(latency, sums)) - 1


def test_documents_are_valid_by_every_rule(exported, written):
    assert len(written) >= (20 if ALL else 4)
    shape = read_shape(exported.folder / "catalog" / "workloads" / "pinn-chat.yaml")
    assert shape["prompt"]["tokens"] == 600
    digest = exported.configured.provenance["checkpoint_sha256"]
    for name, one in written.items():
        deployment, mode = exported.configured.deployments[one.row], one.engine["cudagraph_mode"]
        chip, tp = chip_name(deployment.gpu), deployment.recipe.tensor_parallel_size
        formats, moe = weight_formats(deployment), deployment.model.moe is not None
        assert required_names(formats, chip, tp, mode, moe=moe) <= set(one.values)
        assert one.scenario["cluster"]["hardware"] in CATALOG
        assert one.scenario["workload"] == {"shape": "pinn-chat"}
        assert (one.engine["max_num_seqs"], one.engine["max_model_len"]) == (128, 4096)
        text = (exported.folder / "registry" / "coefficients" / f"{name}.yaml").read_text()
        for fact in (f'checkpoint_sha256: "{digest}"', 'engine: "vllm 0.29.0"', "step_errors:"):
            assert f"# {fact}" in text


def test_steps_by_the_kernels_own_law_are_the_surrogates(exported, written):
    with (exported.folder / "summary.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    for name, one in written.items():
        limit = error_limit(exported.configured.deployments[one.row])
        size = np.abs(law_errors(exported, one))
        print(f"{name:64} {100 * np.median(size):5.1f} {100 * size.max():5.1f}")
        assert np.median(size) < limit.median
        assert size.max() < limit.worst
        # The file's own errors are those of other batches.
        assert float(rows[name]["median all steps"]) == pytest.approx(np.median(size), abs=0.005)
        own = law_errors(exported, one, seed=2)
        assert float(rows[name]["largest all steps"]) == pytest.approx(np.abs(own).max(), abs=2e-5)


def test_what_is_refused_is_told_with_its_error(exported, written):
    refused = [line for line in exported.lines if "skipped" in line]
    assert len(written) + len(refused) == len(exported.configured)
    for line in refused:
        print(line)
        known = "beyond a median of 4 % or 20 % for any step (median APE decodes alone" in line
        assert known or "has matrix products of bf16, fp8 and nvfp4, but" in line
    assert len([line for line in refused if "has mxfp4: use the Go adapter" in line]) >= 1
    assert len([line for line in refused if "would have a median APE of" in line]) >= 1
    readme = (exported.folder / "README.md").read_text()
    assert all(f"| {name} | vllm 0.29.0 |" in readme for name in written)


def test_the_kernel_finds_the_simulators_blocks(exported, written):
    for one in written.values():
        d = exported.configured.deployments[one.row]
        layout = kv_layout(d, EngineSpec())
        usable = d.gpu.memory_bytes * one.engine["gpu_memory_utilization"]
        left = usable - one.values["engine_workspace_bytes"] - gpu_weight_bytes(d)
        blocks = left // layout.block_bytes
        assert blocks == pytest.approx(layout.blocks, abs=1)
        assert blocks * one.engine["block_size"] >= one.engine["max_model_len"]


def test_a_chip_that_the_catalog_lacks_is_written(tmp_path):
    found = export_blis(tmp_path, "model=Llama-3.1-8B gpu=RTX-4090 max_model_len=4096",
                        target="kernel", worst_error=0.5)  # fmt: skip
    assert any("pinn-meta-llama-3.1-8b-rtx-4090-tp1" in line for line in found.lines)
    chip = read_chip(tmp_path / "catalog" / "hardware" / "rtx-4090.yaml")
    assert chip["SMCount"] == 128
    assert chip["BwPeakTBs"] == pytest.approx(1.008)
    assert "lacks: rtx-4090" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"units": "seconds"}, "unknown units"),
        ({"method": "guessed"}, "unknown method"),
        ({"fitted": True}, "fitted and not measured"),
        ({"value": 0.0}, "0 is not_charged"),
        ({"value": 1.2}, "share of a peak"),
        ({"rationale": ""}, "without a rationale"),
        ({"scope": {"dtype": ["bf16"]}}, "unknown keys"),
        ({"unit": "us"}, "unknown keys"),
    ],
)
def test_the_validator_refuses_as_documented(tmp_path, change, reason):
    good = {"value": 0.5, "units": "dimensionless", "method": "assumed", "fitted": False,
            "rationale": "x", "scope": {"tp": [1]}}  # fmt: skip
    path = tmp_path / "set.yaml"

    def read(*entries):
        found = [{"hbm_derate": entry} for entry in entries]
        document = {"kind": "CoefficientSet", "name": "set", "coefficients": found}
        path.write_text(yaml.safe_dump(document))
        return read_set(path)

    # The last entry of a cell wins, and other cells have their own.
    entries = read(good | {"scope": {}}, good | {"value": 0.7})
    assert applicable(entries, "any", "any", 1) == {"hbm_derate": 0.7}
    assert applicable(entries, "any", "any", 2) == {"hbm_derate": 0.5}
    with pytest.raises(RuleError, match="twice"):
        read(good, good)
    with pytest.raises(RuleError, match=reason):
        read(good | change)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "data_parallel_size=2 enable_expert_parallel=true",
            "data_parallel_size is 2, but coefficient sets have no scope for replicas",
        ),
        ("engine=sglang", "models vLLM only, but the engine is sglang"),
        ("pipeline_parallel_size=2", "does not simulate pipeline parallelism"),
        ("precision=fp8 gpu=A100", "a peak FLOP/s of fp8, but A100-SXM-80GB has none"),
    ],
)
def test_what_the_kernel_lacks_is_refused(tmp_path, line, reason):
    gpu = "" if "gpu=" in line else "gpu=H100 "
    with pytest.raises(PinnError, match=reason):
        export_blis(tmp_path, f"model=Qwen/Qwen3-30B-A3B {gpu}{line}", target="kernel")


def test_arguments_of_the_other_target_are_refused(tmp_path):
    with pytest.raises(PinnError, match="target"):
        export_blis(tmp_path, "model=Llama-3.1-8B gpu=H100", target="kernels")
    with pytest.raises(PinnError, match="workloads applies only to target folder"):
        export_blis(tmp_path, "model=Llama-3.1-8B gpu=H100", target="kernel",
                    workloads=["x.yaml"])  # fmt: skip


def test_two_configurations_of_one_cell_are_not_written_over_each_other(tmp_path):
    rows = [FP4 | {"gpu_memory_utilization": share} for share in (0.8, 0.9)]
    with pytest.raises(PinnError, match="written for another configuration"):
        export_blis(tmp_path, rows, target="kernel")


def test_the_page_types_this_file_with_all_configurations():
    (variable, program, _, path), _ = command_on("blis.md", "test_kernel_files.py")
    assert (variable, program) == ("PINN_BLIS_KERNEL=all", "pytest")
    assert Path(path).name == Path(__file__).name


def test_the_page_writes_the_documents_of_what_the_kernel_can_express(tmp_path):
    """Check the page's command on two of its rows, of which one is refused with its error."""
    (_, *words), _ = command_on("blis.md", "pinn export blis --target kernel")
    header, *rows = FILE.read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join([header, rows[FEW[0]], rows[FEW[4]]]) + "\n")
    assert Path(words[words.index("--configs") + 1]) == FILE.relative_to(FILE.parents[2])
    words[words.index("--configs") + 1] = str(few)
    words[words.index("--out") + 1] = str(tmp_path / "kernel")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "kernel" / "scenarios").glob("*.yaml"))) == 1
    assert (tmp_path / "kernel" / "README.md").is_file()

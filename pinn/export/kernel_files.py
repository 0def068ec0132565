"""Documents for BLIS's latency kernel: coefficient sets, scenarios, deployments, missing chips."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from pinn.common import progress, tables
from pinn.common.files import json_text, write_whole
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.export.blis_files import file_name
from pinn.export.blis_model import check_expressible
from pinn.export.blis_vectors import latency_of
from pinn.export.configured import Configured, engine_release
from pinn.export.kernel_law import WORST, KernelLaw, errors_by_kind, project_law
from pinn.memory.kv_cache import kv_layout
from pinn.memory.kv_layout import max_model_len
from pinn.memory.weights import gpu_weight_bytes
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import LatentAttentionSpec
from pinn.surrogate.request_features import REQUEST_FEATURES

#: Releases for which the documents are written: of the kernel, and of the engine's rules.
KERNEL, ENGINE_VERSION = "blis-latency-kernel 0.1", "0.29.0"
GRAPHS = "FULL_AND_PIECEWISE"
#: GPU -> name of its file in BLIS's catalog.
_CHIPS = {
    "A100-SXM-80GB": "a100-sxm", "A100-PCIe-80GB": "a100-80", "H100-SXM": "h100",
    "H200-SXM": "h200", "B200-SXM": "b200", "B300-SXM": "b300", "GB200": "gb200-nvl72",
    "GB300": "gb300", "L40S": "l40s",
}  # fmt: skip
#: Formats of weights for which the kernel has matrix products, by their math.
_FORMATS = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}
_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
_GPUS_PER_NODE = 8


def chip_name(gpu: GpuSpec) -> str:
    """Return the name of a GPU in BLIS's catalog, or in the one that is written beside it."""
    return _CHIPS.get(gpu.name, gpu.name.lower())


def chip_file(gpu: GpuSpec) -> dict[str, object]:
    """Return a GPU as a catalog's hardware file describes it."""
    peak = {kind: rate / 1e12 for kind, rate in gpu.peak_flop_per_s.items()}
    found: dict[str, object] = {"Provenance": "vendor_spec", "TFlopsPeak": peak["bf16"]}
    found |= {f"TFlops{name}": peak[key] for key, name in (("fp8", "FP8"), ("fp4", "NVFP4"))
              if peak.get(key)}  # fmt: skip
    return found | {
        "BwPeakTBs": gpu.memory_bandwidth_bytes_per_s / 1e12,
        "MemoryGiB": gpu.memory_bytes / 2**30,
        "IntraNodeBwGBps": gpu.link_bandwidth_bytes_per_s / 1e9,
        "SMCount": gpu.sm_count,
    }


def weight_formats(deployment: Deployment) -> list[str]:
    """Return the formats of the matrix products, in the kernel's words.

    Raises:
        PinnError: If the kernel has no words for one.
    """
    precisions = deployment.model.precisions
    used = {precisions.experts if deployment.model.moe else precisions.dense_ffn}
    used |= {precisions.attention}
    found = []
    for each in sorted(used, key=lambda one: one.name):
        name = "fp8" if each.math == "fp8" else each.name
        if name not in _FORMATS:
            raise PinnError(
                f"BLIS's latency kernel has matrix products of bf16, fp8 and nvfp4, and "
                f"{deployment.model.name} has {each.name}: take 'pinn export table' and the Go "
                "adapter"
            )
        found.append(_FORMATS[name])
    return list(dict.fromkeys(found))


class _Entries:
    """Coefficients of one scope, in the registry's form."""

    def __init__(self, deployment: Deployment, rationale: str) -> None:
        size = deployment.recipe.tensor_parallel_size
        self.scope = {
            "hardware": [chip_name(deployment.gpu)],
            "model": [model_name(deployment)],
            "tp": [size],
        }
        self.rationale = rationale
        self.found: list[dict[str, object]] = []

    def add(self, name: str, value: float, units: str) -> None:
        """Add a coefficient; one of 0 is not charged."""
        known = {"value": float(f"{value:.9g}"), "units": units}
        method = {"method": "assumed" if value else "not_charged", "fitted": False}
        rest = {"rationale": self.rationale, "scope": self.scope}
        self.found.append({name: known | method | rest})


def model_name(deployment: Deployment) -> str:
    """Return a model's name for the catalog: without its owner, in lower case."""
    return file_name(deployment.model.name.split("/")[-1]).lower()


def coefficient_entries(
    latency: LinearLatency, law: KernelLaw, rationale: str
) -> list[dict[str, object]]:
    """Return the entries of a coefficient set for one deployment.

    Memory beside weights and KV cache is one entry, so that the kernel finds as many blocks as
    ``pinn simulate``.
    """
    deployment = latency.deployment
    entries, gpu = _Entries(deployment, rationale), deployment.gpu
    bandwidth = gpu.memory_bandwidth_bytes_per_s / 1e6
    entries.add("hbm_derate", 1 / law.memory, "dimensionless")
    for name in weight_formats(deployment):
        entries.add(f"gemm_eps_max_{name}", 1 / law.flop, "dimensionless")
        entries.add(f"gemm_m_half_{name}", law.m_half, "tokens")
    latent = any(
        isinstance(group.attention, LatentAttentionSpec) for group in deployment.model.layer_groups
    )
    kinds = {"_mla" if latent else "": law.keys}
    if deployment.model.window_tokens is not None:
        kinds["_swa"] = law.windowed_keys
    for kind, keys in kinds.items():
        entries.add(f"attention_decode_floor{kind}", 1e6 * law.decode, "us_per_layer")
        entries.add(f"attention_decode_rate{kind}", bandwidth / keys, "bytes_per_us")
    entries.add("attention_prefill_floor", 1e6 * law.prefill, "us_per_layer")
    entries.add("attention_prefill_work_scale", law.flop / law.pairs, "dimensionless")
    entries.add("host_replay_graph_per_step", 1e6 * law.replay, "us_per_step")
    entries.add("host_launch_eager_per_layer", 1e6 * law.eager, "us_per_layer")
    entries.add("host_launch_per_kernel", 0.0, "us_per_load")
    alpha = dict(zip(REQUEST_FEATURES, (1e6 * latency.alpha).tolist(), strict=True))
    before = ("arrival_to_queue", "queue_to_schedule", "schedule_to_first_token")
    once = sum(alpha[f"{phase}.constant"] for phase in before)
    entries.add("host_admission_per_request", once, "us_per_request")
    entries.add("host_admission_per_token", alpha["arrival_to_queue.prompt_token"], "us_per_token")
    # The API server works on a token while the engine makes the next.
    entries.add("host_output_token", 0.0, "us_per_token")
    entries.add("host_completion", alpha["completion.constant"], "us_per_request")
    _add_collectives(entries, deployment, law)
    _add_memory(entries, deployment)
    return entries.found


def _add_collectives(entries: _Entries, deployment: Deployment, law: KernelLaw) -> None:
    size, gpu = deployment.recipe.tensor_parallel_size, deployment.gpu
    link = gpu.link_bandwidth_bytes_per_s / 1e6
    rate = law.collective_rate / 1e6 or link
    where = f"fp16_{max(size, 2)}rank_{chip_name(gpu).replace('-', '_')}"
    for operation in _OPERATIONS:
        entries.add(
            f"collective_floor_{operation}_{where}", 1e6 * law.collective_floor, "us_per_transfer"
        )
        # The law takes the longer of both; the floor and this rate are what was fitted.
        entries.add(f"collective_peak_rate_{operation}_{where}", max(link, rate), "bytes_per_us")
        entries.add(f"collective_transition_rate_{operation}_{where}", rate, "bytes_per_us")


def _add_memory(entries: _Entries, deployment: Deployment) -> None:
    size, layout = deployment.recipe.tensor_parallel_size, kv_layout(deployment, EngineSpec())
    kind = "moe" if deployment.model.moe else "dense"
    usable = deployment.gpu.memory_bytes * deployment.recipe.memory_share
    cache = layout.blocks * layout.block_bytes
    rest = max(usable - cache - gpu_weight_bytes(deployment), 0.0)
    entries.add("engine_workspace_bytes", rest, "bytes_per_rank")
    entries.add(f"cudagraph_capture_bytes_{GRAPHS.lower()}", 0.0, "bytes_per_rank")
    entries.add(f"activation_buffer_count_{kind}_{size}rank", 0.0, "dimensionless")
    entries.add("activation_scratch_floor_bytes", 0.0, "bytes_per_rank")
    if size > 1:
        entries.add(f"nccl_communicator_bytes_{size}rank", 0.0, "bytes_per_rank")


def run_documents(deployment: Deployment, name: str) -> list[dict[str, object]]:
    """Return the scenario and the deployment of a run file."""
    recipe = deployment.recipe
    parallel: dict[str, object] = {"tp": recipe.tensor_parallel_size, "pp": 1, "dp": 1}
    if deployment.serving.enable_expert_parallel:
        parallel["enable_expert_parallel"] = True
    engine = {
        "block_size": recipe.block_tokens,
        "max_num_batched_tokens": recipe.token_budget,
        "max_num_seqs": recipe.max_requests,
        "max_model_len": max_model_len(deployment),
        "gpu_memory_utilization": recipe.memory_share,
        "cudagraph_mode": GRAPHS,
        "enable_prefix_caching": bool(deployment.serving.enable_prefix_caching),
    }
    hardware = {"hardware": chip_name(deployment.gpu), "nodes": 1, "gpus_per_node": _GPUS_PER_NODE}
    pool = {"role": "colocated", "nodes": 1, "parallel": parallel, "engine": engine}
    return [
        {
            "kind": "Scenario", "name": name, "model": model_name(deployment),
            "coefficients": [name], "engine_version": ENGINE_VERSION,
            "workload": {"shape": "pinn-chat"}, "cluster": hardware,
        },
        {"kind": "Deployment", "name": name, "pools": [pool]},
    ]  # fmt: skip


#: Workload of the scenarios.
WORKLOAD = {
    "prompt": {"tokens": 600, "tokens_stdev": 150, "tokens_min": 20, "tokens_max": 1200},
    "output": {"tokens": 250, "tokens_stdev": 60, "tokens_min": 20, "tokens_max": 500},
}


def write_registry(
    configured: Configured, out: Path, worst_error: float | None, skip: bool
) -> None:
    """Write registry, catalog and scenarios of all configurations, and print their errors.

    Args:
        configured: Configurations with coefficients.
        out: Folder to write.
        worst_error: Largest accepted relative error of a step's time; ``WORST`` if None.
        skip: Whether configurations that cannot be exported are skipped.

    Raises:
        PinnError: If a configuration cannot be exported.
    """
    rows, chips = [], {}
    for row in progress.counted(range(len(configured)), "configuration"):
        try:
            found, documents = _write_one(configured, row, out, worst_error)
        except PinnError as error:
            if not skip:
                raise PinnError(f"configuration {row + 1}: {error}") from error
            print(f"configuration {row + 1} left out: {error}")
            continue
        rows.append(found)
        gpu = configured.deployments[row].gpu
        if gpu.name not in _CHIPS:
            chips[chip_name(gpu)] = chip_file(gpu)
        write_whole(out / "scenarios" / f"{found['name']}.yaml", _yaml(*documents))
    for name, chip in chips.items():
        write_whole(out / "catalog" / "hardware" / f"{name}.yaml", _yaml(chip))
    if rows:
        write_whole(out / "catalog" / "workloads" / "pinn-chat.yaml", _yaml(WORKLOAD))
        tables.write_rows(rows, out / "summary.csv")
        write_whole(out / "README.md", _readme(configured, rows, sorted(chips)))


def _write_one(
    configured: Configured, row: int, out: Path, worst_error: float | None
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Write a configuration's coefficient set; return its line of the summary and its run file."""
    deployment = configured.deployments[row]
    check_expressible(deployment)
    weight_formats(deployment)
    if deployment.recipe.data_parallel_size > 1:
        raise PinnError("data_parallel_size > 1 has no scope in a coefficient set: export 1")
    kind = "experts" if deployment.model.moe else "dense"
    most = WORST[kind] if worst_error is None else worst_error
    latency = latency_of(configured, row)
    law = project_law(latency, most)
    kinds = errors_by_kind(latency, law)
    errors = np.abs(np.concatenate(list(kinds.values())))
    told = "; ".join(_error_text(name, each) for name, each in kinds.items())
    size = f"tp{deployment.recipe.tensor_parallel_size}"
    name = "-".join(("pinn", model_name(deployment), chip_name(deployment.gpu), size))
    print(f"{name}\n  {told}")
    if errors.max() > most:
        raise PinnError(
            f"{name}: the kernel's law would be off by up to {100 * errors.max():.1f} %, more "
            f"than --worst-error {most:g} ({told}): raise that, or take the Go adapter with 'pinn "
            "export table', which has no such error"
        )
    release = engine_release(deployment)
    checkpoint = str(configured.provenance.get("checkpoint_sha256", ""))
    rationale = (
        f"projected from {configured.provenance.get('exporter', 'pinn')}, source "
        f"{configured.sources[row]}, checkpoint {checkpoint[:16]}, step times of {release}"
    )
    facts = {
        "kernel": KERNEL, "engine": release, "checkpoint_sha256": checkpoint,
        "configuration": configured.configurations[row], "step_errors": told,
        "range": "none to 8 prompts and none to max_num_seqs decodes of random lengths",
    }  # fmt: skip
    entries = coefficient_entries(latency, law, rationale)
    document = {"kind": "CoefficientSet", "name": name, "coefficients": entries}
    text = "".join(f"# {key}: {json_text(value)}\n" for key, value in facts.items())
    write_whole(out / "registry" / "coefficients" / f"{name}.yaml", text + _yaml(document))
    found = {"name": name, "engine": release, "checkpoint_sha256": checkpoint}
    found |= {"median_error": round(float(np.median(errors)), 5)}
    found |= {"worst_error": round(float(errors.max()), 5)}
    for each, values in kinds.items():
        found[f"median {each}"] = round(float(np.median(np.abs(values))), 5)
        found[f"worst {each}"] = round(float(np.abs(values).max()), 5)
    return found, run_documents(deployment, name)


def _error_text(kind: str, errors: np.ndarray) -> str:
    size = 100 * np.abs(errors)
    return f"{kind}: median APE {np.median(size):.1f} %, largest {size.max():.1f} %"


def _yaml(*documents: dict[str, object]) -> str:
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=100)


class _Plain(yaml.SafeDumper):
    """Writer without anchors, which repeated scopes would get."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        """Return that no value is written as a reference to an equal one."""
        return True


def _readme(configured: Configured, rows: Sequence[dict[str, object]], chips: Sequence[str]) -> str:
    lines = [
        f"| {r['name']} | {r['engine']} | {100 * float(str(r['median_error'])):.1f} % | "
        f"{100 * float(str(r['worst_error'])):.1f} % |"
        for r in rows
    ]
    used = {chip_name(d.gpu): d.gpu for d in configured.deployments}
    peaks = [
        f"| {name} | {gpu.peak_flop_per_s['bf16'] / 1e12:g} | "
        f"{gpu.memory_bandwidth_bytes_per_s / 1e12:g} |"
        for name, gpu in sorted(used.items())
    ]
    lacking = f"`catalog/hardware` has chips that BLIS's catalog lacks: {', '.join(chips)}."
    digest = configured.provenance.get("checkpoint_sha256", "")
    text = _README.format(kernel=KERNEL, chips=lacking if chips else "", digest=digest)
    return text.replace("ROWS", "\n".join(lines)).replace("PEAKS", "\n".join(peaks))


_README = """# Coefficients for {kernel}

Written by `pinn export blis --target kernel`. Copy `registry/coefficients` into your registry and
`catalog` into your catalog. Then run a file of `scenarios`, or name a set last in a scenario of
yours: it overrides others for its chip, model and size. {chips}

A model has to be in your catalog under the name of the scenario. If it is not, derive its
`graph.yaml` there with BLIS's `derive_graph.py`.

| coefficient set | step times of | median APE | largest error |
|---|---|---|---|
ROWS

Checkpoint {digest}. Errors are those of the kernel's law (no overlap) over random batches that were
not fitted, with none to 8 prompts and none to `max_num_seqs` decodes. `summary.csv` has them by
kind of step.

Efficiencies refer to these peaks. Check that your catalog has the same:

| chip | TFlopsPeak | BwPeakTBs |
|---|---|---|
PEAKS
"""

"""Documents for BLIS's latency kernel: coefficient sets, scenarios, chips and workloads."""

from __future__ import annotations

from dataclasses import dataclass, field

from pinn.common import JsonObject
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.export.blis_files import file_name
from pinn.export.kernel_law import KernelLaw, message_bytes
from pinn.memory.kv_cache import kv_layout
from pinn.memory.kv_layout import max_model_len
from pinn.memory.weights import gpu_weight_bytes
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import LatentAttentionSpec
from pinn.specs.serving import FULL_AND_PIECEWISE, NO_GRAPHS, VLLM
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.units import MICROSECOND

#: Release of vLLM that BLIS models. A scenario may name no other release.
ENGINE_VERSION = "0.29.0"
#: Name of the workload that every scenario runs.
WORKLOAD_NAME = "pinn-chat"
#: Prompt and output lengths of the workload that every scenario runs, in tokens.
WORKLOAD: JsonObject = {
    "prompt": {"tokens": 600, "tokens_stdev": 150, "tokens_min": 20, "tokens_max": 1200},
    "output": {"tokens": 250, "tokens_stdev": 60, "tokens_min": 20, "tokens_max": 500},
}
#: Names of files in BLIS's hardware catalog, by GPU.
CHIPS = {
    "A100-SXM-80GB": "a100-sxm", "A100-PCIe-80GB": "a100-80", "H100-SXM": "h100",
    "H200-SXM": "h200", "B200-SXM": "b200", "B300-SXM": "b300", "GB200": "gb200-nvl72",
    "GB300": "gb300", "L40S": "l40s",
}  # fmt: skip
#: The latency kernel's names for matrix products, by number format of the weights.
_FORMATS = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}
#: Number format of the GPU's peak FLOP/s, by the latency kernel's name for matrix products.
_PEAKS = {"bf16": "bf16", "fp8": "fp8", "nvfp4": "fp4"}
_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
_GPUS_PER_NODE = 8

# Names of GPUs, models, coefficient sets and number formats.


def chip_name(gpu: GpuSpec) -> str:
    """Return a GPU's name in BLIS's hardware catalog or in the exported catalog."""
    return CHIPS.get(gpu.name, file_name(gpu.name).lower())


def model_name(deployment: Deployment) -> str:
    """Return a model's name in BLIS's model catalog: without its owner, in lower case."""
    return file_name(deployment.model.name.split("/")[-1]).lower()


def set_name(deployment: Deployment) -> str:
    """Return the name of a deployment's coefficient set.

    In BLIS, the scope of a set (the configurations it applies to) has no keys for number formats
    and the layout of experts, so the name includes them.
    """
    parts = ["pinn", model_name(deployment), chip_name(deployment.gpu)]
    parts.append(f"tp{deployment.recipe.tensor_parallel_size}")
    parts += [name for name in weight_formats(deployment) if name != "bf16"]
    return "-".join([*parts, *(["ep"] if deployment.serving.enable_expert_parallel else [])])


def weight_formats(deployment: Deployment) -> list[str]:
    """Return the latency kernel's names for the number formats of a model's matrix products.

    Raises:
        PinnError: If the latency kernel has no name for a format.
    """
    precisions = deployment.model.precisions
    used = {precisions.experts if deployment.model.moe else precisions.dense_ffn}
    found = set()
    for each in used | {precisions.attention}:
        name = "fp8" if each.math == "fp8" and each.bytes_per_weight >= 1 else each.name
        if name not in _FORMATS:
            raise PinnError(
                f"BLIS's latency kernel has matrix products of bf16, fp8 and nvfp4, but "
                f"{deployment.model.name} has {each.name}: use the Go adapter with 'pinn export "
                "table'"
            )
        found.add(_FORMATS[name])
    return sorted(found)


def check_kernel(deployment: Deployment) -> None:
    """Check that scenarios and coefficient sets can represent a deployment.

    Raises:
        PinnError: If scenarios or coefficient sets cannot represent the deployment; the message
            gives a remedy.
    """
    serving, recipe = deployment.serving, deployment.recipe
    if serving.engine != VLLM:
        raise PinnError(
            f"BLIS's latency kernel models vLLM only, but the engine is {serving.engine}: export "
            "engine vllm"
        )
    if recipe.data_parallel_size > 1:
        raise PinnError(
            f"data_parallel_size is {recipe.data_parallel_size}, but coefficient sets have no "
            "scope for replicas: export data_parallel_size 1, or use the Go adapter with "
            "'pinn export table'"
        )
    if recipe.tensor_parallel_size > _GPUS_PER_NODE:
        raise PinnError(
            f"tensor_parallel_size is {recipe.tensor_parallel_size}, but the exported scenarios "
            f"have one node of {_GPUS_PER_NODE} GPUs: export tensor_parallel_size "
            f"{_GPUS_PER_NODE} or less"
        )
    lacking = set(weight_formats(deployment)) - {
        name for name, kind in _PEAKS.items() if deployment.gpu.peak_flop_per_s.get(kind)
    }
    if lacking:
        raise PinnError(
            f"BLIS's latency kernel needs a peak FLOP/s of {' and '.join(sorted(lacking))}, but "
            f"{deployment.gpu.name} has none: use the Go adapter with 'pinn export table'"
        )


# Coefficients as entries of BLIS's coefficient sets.


@dataclass
class _Entries:
    """Coefficients with one scope, in the form of BLIS's coefficient registry.

    Attributes:
        scope: Configurations to which the coefficients apply, as in BLIS's registry.
        rationale: Explanation of the origin of the values, which the registry requires.
        found: Registry entries added so far.
    """

    scope: JsonObject
    rationale: str
    found: list[JsonObject] = field(default_factory=list)

    def add(self, name: str, value: float, units: str) -> None:
        """Add a coefficient to the entries; a value of 0 is marked as not charged."""
        entry: JsonObject = {
            "value": float(f"{value:.9g}"), "units": units,
            "method": "assumed" if value else "not_charged", "fitted": False,
            "rationale": self.rationale, "scope": self.scope,
        }  # fmt: skip
        self.found.append({name: entry})


def coefficient_entries(latency: LinearLatency, law: KernelLaw, rationale: str) -> list[JsonObject]:
    """Return the coefficients of one deployment as entries of BLIS's coefficient registry.

    Args:
        latency: Latency model of the deployment.
        law: Coefficients of the kernel's step-time law, fitted to the deployment.
        rationale: Explanation of the origin of the values.
    """
    deployment = latency.deployment
    size = deployment.recipe.tensor_parallel_size
    entries = _Entries(
        {"hardware": [chip_name(deployment.gpu)], "model": [model_name(deployment)], "tp": [size]},
        rationale,
    )
    _add_step(entries, deployment, law)
    _add_requests(entries, latency)
    _add_collectives(entries, deployment, law)
    _add_memory(entries, deployment)
    return entries.found


def _add_step(entries: _Entries, deployment: Deployment, law: KernelLaw) -> None:
    terms, model = law.terms, deployment.model
    bytes_per_us = deployment.gpu.memory_bandwidth_bytes_per_s * MICROSECOND
    entries.add("hbm_derate", 1 / terms["memory"], "dimensionless")
    for name in weight_formats(deployment):
        entries.add(f"gemm_eps_max_{name}", 1 / terms["flop"], "dimensionless")
        entries.add(f"gemm_m_half_{name}", law.m_half, "tokens")
    latent = any(isinstance(g.attention, LatentAttentionSpec) for g in model.layer_groups)
    kinds = {"_mla" if latent else "": terms["keys"]}
    if model.window_tokens is not None:
        kinds["_swa"] = terms["windowed_keys"]
    floor_us = terms["decode_floor"] / MICROSECOND
    for kind, keys in kinds.items():
        entries.add(f"attention_decode_floor{kind}", floor_us, "us_per_layer")
        entries.add(f"attention_decode_rate{kind}", bytes_per_us / keys, "bytes_per_us")
    prefill_us = terms["prefill_floor"] / MICROSECOND
    entries.add("attention_prefill_floor", prefill_us, "us_per_layer")
    scale = terms["flop"] / terms["pairs"]
    entries.add("attention_prefill_work_scale", scale, "dimensionless")
    if model.moe is not None:
        entries.add("moe_routing_imbalance_median", 1.0, "dimensionless")
    entries.add("host_replay_graph_per_step", terms["replay"] / MICROSECOND, "us_per_step")
    entries.add("host_launch_eager_per_layer", terms["eager"] / MICROSECOND, "us_per_layer")
    entries.add("host_launch_per_kernel", 0.0, "us_per_load")


def _add_requests(entries: _Entries, latency: LinearLatency) -> None:
    """Add the host's times per request, except the time per token, which overlaps with steps."""
    alpha = dict(zip(REQUEST_FEATURES, (latency.alpha / MICROSECOND).tolist(), strict=True))
    phases = ("arrival_to_queue", "queue_to_schedule", "schedule_to_first_token")
    once = sum(alpha[f"{phase}.constant"] for phase in phases)
    entries.add("host_admission_per_request", once, "us_per_request")
    entries.add("host_admission_per_token", alpha["arrival_to_queue.prompt_token"], "us_per_token")
    entries.add("host_output_token", 0.0, "us_per_token")
    entries.add("host_completion", alpha["completion.constant"], "us_per_request")


def _add_collectives(entries: _Entries, deployment: Deployment, law: KernelLaw) -> None:
    """Add entries for all four types of collectives, since BLIS's latency kernel requires them.

    Only all-reduces occur in steps.
    """
    size, gpu, terms = deployment.recipe.tensor_parallel_size, deployment.gpu, law.terms
    floor_us = terms["collective_floor"] / MICROSECOND
    us_per_byte = terms["collective_bytes"] / (gpu.link_bandwidth_bytes_per_s * MICROSECOND)
    beyond = us_per_byte + floor_us / (law.knee * message_bytes(deployment))
    where = f"fp16_{max(size, 2)}rank_{chip_name(gpu).replace('-', '_')}"
    for each in _OPERATIONS:
        entries.add(f"collective_floor_{each}_{where}", floor_us, "us_per_transfer")
        entries.add(f"collective_peak_rate_{each}_{where}", 1 / beyond, "bytes_per_us")
        entries.add(f"collective_transition_rate_{each}_{where}", 1 / us_per_byte, "bytes_per_us")


def _add_memory(entries: _Entries, deployment: Deployment) -> None:
    """Add the GPU memory used for anything other than weights and KV cache.

    With it, BLIS has the same number of KV blocks as pinn's simulator.
    """
    size, layout = deployment.recipe.tensor_parallel_size, kv_layout(deployment, EngineSpec())
    kind = "moe" if deployment.model.moe else "dense"
    usable = deployment.gpu.memory_bytes * deployment.recipe.memory_share
    cache = layout.blocks * layout.block_bytes
    rest = max(usable - cache - gpu_weight_bytes(deployment), 0.0)
    entries.add("engine_workspace_bytes", rest, "bytes_per_rank")
    graphs = graph_mode(deployment).lower()
    entries.add(f"cudagraph_capture_bytes_{graphs}", 0.0, "bytes_per_rank")
    entries.add(f"activation_buffer_count_{kind}_{size}rank", 0.0, "dimensionless")
    entries.add("activation_scratch_floor_bytes", 0.0, "bytes_per_rank")
    if size > 1:
        entries.add(f"nccl_communicator_bytes_{size}rank", 0.0, "bytes_per_rank")


# Documents for BLIS: scenarios, deployments and chips.


def graph_mode(deployment: Deployment) -> str:
    """Return vLLM's CUDA graph mode of a deployment, such as ``FULL_AND_PIECEWISE``."""
    if deployment.serving.enforce_eager:
        return NO_GRAPHS
    return deployment.serving.cudagraph_mode or FULL_AND_PIECEWISE


def run_documents(deployment: Deployment, name: str) -> list[JsonObject]:
    """Return the documents of a BLIS run file: a scenario and its deployment."""
    recipe, serving = deployment.recipe, deployment.serving
    parallel: JsonObject = {"tp": recipe.tensor_parallel_size, "pp": 1, "dp": 1}
    if serving.enable_expert_parallel:
        parallel["enable_expert_parallel"] = True
    engine: JsonObject = {
        "block_size": recipe.block_tokens,
        "max_num_batched_tokens": recipe.token_budget,
        "max_num_seqs": recipe.max_requests,
        "max_model_len": max_model_len(deployment),
        "gpu_memory_utilization": recipe.memory_share,
        "cudagraph_mode": graph_mode(deployment),
        "enable_prefix_caching": bool(serving.enable_prefix_caching),
    }
    if serving.kv_cache_dtype != "auto":
        engine["cache_dtype"] = serving.kv_cache_dtype
    cluster: JsonObject = {
        "hardware": chip_name(deployment.gpu),
        "nodes": 1,
        "gpus_per_node": _GPUS_PER_NODE,
    }
    pool: JsonObject = {"role": "colocated", "nodes": 1, "parallel": parallel, "engine": engine}
    return [
        {
            "kind": "Scenario", "name": name, "model": model_name(deployment),
            "coefficients": [name], "engine_version": ENGINE_VERSION,
            "workload": {"shape": WORKLOAD_NAME}, "cluster": cluster,
        },
        {"kind": "Deployment", "name": name, "pools": [pool]},
    ]  # fmt: skip


def chip_file(gpu: GpuSpec) -> JsonObject:
    """Return a GPU's rates and memory in the format of BLIS's hardware catalog."""
    peak = {kind: rate / 1e12 for kind, rate in gpu.peak_flop_per_s.items()}
    found: JsonObject = {"Provenance": "vendor_spec", "TFlopsPeak": peak["bf16"]}
    names = {"TFlopsFP8": "fp8", "TFlopsNVFP4": "fp4"}
    found |= {name: peak[kind] for name, kind in names.items() if peak.get(kind)}
    return found | {
        "BwPeakTBs": gpu.memory_bandwidth_bytes_per_s / 1e12,
        "MemoryGiB": gpu.memory_bytes / 2**30,
        "IntraNodeBwGBps": gpu.link_bandwidth_bytes_per_s / 1e9,
        "SMCount": gpu.sm_count,
    }

"""Rules of BLIS's registry, scenarios and catalog, and the kernel's law, from its documentation.

Independent of ``pinn.export``, so that a mistake there is found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

UNITS = {
    "dimensionless", "us_per_layer", "us_per_request", "us_per_step", "us_per_hop",
    "us_per_transfer", "us_per_load", "us_per_token", "bytes_per_us", "bytes_per_rank", "tokens",
    "sm_count",
}  # fmt: skip
METHODS = {"measured", "assumed", "not_charged"}
_ENTRY = {"value", "units", "method", "fitted", "scope"}
_MORE = {"rationale", "ci95", "sources", "copied_from", "supersedes", "validated", "unsupported"}
_SCOPE = {"hardware", "model", "tp", "ep", "nodes_spanned"}
_ATTENTION = r"attention_decode_(floor|rate)(_swa|_mla|_sparse_mla)?"
_COLLECTIVE = (
    r"collective_(floor|peak_rate|transition_rate)_(all_reduce|all_gather|reduce_scatter|alltoall)"
    r"_(fp16|int8)_\d+rank_[a-z0-9_]+"
)
_NAMES = re.compile(
    r"hbm_derate|gemm_(eps_max|m_half|n_half|k_half)_(bf16|fp8|nvfp4)|" + _ATTENTION + "|"
    + _COLLECTIVE + r"|attention_prefill_(floor|work_scale)|moe_routing_imbalance_median|"
    r"host_(link_bandwidth|admission_per_token|admission_per_request|output_token|completion|"
    r"launch_eager_per_layer|launch_per_kernel|replay_graph_per_step)|engine_workspace_bytes|"
    r"cudagraph_capture_bytes_[a-z_]+|activation_buffer_count_(dense|moe)_\d+rank|"
    r"activation_scratch_floor_bytes|nccl_communicator_bytes_\d+rank"
)  # fmt: skip
_RUN = {
    "Scenario": {"kind", "name", "model", "coefficients", "engine_version", "workload", "cluster"},
    "Deployment": {"kind", "name", "pools", "offload", "pd_transfer"},
    "cluster": {"hardware", "fabric", "nodes", "gpus_per_node", "gpus_per_rack", "storage"},
    "pool": {"role", "nodes", "parallel", "engine"},
    "parallel": {"tp", "pp", "dp", "dp_local", "pcp", "dcp", "enable_expert_parallel"},
    "engine": {
        "block_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len",
        "gpu_memory_utilization", "scheduling_policy", "async_scheduling", "cudagraph_mode",
        "quantization", "cache_dtype", "enable_prefix_caching",
    },
    "chip": {
        "Provenance", "TFlopsPeak", "TFlopsFP8", "TFlopsNVFP4", "BwPeakTBs", "MemoryGiB",
        "IntraNodeBwGBps", "SMCount", "GPUsPerNode", "GPUsPerRack", "IntraRackBwGBps",
    },
    "shape": {"prefix_tokens", "prompt", "output"},
}  # fmt: skip
#: Names that the kernel requires whatever the deployment.
REQUIRED = ("hbm_derate", "engine_workspace_bytes", "activation_scratch_floor_bytes")

Entry = tuple[str, Mapping[str, Any]]


def read_set(path: Path) -> list[Entry]:
    """Return the entries of a coefficient set that obeys every rule."""
    document = yaml.safe_load(path.read_text())
    assert set(document) == {"kind", "name", "coefficients"}
    assert (document["kind"], document["name"]) == ("CoefficientSet", path.stem)
    entries = [next(iter(entry.items())) for entry in document["coefficients"]]
    assert all(len(entry) == 1 for entry in document["coefficients"])
    seen = set()
    for name, entry in entries:
        assert _NAMES.fullmatch(name), name
        assert _ENTRY <= set(entry) <= _ENTRY | _MORE, name
        assert entry["units"] in UNITS, name
        assert entry["method"] in METHODS, name
        assert not entry["fitted"] or entry["method"] == "measured", name
        assert (entry["value"] == 0) == (entry["method"] == "not_charged"), name
        assert entry["value"] >= 0, name
        assert entry["method"] != "assumed" or entry["rationale"], name
        assert not set(entry["scope"]) - _SCOPE, name
        key = (name, yaml.safe_dump(entry["scope"]))
        assert key not in seen, f"{name} twice for a scope"
        seen.add(key)
    return entries


def read_run(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return scenario and deployment of a run file that obeys every rule."""
    scenario, deployment = yaml.safe_load_all(path.read_text())
    for document in (scenario, deployment):
        assert not set(document) - _RUN[document["kind"]]
    assert scenario["engine_version"] == "0.29.0"
    assert scenario["coefficients"]
    cluster = scenario["cluster"]
    assert not set(cluster) - _RUN["cluster"]
    assert cluster["nodes"] == 1 or "fabric" in cluster
    assert sum(pool["nodes"] for pool in deployment["pools"]) == cluster["nodes"]
    for pool in deployment["pools"]:
        assert not set(pool) - _RUN["pool"]
        assert pool["role"] in ("colocated", "prefill", "decode")
        for part in ("parallel", "engine"):
            assert not set(pool[part]) - _RUN[part]
        assert pool["parallel"]["pp"] == 1
        assert pool["parallel"]["tp"] <= cluster["gpus_per_node"] * pool["nodes"]
        assert 0 < pool["engine"]["gpu_memory_utilization"] <= 1
    return scenario, deployment


def read_chip(path: Path) -> dict[str, Any]:
    """Return a catalog's hardware file that obeys every rule."""
    chip = yaml.safe_load(path.read_text())
    optional = {"TFlopsFP8", "TFlopsNVFP4", "GPUsPerNode", "GPUsPerRack", "IntraRackBwGBps"}
    assert _RUN["chip"] - optional <= set(chip) <= _RUN["chip"]
    assert chip["Provenance"] in ("vendor_spec", "derived")
    return chip


def read_shape(path: Path) -> dict[str, Any]:
    """Return a workload shape that obeys every rule."""
    shape = yaml.safe_load(path.read_text())
    assert not set(shape) - _RUN["shape"]
    for side in ("prompt", "output"):
        assert set(shape[side]) <= {"tokens", "tokens_stdev", "tokens_min", "tokens_max"}
    return shape


def applicable(entries: Sequence[Entry], hardware: str, model: str, tp: int) -> dict[str, float]:
    """Return the value of every name for a cell: the last entry whose scope has it wins."""
    found = {}
    for name, entry in entries:
        scope = entry["scope"]
        named = {"hardware": hardware.lower(), "model": model.lower()}
        fits = all(
            key not in scope or value in [each.lower() for each in scope[key]]
            for key, value in named.items()
        )
        if fits and tp in scope.get("tp", [tp]):
            found[name] = float(entry["value"])
    return found


def step_us(
    value: Mapping[str, float], facts: Mapping[str, float], batch: Mapping[str, float]
) -> float:
    """Return the time of a step without overlap.

    Args:
        value: Coefficients of a cell, as ``applicable`` returns them.
        facts: What the kernel takes from catalog and model: FLOP, bytes and counts per GPU.
        batch: Sums over the batch.
    """
    m, half = batch["tokens"], value["gemm_m_half"]
    peak = facts["flop_per_us"] * value["gemm_eps_max"]
    gemm = (facts["token_flop"] * (m + half) + facts["head_flop"] * batch["requests"]) / peak
    hit = facts["experts"] * (1 - (1 - facts["expert_share"]) ** m)
    memory = facts["bytes_per_us"] * value["hbm_derate"]
    weights = (facts["weight_bytes"] + hit * facts["expert_bytes"]) / memory
    attention = 0.0
    if batch["decodes"]:
        attention += facts["layers"] * value["attention_decode_floor"]
        attention += batch["context"] * facts["kv_bytes"] / value["attention_decode_rate"]
        if "attention_decode_rate_swa" in value:
            near = batch["near"] * facts["near_kv_bytes"]
            attention += near / value["attention_decode_rate_swa"]
    if batch["prompts"]:
        attention += facts["layers"] * value["attention_prefill_floor"]
        pairs = batch["pairs"] * facts["pair_flop"] + batch["near_pairs"] * facts["near_pair_flop"]
        # Pairs have the efficiency of m tokens of the matrix products.
        attention += pairs * (1 + half / m) / peak / value["attention_prefill_work_scale"]
    captured = m <= facts["graph_tokens"]
    host = value["host_replay_graph_per_step"] if captured else (
        facts["layers"] * value["host_launch_eager_per_layer"]
    )  # fmt: skip
    size = m * facts["message_bytes"]
    collective = facts["collectives"] * max(
        value["collective_floor"] + size / value["collective_transition_rate"],
        size / value["collective_peak_rate"],
    )
    return gemm + weights + attention + host + collective

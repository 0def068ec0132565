"""Rules of BLIS's registry, scenarios and catalog, and the kernel's law, from its documentation.

Independent of ``pinn.export``, so that a mistake there is found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
_NAMES = re.compile(
    r"hbm_derate|gemm_(eps_max|m_half|n_half|k_half)_(bf16|fp8|nvfp4)"
    r"|attention_decode_(floor|rate)(_swa|_mla|_sparse_mla)?"
    r"|collective_(floor|peak_rate|transition_rate)_(all_reduce|all_gather|reduce_scatter|alltoall)"
    r"_(fp16|int8)_\d+rank_[a-z0-9_]+"
    r"|attention_prefill_(floor|work_scale)|recurrent_decode_(floor|rate)_(mamba2|kda|gdn)"
    r"|moe_routing_imbalance_median"
    r"|host_(link_bandwidth|admission_per_token|admission_per_request|output_token|completion"
    r"|launch_eager_per_layer|launch_per_kernel|replay_graph_per_step)"
    r"|engine_workspace_bytes|cudagraph_capture_bytes_[a-z_]+"
    r"|activation_buffer_count_(dense|moe)_\d+rank|activation_scratch_floor_bytes"
    r"|nccl_communicator_bytes_\d+rank"
)
#: Shares of a peak, which no efficiency exceeds.
_SHARES = re.compile(r"hbm_derate|gemm_eps_max_.*")
_KEYS = {
    "Scenario": {"kind", "name", "model", "coefficients", "engine_version", "workload", "cluster"},
    "Deployment": {"kind", "name", "pools", "offload", "pd_transfer"},
    "cluster": {"hardware", "fabric", "nodes", "gpus_per_node", "gpus_per_rack", "storage"},
    "pool": {"role", "nodes", "parallel", "engine"},
    "parallel": {"tp", "pp", "dp", "dp_local", "pcp", "dcp", "enable_expert_parallel"},
    "engine": {
        "block_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len",
        "gpu_memory_utilization", "scheduling_policy", "async_scheduling", "cudagraph_mode",
        "quantization", "cache_dtype", "enable_prefix_caching", "disable_cascade_attn",
        "all2all_backend", "disable_custom_all_reduce", "allreduce_backend", "speculative",
    },
    "chip": {
        "Provenance", "TFlopsPeak", "TFlopsFP8", "TFlopsNVFP4", "BwPeakTBs", "MemoryGiB",
        "IntraNodeBwGBps", "SMCount", "GPUsPerNode", "GPUsPerRack", "IntraRackBwGBps",
    },
    "shape": {"prefix_tokens", "prompt", "output"},
    "lengths": {"tokens", "tokens_stdev", "tokens_min", "tokens_max"},
}  # fmt: skip
_OPTIONAL = {"TFlopsFP8", "TFlopsNVFP4", "GPUsPerNode", "GPUsPerRack", "IntraRackBwGBps"}
_MODES = {"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"}
#: Chips of BLIS's own catalog.
CATALOG = {
    "a100-80", "a100-sxm", "b200", "b300", "gb200-nvl72", "gb300", "h100", "h200", "l40s",
}  # fmt: skip

Entry = tuple[str, Mapping[str, Any]]


class RuleError(Exception):
    """A document breaks a documented rule."""


def check(condition: object, message: str) -> None:
    """Raise ``RuleError`` unless a condition is true."""
    if not condition:
        raise RuleError(message)


def _keys(document: Mapping[str, Any], allowed: Collection[str], what: str) -> None:
    unknown = set(document) - set(allowed)
    check(not unknown, f"{what} has unknown keys {sorted(unknown)}")


def read_set(path: Path) -> list[Entry]:
    """Return the entries of a coefficient set that obeys every rule."""
    document = yaml.safe_load(path.read_text())
    check(set(document) == {"kind", "name", "coefficients"}, "keys of a CoefficientSet")
    check((document["kind"], document["name"]) == ("CoefficientSet", path.stem), "kind and name")
    check(all(len(entry) == 1 for entry in document["coefficients"]), "one name per entry")
    entries = [next(iter(entry.items())) for entry in document["coefficients"]]
    seen = set()
    for name, entry in entries:
        check(_NAMES.fullmatch(name), f"{name} is no name of the vocabulary")
        check(set(entry) >= _ENTRY, f"{name} lacks keys")
        _keys(entry, _ENTRY | _MORE, name)
        _check_value(name, entry)
        _keys(entry["scope"], _SCOPE, f"{name}'s scope")
        cell = (name, yaml.safe_dump(entry["scope"]))
        check(cell not in seen, f"{name} twice for a scope")
        seen.add(cell)
    return entries


def _check_value(name: str, entry: Mapping[str, Any]) -> None:
    value, method = entry["value"], entry["method"]
    check(entry["units"] in UNITS, f"{name} has unknown units")
    check(method in METHODS, f"{name} has an unknown method")
    check(type(entry["fitted"]) is bool, f"{name}: fitted is true or false")
    check(not entry["fitted"] or method == "measured", f"{name} is fitted and not measured")
    check((value == 0) == (method == "not_charged"), f"{name}: 0 is not_charged, nothing else is")
    check(isinstance(value, int | float) and np.isfinite(value) and value >= 0, f"{name}'s value")
    check(method != "assumed" or entry.get("rationale"), f"{name} is assumed without a rationale")
    check(not _SHARES.fullmatch(name) or 0 < value <= 1, f"{name} is a share of a peak")


def required_names(formats: Sequence[str], chip: str, tp: int, mode: str, *, moe: bool) -> set[str]:
    """Return the names without which the kernel does not start."""
    where = f"fp16_{max(tp, 2)}rank_{chip.replace('-', '_')}"
    found = {
        "hbm_derate", "engine_workspace_bytes", "activation_scratch_floor_bytes",
        f"cudagraph_capture_bytes_{mode.lower()}",
        f"activation_buffer_count_{'moe' if moe else 'dense'}_{tp}rank",
    }  # fmt: skip
    found |= {f"gemm_{part}_{each}" for each in formats for part in ("eps_max", "m_half")}
    parts = ("floor", "peak_rate", "transition_rate")
    found |= {f"collective_{part}_{each}_{where}" for part in parts for each in OPERATIONS}
    return found | ({f"nccl_communicator_bytes_{tp}rank"} if tp > 1 else set())


def read_run(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return scenario and deployment of a run file that obeys every rule."""
    scenario, deployment = yaml.safe_load_all(path.read_text())
    for document, kind in ((scenario, "Scenario"), (deployment, "Deployment")):
        check(document["kind"] == kind, f"a {kind} is expected")
        _keys(document, _KEYS[kind], kind)
    check(scenario["engine_version"] == "0.29.0", "rules exist for 0.29.0 alone")
    check(scenario["coefficients"], "no coefficient set is named")
    cluster = scenario["cluster"]
    _keys(cluster, _KEYS["cluster"], "cluster")
    check(cluster["nodes"] == 1 or "fabric" in cluster, "several nodes need a fabric")
    pools = deployment["pools"]
    nodes = sum(pool["nodes"] for pool in pools)
    check(nodes == cluster["nodes"], "pools' nodes are the cluster's")
    for pool in pools:
        _check_pool(pool, cluster)
    return scenario, deployment


def _check_pool(pool: Mapping[str, Any], cluster: Mapping[str, Any]) -> None:
    parallel, engine = pool["parallel"], pool["engine"]
    _keys(pool, _KEYS["pool"], "pool")
    _keys(parallel, _KEYS["parallel"], "parallel")
    _keys(engine, _KEYS["engine"], "engine")
    check(pool["role"] in ("colocated", "prefill", "decode"), "a pool's role")
    check(parallel["pp"] == 1, "the kernel refuses pipeline stages")
    gpus = parallel["tp"] * parallel["dp"]
    check(gpus <= cluster["gpus_per_node"] * pool["nodes"], "more ranks than GPUs")
    check(0 < engine["gpu_memory_utilization"] <= 1, "gpu_memory_utilization")
    check(engine["cudagraph_mode"] in _MODES, "cudagraph_mode")
    for key in ("block_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len"):
        check(type(engine[key]) is int and engine[key] > 0, key)


def read_chip(path: Path) -> dict[str, Any]:
    """Return a catalog's hardware file that obeys every rule."""
    chip = _catalog(path)
    _keys(chip, _KEYS["chip"], path.name)
    check(set(chip) >= _KEYS["chip"] - _OPTIONAL, f"{path.name} lacks keys")
    check(chip["Provenance"] in ("vendor_spec", "derived"), "Provenance")
    return chip


def read_shape(path: Path) -> dict[str, Any]:
    """Return a workload shape that obeys every rule."""
    shape = _catalog(path)
    _keys(shape, _KEYS["shape"], path.name)
    for side in ("prompt", "output"):
        lengths = shape[side]
        _keys(lengths, _KEYS["lengths"], side)
        low, high = lengths.get("tokens_min", 1), lengths.get("tokens_max", lengths["tokens"])
        check(0 < low <= lengths["tokens"] <= high, f"{side} lengths")
    return shape


def _catalog(path: Path) -> dict[str, Any]:
    """Return a catalog's file without its comments, which these files alone may have."""
    document = yaml.safe_load(path.read_text())
    return {key: value for key, value in document.items() if not key.startswith("_comment")}


def applicable(entries: Sequence[Entry], hardware: str, model: str, tp: int) -> dict[str, float]:
    """Return the value of every name for a cell: the last entry whose scope has it wins."""
    found = {}
    cell = {"hardware": hardware.lower(), "model": model.lower(), "tp": tp}
    for name, entry in entries:
        scope = {
            key: [each.lower() if isinstance(each, str) else each for each in values]
            for key, values in entry["scope"].items()
        }
        if all(value in scope.get(key, [value]) for key, value in cell.items()):
            found[name] = float(entry["value"])
    return found


def step_us(
    value: Mapping[str, float], facts: Mapping[str, float], batch: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return the times of steps without overlap.

    Args:
        value: Coefficients of a cell, as ``applicable`` returns them, without format, operation and
            attention in their names.
        facts: What the kernel takes from catalog and model: FLOP, bytes and counts per GPU.
        batch: Sums over each batch.
    """
    m, half = batch["tokens"], value["gemm_m_half"]
    peak = facts["flop_per_us"] * value["gemm_eps_max"]
    gemm = (facts["token_flop"] * (m + half) + facts["head_flop"] * batch["requests"]) / peak
    hit = facts["experts"] * (1 - (1 - facts["expert_share"]) ** m)
    memory = facts["bytes_per_us"] * value["hbm_derate"]
    weights = (facts["weight_bytes"] + hit * facts["expert_bytes"]) / memory
    decode = facts["layers"] * value["attention_decode_floor"]
    decode = decode + batch["context"] * facts["kv_bytes"] / value["attention_decode_rate"]
    if "attention_decode_rate_swa" in value:
        near = batch["near"] * facts["near_kv_bytes"]
        decode = decode + near / value["attention_decode_rate_swa"]
    pairs = batch["pairs"] * facts["pair_flop"] + batch["near_pairs"] * facts["near_pair_flop"]
    # Pairs have the efficiency of m tokens of the matrix products.
    prefill = facts["layers"] * value["attention_prefill_floor"]
    prefill = prefill + pairs * (1 + half / m) / peak / value["attention_prefill_work_scale"]
    eager = facts["layers"] * value["host_launch_eager_per_layer"]
    host = np.where(m <= facts["graph_tokens"], value["host_replay_graph_per_step"], eager)
    size = m * facts["message_bytes"]
    collective = facts["collectives"] * np.maximum(
        value["collective_floor"] + size / value["collective_transition_rate"],
        size / value["collective_peak_rate"],
    )
    attention = np.where(batch["decodes"] > 0, decode, 0)
    attention = attention + np.where(batch["prompts"] > 0, prefill, 0)
    return gemm + weights + attention + host + collective

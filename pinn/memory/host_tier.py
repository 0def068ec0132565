"""Second KV cache tier in host memory: its capacity, policies and bandwidth.

Sources: vLLM's native offloading (``vllm/v1/kv_offload/cpu.py`` to 0.20, ``cpu/spec.py`` since),
``vllm/config/vllm.py: _post_init_kv_transfer_config``, lmcache 0.5.6 (``v1/config.py``), and
SGLang's HiCache (``sglang/srt/mem_cache/memory_pool_host.py``, later ``pool_host/base.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import (
    DIRECT,
    NATIVE,
    WRITE_BACK,
    WRITE_THROUGH,
    EngineSpec,
)
from pinn.engines.recipe import release, served_release
from pinn.errors import PinnError
from pinn.memory.kv_layout import KvLayout, state_layers
from pinn.specs.model import LatentAttentionSpec
from pinn.specs.serving import SGLANG, VLLM
from pinn.units import GIB

LRU, ARC = POLICIES = ("lru", "arc")
#: Types of KV cache tiers. In the first three types, stored blocks become readable when their
#: request, their transfer job or their step ends. A ``BY_NODE`` tier stores nodes of SGLang's radix
#: tree.
BY_REQUEST, BY_JOB, BY_STEP, BY_NODE = "by_request", "by_job", "by_step", "by_node"
#: vLLM's KV connectors that store keys and values in host memory. Other connectors are not
#: modelled.
OFFLOADING, LMCACHE_V1 = "OffloadingConnector", "LMCacheConnectorV1"
#: Modelled keys of OffloadingConnector's extra configuration.
_KEYS = {
    "cpu_bytes_to_use", "block_size", "blocks_per_chunk", "eviction_policy", "offload_prompt_only",
    "spec_name",
}  # fmt: skip
#: Modelled keys of LMCache's configuration, with their defaults (v1/config.py). Sizes are in GiB
#: per GPU.
_LMCACHE = {
    "lmcache.local_cpu": True, "lmcache.max_local_cpu_size": 5.0, "lmcache.chunk_size": 256,
}  # fmt: skip
#: First vLLM releases with four properties, in this order: the OffloadingConnector exists; the
#: layers of a block are contiguous; chunks whose last token is unknown are also stored; and
#: transfers are jobs (vllm/v1/kv_offload and offloading/scheduler.py).
_FIRST, _IN_A_ROW, _KEEPS_UNKNOWN, _JOBS = (0, 11, 0), (0, 15, 0), (0, 20, 0), (0, 22, 0)
#: First vLLM release that by default stores only prompts (kv_offload/base.py: OffloadingSpec), and
#: in which LMCache is a separate server.
_PROMPTS = (0, 31, 0)
#: First vLLM release in which the ARC policy does not crash the engine at the first store.
_ARC_WORKS = (0, 20, 0)
_PAGE_BYTES = 4096
#: First SGLang release with ``UnifiedRadixCache``. Its predecessor ``HiRadixCache`` needs a host
#: pool larger than the GPU's. Releases 0.5.13 to 0.5.18, whose source was not read, are treated
#: like older ones.
_UNIFIED = (0, 5, 19)
#: First SGLang release that rounds the host pool up to whole pages plus one; earlier releases round
#: down (memory_pool_host.py).
_ROUNDS_UP = (0, 5, 9)
#: Number of insertions into the prefix tree after which a node is stored
#: (``write_through_threshold``), by write policy.
_THROUGH, _SELECTIVE = 1, 2


@dataclass(frozen=True)
class HostTier:
    """Second tier of the KV cache of one replica, in host memory.

    Attributes:
        gpus: Number of GPUs of a replica that each store a part of every block.
        chunks: Capacity of the tier in chunks, the units of storing and eviction.
        chunk_blocks: Number of the GPU's KV cache blocks per chunk.
        policy: Eviction policy: ``lru`` or ``arc``.
        kind: Type of tier: ``BY_REQUEST``, ``BY_JOB``, ``BY_STEP`` or ``BY_NODE``.
        prompt_only: Whether only chunks of prompts are stored.
        skips_unknown: Whether chunks are not stored if their last token is still unknown when their
            step is scheduled.
        block_bytes: Bytes of a block on one GPU, transferred over that GPU's PCIe link.
        block_s: Time to transfer a block over the link, in seconds.
        latency_s: Fixed latency of a transfer in seconds, independent of its size.
        hits: Number of insertions of a prefix tree's node after which it is stored; 0 if nodes are
            stored when the GPU evicts them.
        unified: Whether the prefix tree is SGLang's ``UnifiedRadixCache``.
        layers: Number of layers that a load transfers one after another.
    """

    gpus: int
    chunks: int
    chunk_blocks: int
    policy: str
    kind: str
    prompt_only: bool
    skips_unknown: bool
    block_bytes: float
    block_s: float
    latency_s: float
    hits: int = 0
    unified: bool = False
    layers: int = 1


def tier_block_bytes(layout: KvLayout) -> float:
    """Return the bytes per GPU of one block of all KV cache groups, the unit of transfers."""
    return layout.block_bytes * (layout.full_groups + layout.window_groups)


def host_tier(deployment: Deployment, spec: EngineSpec, layout: KvLayout) -> HostTier | None:
    """Return the second KV cache tier of a deployment, or None.

    Raises:
        PinnError: If flags contradict each other, or request a tier that is not modelled.
    """
    if not spec.offloads:
        return None
    named = deployment.serving.engine
    if spec.connects and named != VLLM:
        raise PinnError(
            f"{named} has no --kv-offloading-size or --kv-transfer-config: omit these flags, or "
            "give --engine vllm"
        )
    if spec.enable_hierarchical_cache and named != SGLANG:
        raise PinnError(
            f"{named} has no --enable-hierarchical-cache: omit this flag, or give --engine sglang"
        )
    if spec.enable_hierarchical_cache:
        return _hicache(deployment, spec, layout)
    connector, extra = _connector(deployment, spec)
    if connector == LMCACHE_V1:
        return _lmcache(deployment, spec, layout, extra)
    return _native(deployment, spec, layout, extra)


def _native(
    deployment: Deployment, spec: EngineSpec, layout: KvLayout, extra: Mapping[str, Any]
) -> HostTier:
    """Return the host memory tier of vLLM's OffloadingConnector."""
    named = served_release(VLLM, deployment.serving.engine_version)
    version = release(named)
    if version < _FIRST:
        raise PinnError(
            f"vLLM {named} has no OffloadingConnector: omit --kv-offloading-size "
            "and --kv-transfer-config, or give --engine-version 0.11.0 or later"
        )
    policy = str(extra.get("eviction_policy", LRU))
    if policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise PinnError(f"eviction_policy is {policy!r}, which is unknown: use one of {known}")
    if policy == ARC and version < _ARC_WORKS:
        raise PinnError(
            f"vLLM {named} stops at the first store with eviction_policy arc "
            "(v1/kv_offload/arc_manager.py: touch): use eviction_policy lru, or --engine-version "
            "0.20.0 or later"
        )
    by_job, blocks = version >= _JOBS, _chunk_blocks(extra, deployment.recipe.block_tokens)
    block_bytes = tier_block_bytes(layout)
    gpus = _gpus(deployment, by_job)
    chunk_bytes = int(block_bytes) * gpus * blocks
    if by_job:
        chunk_bytes = -(-chunk_bytes // _PAGE_BYTES) * _PAGE_BYTES
    return HostTier(
        gpus=gpus,
        chunks=int(_cpu_bytes(spec, extra) // chunk_bytes),
        chunk_blocks=blocks,
        policy=policy,
        kind=BY_JOB if by_job else BY_REQUEST,
        prompt_only=version >= _PROMPTS and bool(extra.get("offload_prompt_only", True)),
        skips_unknown=version < _KEEPS_UNKNOWN,
        block_s=_block_s(deployment, spec, block_bytes, version),
        block_bytes=block_bytes,
        latency_s=spec.host_link_latency_s,
    )


def _block_s(
    deployment: Deployment, spec: EngineSpec, block_bytes: float, version: tuple[int, ...]
) -> float:
    """Return the time to transfer a block in seconds: transfer of the bytes plus time per copy.

    Since vLLM 0.31, a block has one page per layer (v1/kv_offload/cpu/gpu_worker.py). In 0.15 to
    0.22, all layers of a block are contiguous (OffloadingConnector.prefer_cross_layer_blocks).
    Before 0.15, each layer has a page of keys and one of values (worker/cpu_gpu.py, split_k_and_v).
    """
    layers = sum(group.count for group in deployment.model.layer_groups)
    pages = -(-layers // deployment.recipe.pipeline_parallel_size)
    copies = pages if version >= _PROMPTS else 1 if version >= _IN_A_ROW else 2 * pages
    rate = spec.host_link_bytes_per_s or deployment.gpu.pcie_bandwidth_bytes_per_s
    return block_bytes / rate + copies * spec.host_link_copy_s


def _gpus(deployment: Deployment, by_job: bool) -> int:
    """Return how many GPUs store a part of each block; 1 if all of them cache the same MLA keys."""
    recipe = deployment.recipe
    mixers = [group.attention for group in deployment.model.layer_groups]
    latent = all(isinstance(mixer, LatentAttentionSpec) for mixer in mixers)
    if by_job and latent and recipe.pipeline_parallel_size == 1:
        return 1
    return recipe.tensor_parallel_size * recipe.pipeline_parallel_size


def _lmcache(
    deployment: Deployment, spec: EngineSpec, layout: KvLayout, extra: Mapping[str, Any]
) -> HostTier | None:
    """Return LMCache's tier in host memory, or None if LMCache does not use host memory.

    Engine steps wait for copies to and from this tier (lmcache/v1/gpu_connector/gpu_connectors.py).
    """
    given, recipe = dict(_LMCACHE) | dict(extra), deployment.recipe
    if not given["lmcache.local_cpu"]:
        return None
    gpus = recipe.tensor_parallel_size * recipe.pipeline_parallel_size
    size = float(given["lmcache.max_local_cpu_size"])
    if spec.kv_offloading_size:
        size = spec.kv_offloading_size / gpus
    tokens = int(given["lmcache.chunk_size"])
    blocks = tokens // recipe.block_tokens if tokens % recipe.block_tokens == 0 else 0
    if blocks < 1:
        raise PinnError(
            f"LMCache's chunk of {tokens} tokens is not a multiple of the GPU's "
            f"KV block of {recipe.block_tokens} tokens: give another "
            "lmcache.chunk_size or --block-size"
        )
    block_bytes = tier_block_bytes(layout)
    version = release(served_release(VLLM, deployment.serving.engine_version))
    return HostTier(
        gpus=gpus,
        chunks=int(size * GIB // (block_bytes * blocks)),
        chunk_blocks=blocks,
        policy=LRU,
        kind=BY_STEP,
        prompt_only=True,
        skips_unknown=False,
        block_s=_block_s(deployment, spec, block_bytes, version),
        block_bytes=block_bytes,
        latency_s=spec.host_link_latency_s,
    )


def _hicache(deployment: Deployment, spec: EngineSpec, layout: KvLayout) -> HostTier:
    """Return the host memory tier of SGLang's HiCache.

    By default, a GPU kernel reads and writes pages over the link. The ``direct`` backend copies
    keys and values for each layer and page (mem_cache/memory_pool_host.py:
    load_to_device_per_layer).
    """
    recipe, kinds = deployment.recipe, [g.attention for g in deployment.model.layer_groups]
    if any(getattr(kind, "window_tokens", None) for kind in kinds) or state_layers(
        deployment.model
    ):
        raise PinnError(
            "HiCache is not modelled for models with sliding windows or "
            f"recurrent states, such as {deployment.model.name}: omit "
            "--enable-hierarchical-cache"
        )
    if not recipe.prefix_caching:
        raise PinnError(
            "--enable-hierarchical-cache and --disable-radix-cache exclude each other "
            "(server_args.py): omit one of the two flags"
        )
    named = served_release(SGLANG, deployment.serving.engine_version)
    version, gpus = release(named), recipe.tensor_parallel_size * recipe.pipeline_parallel_size
    size = int(spec.hicache_ratio * layout.blocks * recipe.block_tokens)
    if spec.hicache_size:
        size = int(spec.hicache_size * 1e9 // (layout.block_bytes / recipe.block_tokens))
    pages = size // recipe.block_tokens + (version >= _ROUNDS_UP)
    if version < _UNIFIED and pages <= layout.blocks:
        raise PinnError(
            f"HiCache's host memory has room for {pages * recipe.block_tokens:,} tokens, expected "
            f"more than the {layout.blocks * recipe.block_tokens:,} of the GPU's cache, which "
            f"SGLang {named} needs to start (memory_pool_host.py): raise --hicache-ratio or "
            "--hicache-size"
        )
    layers = sum(group.count for group in deployment.model.layer_groups)
    latent = all(isinstance(kind, LatentAttentionSpec) for kind in kinds)
    direct = spec.hicache_io_backend == DIRECT or spec.hicache_mem_layout.endswith(DIRECT)
    copies = layers * (1 if latent else 2) * direct
    rate = spec.host_link_bytes_per_s or deployment.gpu.pcie_bandwidth_bytes_per_s
    hits = _THROUGH if spec.hicache_write_policy == WRITE_THROUGH else _SELECTIVE
    return HostTier(
        gpus=gpus,
        chunks=pages,
        chunk_blocks=1,
        policy=LRU,
        kind=BY_NODE,
        prompt_only=False,
        skips_unknown=False,
        block_s=layout.block_bytes / rate + copies * spec.host_link_copy_s,
        block_bytes=layout.block_bytes,
        latency_s=spec.host_link_latency_s,
        hits=0 if spec.hicache_write_policy == WRITE_BACK else hits,
        unified=version >= _UNIFIED,
        layers=layers,
    )


def _connector(deployment: Deployment, spec: EngineSpec) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the KV connector and its ``kv_connector_extra_config``.

    Raises:
        PinnError: If the JSON is invalid, or names an unsupported connector or key.
    """
    config = read_transfer_config(spec.kv_transfer_config)
    connector = str(config.get("kv_connector", ""))
    if spec.kv_offloading_size:
        connector = OFFLOADING if spec.kv_offloading_backend == NATIVE else LMCACHE_V1
        named = served_release(VLLM, deployment.serving.engine_version)
        if connector == LMCACHE_V1 and release(named) >= _PROMPTS:
            raise PinnError(
                f"--kv-offloading-backend lmcache of vLLM {named} is a separate "
                "server whose size is unknown: use --kv-offloading-backend native, or "
                f"--kv-transfer-config with {LMCACHE_V1}"
            )
    if connector not in (OFFLOADING, LMCACHE_V1):
        raise PinnError(
            f"--kv-transfer-config has the connector {connector!r}, which is not "
            f"modelled: use {OFFLOADING} or {LMCACHE_V1}"
        )
    extra = config.get("kv_connector_extra_config", {})
    known = _KEYS if connector == OFFLOADING else set(_LMCACHE)
    unknown = sorted(set(extra) - known)
    if unknown:
        raise PinnError(
            f"kv_connector_extra_config has keys that are not modelled with {connector} "
            f"({', '.join(unknown)}): use {', '.join(sorted(known))}"
        )
    name = extra.get("spec_name", "CPUOffloadingSpec")
    if name != "CPUOffloadingSpec":
        raise PinnError(f"spec_name is {name!r}, which is not modelled: use CPUOffloadingSpec")
    return connector, extra


def read_transfer_config(text: str) -> dict[str, Any]:
    """Return the JSON object in ``--kv-transfer-config``.

    Raises:
        PinnError: If the text is not a JSON object.
    """
    try:
        found = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise PinnError(
            f"--kv-transfer-config must be a JSON object, got {text!r} ({error}): correct the text"
        ) from error
    if not isinstance(found, dict):
        raise PinnError(f"--kv-transfer-config must be a JSON object, got {text!r}")
    return found


def _cpu_bytes(spec: EngineSpec, extra: Mapping[str, Any]) -> float:
    """Return the capacity of the host memory tier in bytes, summed over all GPUs of a replica."""
    if spec.kv_offloading_size:
        return spec.kv_offloading_size * GIB
    size = extra.get("cpu_bytes_to_use")
    if not isinstance(size, int | float) or size <= 0:
        raise PinnError(
            "cpu_bytes_to_use of kv_connector_extra_config must be a positive number of bytes, got "
            f"{size!r}: correct the value, or give --kv-offloading-size in GiB"
        )
    return float(size)


def _chunk_blocks(extra: Mapping[str, Any], block_tokens: int) -> int:
    """Return the number of GPU blocks per chunk.

    It is computed from ``block_size`` in tokens, or read from ``blocks_per_chunk``.
    """
    if "blocks_per_chunk" in extra:
        if "block_size" in extra:
            raise PinnError(
                "kv_connector_extra_config has both block_size and blocks_per_chunk: omit one of "
                "the two keys"
            )
        blocks = int(extra["blocks_per_chunk"])
    else:
        tokens = int(extra.get("block_size", block_tokens))
        blocks = tokens // block_tokens if tokens % block_tokens == 0 else 0
    if blocks < 1:
        raise PinnError(
            "block_size of kv_connector_extra_config must be a multiple of the "
            f"GPU's KV block of {block_tokens} tokens, got {extra.get('block_size')}"
        )
    return blocks

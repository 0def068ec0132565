"""Whether configurations fit their GPUs, for people, JSON and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinn.simulator.memory_fit import MemoryFit, memory_fit, smallest_tensor_parallel_size
from pinn.specs.deployment import Deployment

_SIZE = "tensor_parallel_size"
#: Flags that do not move memory: CUDA graphs are captured once the cache has its size.
_IDLE = {
    "enforce_eager", "max_cudagraph_capture_size", "enable_prefix_caching", "generation_config",
    "override_generation_config",
}  # fmt: skip


def memory_entry(deployment: Deployment) -> dict[str, Any]:
    """``fits``, ``kv_tokens`` of a replica's cache, the smallest size that fits, and the reason."""
    fit = memory_fit(deployment)
    smallest = smallest_tensor_parallel_size(deployment)
    return {
        "fits": fit.fits,
        "kv_tokens": fit.kv_tokens,
        "smallest_tensor_parallel_size": smallest,
        "reason": fit.reason or None,
    }


def memory_line(entry: Mapping[str, Any]) -> str:
    """Whether the model fits, in a sentence."""
    smallest = entry["smallest_tensor_parallel_size"]
    if entry["fits"]:
        fewest = f"; the smallest tensor-parallel size that fits is {smallest}" if smallest else ""
        return f"memory: fits, with a KV cache of {entry['kv_tokens']:,} tokens{fewest}"
    fewest = (
        f"--tensor-parallel-size {smallest} is the smallest that fits"
        if smallest
        else "no tensor-parallel size up to 32 fits"
    )
    return f"memory: DOES NOT FIT; {fewest}: {entry['reason']}"


def memory_columns(
    configurations: Sequence[Mapping[str, Any]], deployments: Sequence[Deployment]
) -> dict[str, Any]:
    """Columns ``fits``, ``kv_tokens`` and ``smallest_tensor_parallel_size`` of a table.

    Rows that differ in the tensor-parallel size alone share what is found.
    """
    import pyarrow as pa  # one configuration needs no tables

    alike: dict[tuple[Any, ...], dict[int, MemoryFit]] = {}
    keys = []
    deciding = {name for configuration in configurations for name in configuration}
    deciding -= {_SIZE, *_IDLE}
    for configuration, deployment in zip(configurations, deployments, strict=True):
        key = tuple(map(configuration.get, deciding))
        size = deployment.serving.tensor_parallel_size
        sizes = alike.setdefault(key, {})
        if size not in sizes:
            sizes[size] = memory_fit(deployment)
        keys.append((key, size, deployment))
    smallest: dict[tuple[Any, ...], int | None] = {}
    for key, _, deployment in keys:
        if key not in smallest:
            smallest[key] = smallest_tensor_parallel_size(deployment, alike[key])
    fits = [alike[key][size] for key, size, _ in keys]
    return {
        "fits": [fit.fits for fit in fits],
        "kv_tokens": pa.array([fit.kv_tokens for fit in fits], pa.int64()),
        "smallest_tensor_parallel_size": pa.array([smallest[k] for k, _, _ in keys], pa.int64()),
    }

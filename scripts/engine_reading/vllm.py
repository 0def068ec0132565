"""What vLLM does by default, by release."""

from __future__ import annotations

from engine_reading.table import Line
from engine_reading.wheel import EngineSource

#: Every release that was read, oldest first.
RELEASES = (
    "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0", "0.14.1", "0.15.0",
    "0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0",
    "0.20.1", "0.20.2", "0.21.0", "0.22.1", "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1",
    "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0",
)  # fmt: skip
#: Releases of which the index has no build for CPUs; their wheels are of hundreds of MB.
_CUDA_ONLY = ("0.33.0",)


def requirement(version: str) -> str:
    """What pip is asked for: the build for CPUs has the same Python files in a tenth of the size."""
    return f"vllm{'' if version in _CUDA_ONLY else '-cpu'}=={version}"


def memory_share(source: EngineSource) -> list[Line]:
    path, name = "vllm/config/cache.py", "CacheConfig.gpu_memory_utilization"
    share = source.constant(path, name)
    return [Line("gpu_memory_utilization", value=f"{share:g}", source=f"{path}: {name}")]


READERS = (memory_share,)

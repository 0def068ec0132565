"""vLLM's defaults that depend on the GPU, for its OpenAI-compatible API server.

Source: vLLM 0.15.1, ``vllm/engine/arg_utils.py``, ``EngineArgs.get_batch_defaults`` (lines 1808 to
1889): the larger pair where the device has at least 70 GiB and "a100" is not in its name. vLLM
then lowers ``max_num_batched_tokens`` to ``max_num_seqs * max_model_len`` and ``max_num_seqs`` to
``max_num_batched_tokens`` where they are larger (lines 2001 to 2016), which depends on the model.
"""

from __future__ import annotations

from typing import Any

from pinn.specs.gpu import GpuSpec
from pinn.units import GIB

_LARGE_MEMORY_BYTES = 70 * GIB


def gpu_defaults(gpu: GpuSpec) -> dict[str, Any]:
    """The flags whose default depends on the GPU, with their defaults on this one."""
    return {
        "max_num_batched_tokens": default_max_num_batched_tokens(gpu),
        "max_num_seqs": default_max_num_seqs(gpu),
    }


def default_max_num_batched_tokens(gpu: GpuSpec) -> int:
    """Tokens per step where ``--max-num-batched-tokens`` is not given."""
    return 8192 if _is_large(gpu) else 2048


def default_max_num_seqs(gpu: GpuSpec) -> int:
    """Requests per step where ``--max-num-seqs`` is not given."""
    return 1024 if _is_large(gpu) else 256


def _is_large(gpu: GpuSpec) -> bool:
    return gpu.memory_bytes >= _LARGE_MEMORY_BYTES and "a100" not in gpu.name.lower()

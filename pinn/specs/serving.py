"""What is known about the engine before it serves: vLLM's own flags."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pinn.errors import PinnError
from pinn.specs.sampling import Sampling, overridden

#: vLLM captures graphs of no larger steps by default (``vllm/config/vllm.py:
#: _set_cudagraph_sizes``).
MOST_GRAPH_TOKENS = 512
GENERATION_CONFIGS = ("auto", "vllm")
KV_CACHE_DTYPES = ("auto", "bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class ServingSpec:
    """A vLLM configuration; every field is the flag of that name (``--tensor-parallel-size``).

    Defaults are those of vLLM 0.15.1's OpenAI server on a GPU with at least 70 GiB
    (``vllm/engine/arg_utils.py``). ``max_model_len`` None means the model's own maximum,
    ``max_cudagraph_capture_size`` None twice ``max_num_seqs`` and 512 at most.
    Expert parallelism spans tensor times data parallel ranks, as in vLLM. ``generation_config``
    ``auto`` samples as the model's generation_config.json says, ``vllm`` by vLLM's own defaults;
    ``override_generation_config`` is a JSON object that goes before either. What clients ask for
    themselves goes there too: ``{"temperature": 0}`` where they want the likeliest tokens.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    max_cudagraph_capture_size: int | None = None
    block_size: int = 16
    cpu_offload_gb: float = 0.0
    kv_cache_dtype: str = "auto"
    generation_config: str = "auto"
    override_generation_config: str = ""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and (isinstance(value, bool) or value != int(value) or value < 1):
                raise PinnError(
                    f"--{f.name.replace('_', '-')} must be a positive whole number, got {value!r}"
                )
        if self.max_model_len is not None and self.max_model_len < 1:
            raise PinnError(f"--max-model-len must be positive, got {self.max_model_len}")
        if self.max_cudagraph_capture_size is not None and self.max_cudagraph_capture_size < 1:
            raise PinnError(
                "--max-cudagraph-capture-size must be positive, got "
                f"{self.max_cudagraph_capture_size}: --enforce-eager turns graphs off"
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise PinnError(
                f"--gpu-memory-utilization must be in (0, 1], got {self.gpu_memory_utilization}"
            )
        if not self.cpu_offload_gb >= 0:
            raise PinnError(f"--cpu-offload-gb must not be negative, got {self.cpu_offload_gb}")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise PinnError(
                f"--kv-cache-dtype {self.kv_cache_dtype!r} is unknown: "
                f"use one of {', '.join(KV_CACHE_DTYPES)}"
            )
        if self.generation_config not in GENERATION_CONFIGS:
            raise PinnError(
                f"--generation-config {self.generation_config!r} is unknown: use auto, or vllm, "
                "with --override-generation-config for settings of your own"
            )
        overridden(Sampling(), self.override_generation_config)

    @property
    def graph_tokens(self) -> int:
        """Tokens of the largest step that a CUDA graph is captured of; 0 without graphs.

        ``vllm/config/vllm.py: _set_cudagraph_sizes``.
        """
        if self.enforce_eager:
            return 0
        return self.max_cudagraph_capture_size or min(2 * self.max_num_seqs, MOST_GRAPH_TOKENS)

    @property
    def expert_parallel_size(self) -> int:
        """GPUs over which whole experts are spread; 1 without expert parallelism."""
        return (
            self.tensor_parallel_size * self.data_parallel_size
            if self.enable_expert_parallel
            else 1
        )

    @property
    def expert_tensor_parallel_size(self) -> int:
        """GPUs over which each expert's matrices are cut.

        vLLM flattens tensor and data parallel ranks for the experts either way
        (``FusedMoEParallelConfig.make``): whole experts with expert parallelism, slices without.
        """
        return (
            1
            if self.enable_expert_parallel
            else self.tensor_parallel_size * self.data_parallel_size
        )

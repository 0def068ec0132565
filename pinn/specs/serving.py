"""What is known about the engine before it serves: vLLM's own flags."""

from __future__ import annotations

from dataclasses import dataclass

from pinn.specs.flags import check_flags, flag
from pinn.specs.sampling import Sampling, overridden

#: vLLM captures graphs of no larger steps by default (``vllm/config/vllm.py:
#: _set_cudagraph_sizes``).
MOST_GRAPH_TOKENS = 512
GENERATION_CONFIGS = ("auto", "vllm")
KV_CACHE_DTYPES = ("auto", "bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class ServingSpec:
    """A vLLM configuration; every field is the flag of that name (``--tensor-parallel-size``).

    A field is all that a flag needs to be an option, a key, a column and a field of the Go struct
    (``make flags`` writes that one).

    Defaults are those of vLLM 0.15.1's OpenAI server on a GPU with at least 70 GiB
    (``vllm/engine/arg_utils.py``). ``max_model_len`` None means the model's own maximum,
    ``max_cudagraph_capture_size`` None twice ``max_num_seqs`` and 512 at most.
    Expert parallelism spans tensor times data parallel ranks, as in vLLM. ``generation_config``
    ``auto`` samples as the model's generation_config.json says, ``vllm`` by vLLM's own defaults;
    ``override_generation_config`` is a JSON object that goes before either. What clients ask for
    themselves goes there too: ``{"temperature": 0}`` where they want the likeliest tokens.
    """

    tensor_parallel_size: int = flag(
        1, "GPUs that share each layer.", least=1, shorts=("-tp",), decides_cost=True
    )
    pipeline_parallel_size: int = flag(
        1, "Stages of layers.", least=1, shorts=("-pp",), decides_cost=True
    )
    data_parallel_size: int = flag(
        1,
        "Replicas of the attention; experts span them.",
        least=1,
        shorts=("-dp",),
        decides_cost=True,
    )
    enable_expert_parallel: bool = flag(False, "Whole experts on each GPU.", decides_cost=True)
    max_num_batched_tokens: int = flag(
        8192, "Tokens per step.", unit="tokens", least=1, shown="vLLM's for the GPU"
    )
    max_num_seqs: int = flag(
        1024, "Requests per step.", unit="requests", least=1, shown="vLLM's for the GPU"
    )
    max_model_len: int | None = flag(
        None, "Longest context.", unit="tokens", least=1, shown="the model's"
    )
    gpu_memory_utilization: float = flag(0.9, "Share of memory to use.", above=0, most=1)
    enable_chunked_prefill: bool = flag(True, "Cut long prompts.")
    enable_prefix_caching: bool = flag(True, "Reuse common prefixes.")
    enforce_eager: bool = flag(False, "Launch without CUDA graphs.", decides_cost=True)
    max_cudagraph_capture_size: int | None = flag(
        None,
        "Tokens of the largest step in a CUDA graph.",
        unit="tokens",
        least=1,
        shown="2 x max-num-seqs, at most 512",
        remedy="--enforce-eager turns graphs off",
        decides_cost=True,
    )
    block_size: int = flag(16, "Tokens per KV block.", unit="tokens", least=1)
    cpu_offload_gb: float = flag(
        0.0, "Weights per GPU kept in host memory.", unit="GiB", least=0, decides_cost=True
    )
    kv_cache_dtype: str = flag("auto", "Format of the KV cache.", allowed=KV_CACHE_DTYPES)
    generation_config: str = flag(
        "auto",
        "Sample as the model asks (auto) or vLLM's own way (vllm).",
        allowed=GENERATION_CONFIGS,
        remedy="use auto, or vllm, with --override-generation-config for settings of your own",
    )
    override_generation_config: str = flag(
        "", "JSON of sampling settings in place of the model's, or those that clients send."
    )

    def __post_init__(self) -> None:
        check_flags(self)
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

"""Flags of the supported engines, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass

from pinn.errors import PinnError
from pinn.specs.flags import check_flags, flag, flags_of
from pinn.specs.model import Sampling, overridden
from pinn.specs.pooling import GENERATE, POOLING
from pinn.specs.speculation import MOST_TOKENS, NONE, read_acceptance

VLLM, SGLANG, TRTLLM = ENGINES = ("vllm", "sglang", "trtllm")
GENERATION_CONFIGS = ("auto", "vllm")
#: SGLang's name for the library (DeepEP) that exchanges tokens between the experts' GPUs.
DEEPEP = "deepep"
#: vLLM's CUDA graph modes: graphs of whole steps, graphs of the pieces between attention layers, or
#: no graphs. ``FULL_AND_PIECEWISE`` captures decode steps as a whole and steps with prompts in
#: pieces.
CUDAGRAPH_MODES = FULL_AND_PIECEWISE, FULL_DECODE_ONLY, FULL, PIECEWISE, NO_GRAPHS = (
    "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL", "PIECEWISE", "NONE",
)  # fmt: skip
#: Precisions of fp32 matrix products (``torch.set_float32_matmul_precision``): ``highest`` outside
#: the tensor cores, ``high`` on them in TF32, ``medium`` in TF32 or bf16.
FLOAT32_PRECISIONS = ("highest", "high", "medium")
RUNNERS = ("auto", GENERATE, POOLING)
#: Ways to distribute an image encoder over tensor-parallel GPUs: each GPU has a part of every
#: matrix, or each GPU encodes whole images.
ENCODER_MODES = WEIGHTS, DATA = ("weights", "data")
KV_CACHE_DTYPES = ("auto", "bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class ServingSpec:
    """An engine and its flags.

    Each field, with its row in ``data/engines/flags.csv``, defines a flag: an option of the
    commands, a key of lists and a column of tables. A field has vLLM's name for the flag, or the
    name in the first engine that has the flag. Its row has the help text and the other engines'
    names, which are accepted everywhere. The meaning of a flag may differ by engine: SGLang's
    tensor-parallel size counts all GPUs. ``pinn.engines.recipe_rules`` resolves the flags into the
    engine's configuration.

    None means the engine's default on the GPU (``data/engines/defaults.csv``). A ``max_model_len``
    of None is the model's own maximum. An empty ``engine_version`` means the reference release in
    that table. With ``generation_config`` ``auto``, sampling follows the model's
    generation_config.json; with ``vllm``, vLLM's own defaults. ``override_generation_config`` is a
    JSON object that takes precedence over both. The object also contains settings that clients
    send, such as ``{"temperature": 0}`` for greedy sampling.
    """

    tensor_parallel_size: int = flag(1, least=1, shorts=("-tp",), decides_cost=True)
    pipeline_parallel_size: int = flag(1, least=1, shorts=("-pp",), decides_cost=True)
    data_parallel_size: int = flag(1, least=1, shorts=("-dp",), decides_cost=True)
    enable_expert_parallel: bool = flag(False, shorts=("-ep",), decides_cost=True)
    max_num_batched_tokens: int | None = flag(None, least=1)
    max_num_seqs: int | None = flag(None, least=1)
    max_model_len: int | None = flag(None, least=1)
    gpu_memory_utilization: float | None = flag(None, above=0, most=1)
    enable_chunked_prefill: bool | None = flag(None)
    enable_prefix_caching: bool = flag(True)
    async_scheduling: bool | None = flag(None)
    enforce_eager: bool = flag(False, decides_cost=True)
    max_cudagraph_capture_size: int | None = flag(None, least=1, decides_cost=True)
    cudagraph_mode: str = flag("", allowed=CUDAGRAPH_MODES, engines=(VLLM,), decides_cost=True)
    float32_matmul_precision: str = flag("", allowed=FLOAT32_PRECISIONS, decides_cost=True)
    block_size: int | None = flag(None, least=1)
    cpu_offload_gb: float = flag(0.0, least=0, decides_cost=True)
    enable_lora: bool = flag(False, engines=(VLLM,))
    max_loras: int = flag(1, least=1, engines=(VLLM,))
    max_lora_rank: int = flag(16, least=1, engines=(VLLM,))
    kv_cache_dtype: str = flag("auto", allowed=KV_CACHE_DTYPES)
    mm_encoder_tp_mode: str = flag(WEIGHTS, allowed=ENCODER_MODES, engines=(VLLM, SGLANG))
    runner: str = flag("auto", allowed=RUNNERS)
    generation_config: str = flag("auto", allowed=GENERATION_CONFIGS)
    override_generation_config: str = flag("")
    engine: str = flag(VLLM, allowed=ENGINES, decides_cost=True)
    engine_version: str = flag("", decides_cost=True)
    ep_size: int | None = flag(None, least=1, engines=(SGLANG, TRTLLM), decides_cost=True)
    enable_dp_attention: bool = flag(False, engines=(SGLANG, TRTLLM), decides_cost=True)
    moe_a2a_backend: str = flag(
        "none", allowed=("none", DEEPEP), engines=(SGLANG,), decides_cost=True
    )
    max_prefill_tokens: int | None = flag(None, least=1, engines=(SGLANG,))
    scheduler_recv_interval: int | None = flag(None, least=1, engines=(SGLANG,))
    schedule_conservativeness: float = flag(1.0, above=0, engines=(SGLANG,))
    enable_prefill_delayer: bool = flag(False, engines=(SGLANG,))
    prefill_delayer_max_delay_passes: int = flag(30, least=1, engines=(SGLANG,))
    prefill_schedule_interval: int = flag(1, least=1, engines=(VLLM,))
    batch_wait_timeout_iters: int = flag(0, least=0, engines=(TRTLLM,))
    batch_wait_max_tokens_ratio: float = flag(0.0, least=0, most=1, engines=(TRTLLM,))
    attention_dp_timeout_iters: int = flag(0, least=0, engines=(TRTLLM,))
    cudagraph_padding: bool | None = flag(None, engines=(SGLANG, TRTLLM))
    fuse_all_reduce: bool | None = flag(None)
    moe_backend: str = flag("")
    sampling_backend: str = flag("")
    speculative_config: str = flag(NONE)
    speculative_num_steps: int | None = flag(None, least=1, most=MOST_TOKENS, engines=(SGLANG,))
    speculative_eagle_topk: int | None = flag(None, least=1, most=MOST_TOKENS, engines=(SGLANG,))
    speculative_num_draft_tokens: int | None = flag(
        None, least=2, most=MOST_TOKENS, engines=(SGLANG,)
    )
    speculative_draft_model_path: str = flag("", engines=(SGLANG,))
    speculative_acceptance: str = flag("")
    disaggregation_mode: str = flag("null", allowed=("null",))

    def __post_init__(self) -> None:
        check_flags(self)
        overridden(Sampling(), self.override_generation_config)
        if self.speculative_acceptance:
            read_acceptance(self.speculative_acceptance)
        for each in flags_of(ServingSpec):
            foreign = each.engines and self.engine not in each.engines
            if foreign and getattr(self, each.name) != each.default:
                remedy = f"omit {each.option}, or give an --engine that has this flag"
                raise PinnError(f"{self.engine} has no flag {each.option}: {remedy}")

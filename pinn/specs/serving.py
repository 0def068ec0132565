"""What is known about the engine before it serves: its flags, whatever it calls them."""

from __future__ import annotations

from dataclasses import dataclass

from pinn.errors import PinnError
from pinn.specs.flags import check_flags, flag, flags_of
from pinn.specs.model import Sampling, overridden
from pinn.specs.speculation import MOST_TOKENS, NONE, read_acceptance

VLLM, SGLANG, TRTLLM = ENGINES = ("vllm", "sglang", "trtllm")
GENERATION_CONFIGS = ("auto", "vllm")
#: What SGLang calls the library that carries tokens between experts' GPUs.
DEEPEP = "deepep"
#: Whole steps, their pieces between attention layers, or none; ``FULL_AND_PIECEWISE`` captures
#: decodes whole and steps with prompts in pieces.
CUDAGRAPH_MODES = FULL_AND_PIECEWISE, FULL_DECODE_ONLY, FULL, PIECEWISE, NO_GRAPHS = (
    "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL", "PIECEWISE", "NONE",
)  # fmt: skip
KV_CACHE_DTYPES = ("auto", "bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2")

_OWN = "the engine's"


@dataclass(frozen=True)
class ServingSpec:
    """An engine and its flags.

    A field is all that a flag needs to be an option, a key and a column. It is named as vLLM names
    it, or as the first engine that has it; ``spelled`` holds the names of the others, which stand
    for it everywhere. What it means is each engine's own: SGLang counts all GPUs as tensor parallel
    ones.
    ``pinn.engines.recipe_rules`` turns flags into what runs.

    None means the engine's default on the GPU, from ``data/engines/defaults.csv``;
    ``max_model_len`` None means the model's own maximum. ``engine_version`` empty stands for the
    release that the table names. ``generation_config`` ``auto`` samples as the model's
    generation_config.json says, ``vllm`` by vLLM's own defaults; ``override_generation_config`` is
    a JSON object that goes before either. What clients ask for themselves goes there too:
    ``{"temperature": 0}`` where they want the likeliest tokens.
    """

    tensor_parallel_size: int = flag(
        1, "GPUs that share each layer.", least=1, shorts=("-tp",), spelled={SGLANG: "tp_size"},
        decides_cost=True,
    )  # fmt: skip
    pipeline_parallel_size: int = flag(
        1, "Stages of layers.", least=1, shorts=("-pp",), spelled={SGLANG: "pp_size"},
        decides_cost=True,
    )  # fmt: skip
    data_parallel_size: int = flag(
        1, "Replicas of the attention; experts span them.", least=1, shorts=("-dp",),
        spelled={SGLANG: "dp_size"}, decides_cost=True,
    )  # fmt: skip
    enable_expert_parallel: bool = flag(
        False, "Whole experts on each GPU.", shorts=("-ep",), decides_cost=True
    )
    max_num_batched_tokens: int | None = flag(
        None, "Tokens per step.", unit="tokens", least=1, shown=f"{_OWN} for the GPU",
        spelled={SGLANG: "chunked_prefill_size", TRTLLM: "max_num_tokens"},
    )  # fmt: skip
    max_num_seqs: int | None = flag(
        None, "Requests per step.", unit="requests", least=1, shown=f"{_OWN} for the GPU",
        spelled={SGLANG: "max_running_requests", TRTLLM: "max_batch_size"},
    )  # fmt: skip
    max_model_len: int | None = flag(
        None, "Longest context.", unit="tokens", least=1, shown="the model's",
        spelled={SGLANG: "context_length", TRTLLM: "max_seq_len"},
    )  # fmt: skip
    gpu_memory_utilization: float | None = flag(
        None, "Share of memory to use.", above=0, most=1, shown=_OWN,
        spelled={SGLANG: "mem_fraction_static", TRTLLM: "free_gpu_memory_fraction"},
    )  # fmt: skip
    enable_chunked_prefill: bool | None = flag(None, "Cut long prompts.", shown=_OWN)
    enable_prefix_caching: bool = flag(
        True,
        "Reuse common prefixes.",
        spelled={SGLANG: "no_disable_radix_cache", TRTLLM: "enable_block_reuse"},
    )
    enforce_eager: bool = flag(
        False, "Launch without CUDA graphs.", spelled={SGLANG: "disable_cuda_graph"},
        decides_cost=True,
    )  # fmt: skip
    max_cudagraph_capture_size: int | None = flag(
        None, "Largest captured CUDA graph, in tokens.", unit="tokens", least=1, shown=_OWN,
        spelled={SGLANG: "cuda_graph_max_bs", TRTLLM: "cuda_graph_max_batch_size"},
        remedy="--enforce-eager turns graphs off", decides_cost=True,
    )  # fmt: skip
    cudagraph_mode: str = flag(
        "", "Which steps run as CUDA graphs: vLLM's compilation config of the name.",
        allowed=CUDAGRAPH_MODES, shown=_OWN, engines=(VLLM,), decides_cost=True,
    )  # fmt: skip
    block_size: int | None = flag(
        None, "Tokens per KV block.", unit="tokens", least=1, shown=_OWN,
        spelled={SGLANG: "page_size", TRTLLM: "tokens_per_block"},
    )  # fmt: skip
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
    engine: str = flag(VLLM, "What serves.", allowed=ENGINES, decides_cost=True)
    engine_version: str = flag(
        "", "Its release, which decides defaults.", shown="that of the defaults' table",
        decides_cost=True,
    )  # fmt: skip
    ep_size: int | None = flag(
        None, "GPUs over which whole experts are spread.", least=1, shown="1",
        spelled={TRTLLM: "moe_expert_parallel_size"}, engines=(SGLANG, TRTLLM), decides_cost=True,
    )  # fmt: skip
    enable_dp_attention: bool = flag(
        False, "Each GPU attends to requests of its own.", spelled={TRTLLM: "enable_attention_dp"},
        engines=(SGLANG, TRTLLM), decides_cost=True,
    )  # fmt: skip
    moe_a2a_backend: str = flag(
        "none",
        "What carries tokens to experts on other GPUs: none gathers all tokens on every GPU, "
        "deepep spreads the experts over all GPUs.", allowed=("none", DEEPEP), engines=(SGLANG,),
        decides_cost=True,
    )  # fmt: skip
    max_prefill_tokens: int | None = flag(
        None, "Prompt tokens after which a prefill step takes no further request.", unit="tokens",
        least=1, shown=_OWN, engines=(SGLANG,),
    )  # fmt: skip
    scheduler_recv_interval: int | None = flag(
        None, "Decode steps between two looks at the queue of new requests.", least=1, shown="1",
        engines=(SGLANG,),
    )  # fmt: skip
    schedule_conservativeness: float = flag(
        1.0, "How long outputs are expected to be, relative to the usual guess.", above=0,
        engines=(SGLANG,),
    )  # fmt: skip
    batch_wait_timeout_iters: int = flag(
        0, "Steps that prompts wait for more, up to batch_wait_max_tokens_ratio.", least=0,
        engines=(TRTLLM,),
    )  # fmt: skip
    batch_wait_max_tokens_ratio: float = flag(
        0.0, "Share of a step's token budget that ends that wait.", least=0, most=1,
        engines=(TRTLLM,),
    )  # fmt: skip
    attention_dp_timeout_iters: int = flag(
        0, "Steps that prompts wait for one on every rank (attention_dp_config: enable_balance).",
        least=0, engines=(TRTLLM,),
    )  # fmt: skip
    cudagraph_padding: bool | None = flag(
        None, "Round decode batches up to the sizes of CUDA graphs.", shown=_OWN,
        spelled={SGLANG: "no_disable_cuda_graph_padding", TRTLLM: "cuda_graph_padding"},
        engines=(SGLANG, TRTLLM),
    )  # fmt: skip
    fuse_all_reduce: bool | None = flag(
        None, "All-reduce and norm in one kernel.", shown=_OWN,
        spelled={SGLANG: "enable_flashinfer_allreduce_fusion"},
    )  # fmt: skip
    moe_backend: str = flag(
        "", "Kernels of the experts, such as auto, triton, marlin or flashinfer_cutlass.",
        shown=_OWN, spelled={SGLANG: "moe_runner_backend"},
    )  # fmt: skip
    sampling_backend: str = flag("", "Kernels of the sampler.", shown=_OWN)
    speculative_config: str = flag(
        NONE,
        "Speculative decoding: vLLM's or TensorRT-LLM's JSON object, or SGLang's algorithm.",
        spelled={SGLANG: "speculative_algorithm"},
    )
    speculative_num_steps: int | None = flag(
        None, "Tokens drafted one after the other.", least=1, most=MOST_TOKENS, shown=_OWN,
        engines=(SGLANG,),
    )  # fmt: skip
    speculative_eagle_topk: int | None = flag(
        None, "Drafts that each step carries on.", least=1, most=MOST_TOKENS, shown=_OWN,
        engines=(SGLANG,),
    )  # fmt: skip
    speculative_num_draft_tokens: int | None = flag(
        None, "Tokens of a request that a step verifies.", least=2, most=MOST_TOKENS, shown=_OWN,
        engines=(SGLANG,),
    )  # fmt: skip
    speculative_draft_model_path: str = flag(
        "", "Draft of the algorithm.", shown="the model's own layer", engines=(SGLANG,)
    )
    speculative_acceptance: str = flag(
        "",
        "Chance that a drafted token is accepted, or one for each position, given those before; "
        "or vLLM's metrics page, whose counters tell.",
        shown="a published one",
    )
    disaggregation_mode: str = flag(
        "null",
        "What a server of prefill and decode apart does, which is refused.",
        allowed=("null",),
        remedy="leave it out, and describe both pools: pinn simulate --prefill --decode",
    )

    def __post_init__(self) -> None:
        check_flags(self)
        overridden(Sampling(), self.override_generation_config)
        if self.speculative_acceptance:
            read_acceptance(self.speculative_acceptance)
        for each in flags_of(ServingSpec):
            foreign = each.engines and self.engine not in each.engines
            if foreign and getattr(self, each.name) != each.default:
                remedy = "leave it out, or give its --engine"
                raise PinnError(f"{self.engine} has no {each.option}: {remedy}")

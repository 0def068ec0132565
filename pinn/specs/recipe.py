"""What really runs: an engine's flags and defaults as physical quantities.

Costs, features and simulator read a recipe; none of them asks which engine it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pinn.specs.scheduler_rules import SchedulerRules
from pinn.specs.speculation import Speculation

#: Kinds of schedules: prompts and decodes in one step, or prompts in steps of their own.
FUSED, PREFILL_FIRST = "fused", "prefill_first"
#: What a request needs to be admitted: room for its next step, for a guess of what all running ones
#: will still write, or for whole outputs.
NEXT_STEP, ESTIMATE, COMPLETION = "next_step", "estimate", "completion"
#: What the memory share is of: all memory less a measured reserve, all memory, or what weights and
#: activations leave free.
TOTAL, STATIC, FREE = "total", "static", "free"
#: How tokens reach experts on other ranks: to those that need them, or to all.
ALL_TO_ALL, GATHER = "all_to_all", "gather"
#: How requests are spread over replicas.
LEAST_LOADED, ROUND_ROBIN = "least_loaded", "round_robin"

#: What set a field: a flag that was given, the engine's default, a default that nobody read in its
#: source, or the way the engine is built.
FLAG, DEFAULT, ASSUMED, DESIGN = "flag", "default", "assumed", "design"


@dataclass(frozen=True)
class Origin:
    """What set a field of a recipe.

    Attributes:
        kind: ``FLAG``, ``DEFAULT``, ``ASSUMED`` or ``DESIGN``.
        text: The flag, or the source of the default with its version.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class EffectiveRecipe:
    """How a deployment runs, whatever engine it is of.

    Parallel sizes are those of the layers: ``tensor_parallel_size`` GPUs share an attention layer,
    ``data_parallel_size`` such groups attend to requests of their own, and the experts of all
    those GPUs are spread over ``expert_parallel_size`` of them and cut
    ``expert_tensor_parallel_size`` times.

    Attributes:
        schedule: ``FUSED`` or ``PREFILL_FIRST``.
        token_budget: Tokens of a step of one replica; of a prefill step where those are apart.
        prompt_budget: Prompt tokens after which a prefill step takes no further request.
        chunked_prefill: Whether prompts are cut to fit the budget.
        chunk_multiple: What a chunk that is not a prompt's last is rounded down to, in tokens.
        max_requests: Running requests of one replica.
        admission: ``NEXT_STEP``, ``ESTIMATE`` or ``COMPLETION``.
        admission_share: Under ``ESTIMATE``, the share of an output that is expected at first.
        poll_interval: Decode steps between two looks at the queue of new requests.
        prompt_wait_steps: Steps that new prompts wait for others while decodes go on; 0 for none.
        prompt_wait_tokens: Tokens of a step that end the wait; under attention data parallelism a
            prompt for every replica does.
        overlap: Whether a step is planned while the one before runs.
        scheduler: How the scheduler does what its releases do in different ways.
        routing: How requests are spread over replicas: ``LEAST_LOADED`` or ``ROUND_ROBIN``.
        tensor_parallel_size: GPUs that share an attention layer.
        data_parallel_size: Groups of those.
        pipeline_parallel_size: Stages of layers.
        expert_parallel_size: GPUs over which whole experts are spread.
        expert_tensor_parallel_size: GPUs over which each expert is cut.
        expert_exchange: ``ALL_TO_ALL`` or ``GATHER``.
        kv_cache_dtype: Format of the KV cache; ``auto`` for what the checkpoint says.
        prefix_caching: Whether common prefixes are found.
        block_tokens: Tokens per block of the KV cache, which prefixes are found in.
        memory_share: Share of memory for weights and KV cache.
        memory_share_of: ``TOTAL``, ``STATIC`` or ``FREE``.
        graph_tokens: Tokens of the largest step with prompts that is launched as CUDA graphs; 1
            where only decodes are, 0 without graphs.
        graph_requests: Decodes of the largest step without prompts that is; 0 for no limit.
        graph_sizes: Numbers of decodes that graphs are captured for and a step is rounded up to;
            empty where coefficients were fitted to steps that are not rounded.
        fused_all_reduce: Whether an all-reduce and the norm after it are one kernel.
        fused_quantization: Whether that kernel quantizes its result, too.
        all_reduce_latency: Of a message up to 256 KiB, relative to vLLM's own kernel.
        latent_launches: Of a layer's latent attention beyond vLLM's, in those of a dense layer.
        decode_kernels: Kernels of decode attention: ``AUTO`` or ``XQA``.
        moe_kernels: Kernels of the experts: ``AUTO``, ``TRITON``, ``CUTLASS`` or ``MARLIN``.
        mxfp4_kernels: What ``AUTO`` is for experts in mxfp4: ``AUTO`` for what it is of vLLM,
            ``FUSED_TRITON`` or ``TORCH_FLOW``.
        sampler: Family of the sampler's kernels.
        speculation: What speculative decoding drafts and verifies; None without it.
        origins: Field to what set it.
    """

    schedule: str
    token_budget: int
    prompt_budget: int
    chunked_prefill: bool
    chunk_multiple: int
    max_requests: int
    admission: str
    admission_share: float
    poll_interval: int
    prompt_wait_steps: int
    prompt_wait_tokens: int
    overlap: bool
    scheduler: SchedulerRules
    routing: str
    tensor_parallel_size: int
    data_parallel_size: int
    pipeline_parallel_size: int
    expert_parallel_size: int
    expert_tensor_parallel_size: int
    expert_exchange: str
    kv_cache_dtype: str
    prefix_caching: bool
    block_tokens: int
    memory_share: float
    memory_share_of: str
    graph_tokens: int
    graph_requests: int
    graph_sizes: tuple[int, ...]
    fused_all_reduce: bool
    fused_quantization: bool
    all_reduce_latency: float
    latent_launches: float
    decode_kernels: str
    moe_kernels: str
    mxfp4_kernels: str
    sampler: str
    speculation: Speculation | None
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Fields that nobody set or read in the engine's source."""
        return tuple(name for name, origin in self.origins.items() if origin.kind == ASSUMED)

    def described(self) -> dict[str, dict[str, Any]]:
        """Field to ``value``, ``set_by`` and ``source``, ready for JSON."""
        found = {}
        for each in fields(self):
            if each.name == "origins":
                continue
            value, origin = getattr(self, each.name), self.origins[each.name]
            shown = list(value) if isinstance(value, tuple) else value
            told = isinstance(value, SchedulerRules | Speculation)
            shown = value.described() if told else shown
            found[each.name] = {"value": shown, "set_by": origin.kind, "source": origin.text}
        return found

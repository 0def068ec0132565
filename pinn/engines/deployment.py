"""Deployments: a model on a GPU with an engine's flags, which together determine step times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from pinn.common import documents, files
from pinn.engines import kernel_choice
from pinn.engines import recipe as recipes
from pinn.engines.kernel_choice import MARLIN, named_kernels
from pinn.engines.recipe import EffectiveRecipe, Origin
from pinn.engines.recipe_rules import effective_recipe
from pinn.engines.refusals import refusal_of
from pinn.errors import PinnError, RefusedError
from pinn.specs import model as models
from pinn.specs.catalog import load_model
from pinn.specs.gpu import GpuSpec
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import (
    Attention,
    CompressedAttentionSpec,
    LatentAttentionSpec,
    LayerGroup,
    ModelSpec,
    Sampling,
)
from pinn.specs.model_names import find_in_catalog
from pinn.specs.precision import ACTIVATION_BYTES, Precision, precision
from pinn.specs.serving import VLLM, ServingSpec
from pinn.specs.speculation import DRAFT_MODEL, EAGLE3, MTP, Speculation

# Draft models: a model's own prediction layer, EAGLE's layer, or a separate smaller model.

#: Vocabulary size of EAGLE-3's draft models (``draft_vocab_size`` of Llama 3's published drafts).
EAGLE3_VOCABULARY = 32_000


@dataclass(frozen=True)
class Draft:
    """Draft model of speculative decoding that runs on the GPU.

    Attributes:
        model: Layers and output head of the draft model.
        joined: Number of vectors (the token's embedding and outputs of the target model's layers)
            that a projection maps to one hidden state; 0 without a projection. The 16-bit
            projection is replicated on every GPU.
        shares_head: Whether the draft model uses the output head and embedding of the target model.
    """

    model: ModelSpec
    joined: int = 0
    shares_head: bool = False

    @property
    def projection_weights(self) -> int:
        """Return the number of weights of the draft model's projection."""
        return self.joined * self.model.hidden_size**2


@lru_cache(maxsize=1024)
def draft_of(target: ModelSpec, speculation: Speculation) -> Draft | None:
    """Return the draft model for a target model, or None if drafting does not use the GPU.

    - Multi-token prediction: one more layer like the model's last one (DeepSeek-V3, arXiv
      2412.19437, section 2.2).
    - EAGLE: one dense 16-bit layer (arXiv 2401.15077). EAGLE-3's layer sees three layers of the
      target (arXiv 2503.01840). Without a config.json, EAGLE's layer is assumed to have the
      target's attention, and a feed-forward part with the width that a token uses in the target.

    Raises:
        PinnError: If a draft model is not found.
    """
    if speculation.passes == 0:
        return None
    if speculation.method == DRAFT_MODEL:
        return Draft(load_model(speculation.draft))
    if speculation.method == MTP:
        return Draft(prediction_layer(target), 2, True)
    joined = 3 if speculation.method == EAGLE3 else 2
    model = _published(speculation.draft) or eagle_layer(target)
    if speculation.method == EAGLE3:
        model = replace(model, vocab_size=min(model.vocab_size, EAGLE3_VOCABULARY))
    return Draft(model, joined, speculation.method != EAGLE3)


def _layers(target: ModelSpec, group: LayerGroup, name: str) -> ModelSpec:
    return replace(target, name=name, layer_groups=(group,), extra_parameters=0)


def _published(draft: str) -> ModelSpec | None:
    """Return a draft model whose config.json is a local file or in the catalog, otherwise None."""
    if draft and (files.given_path(draft).exists() or find_in_catalog(draft) is not None):
        return load_model(draft)
    return None


def _attention_group(target: ModelSpec) -> LayerGroup:
    """Return the target's last group of layers with softmax attention and a feed-forward part."""
    usual = [g for g in target.layer_groups if isinstance(g.attention, Attention) and g.ffn]
    if not usual:
        raise PinnError(
            f"{target.name} has no layer with attention and a feed-forward network from which the "
            "draft model's layer could be derived: give a draft model, or draft by n-grams"
        )
    return usual[-1]


def prediction_layer(target: ModelSpec) -> ModelSpec:
    """Return a model of one prediction layer, which is like the target model's last layer."""
    return _layers(target, replace(_attention_group(target), count=1), f"{target.name} MTP")


def eagle_layer(target: ModelSpec) -> ModelSpec:
    """Return a model of one dense 16-bit layer with the target's attention."""
    last = _attention_group(target)
    assert isinstance(last.attention, Attention)
    attention = replace(last.attention, window_tokens=None)
    ffn = last.ffn
    if isinstance(ffn, models.MoeFfnSpec):
        ffn = models.DenseFfnSpec(ffn.top_k * ffn.width + ffn.shared_width)
    layer = _layers(target, LayerGroup(1, attention, ffn), f"{target.name} EAGLE")
    return replace(layer, precisions=models.WeightPrecisions())


# Effects of recurrent states (Mamba, gated delta net) on a configuration: larger blocks in vLLM,
# and no prefix caching.
#
# vLLM stores states in the same pool of blocks as keys and values. vLLM enlarges a block until a
# layer's keys and values take as much memory as a layer's state. A request has one block per group
# of recurrent layers. A state belongs to one exact prefix, so engines can reuse a shared prefix
# only if they stored the state at its end. From 0.28 on, vLLM also stores states at the ends of
# blocks, which is not modelled.

#: The number of tokens per KV block must be a multiple of this number for FlashAttention. For MLA
#: kernels, it must be a multiple of ``latent_state_block`` in ``data/engines/defaults.csv``.
KERNEL_TOKENS = 16
#: Tokens between checkpoints of recurrent states within a prompt, by type of recurrent layer. The
#: tokens per KV block are a multiple of this number (vllm 0.33.0 v1/attention/backends/gdn_attn.py:
#: FLASHINFER_GDN_CHECKPOINT_ALIGNMENT).
_CHECKPOINT_TOKENS = {"gated_delta": 64}
#: Tokens per block of DeepSeek-V4's keys in vLLM, for any ``--block-size``
#: (deepseek_v4/nvidia/flashmla.py: get_supported_kernel_block_sizes).
COMPRESSED_BLOCK = 256

_NOT_MODELLED = (
    "prefix caching of recurrent states, which vLLM caches at block boundaries, is not modelled: "
)
_OTHERS = "prefix caching of recurrent states is not modelled"


def with_states(recipe: EffectiveRecipe, d: Deployment) -> EffectiveRecipe:
    """Set the prefix caching and block size that a model with recurrent states requires.

    The updated configuration is returned; for a model without recurrent states it is unchanged.
    vLLM keeps states in KV blocks. A model without keys and values has one block, which covers the
    longest context. Other engines keep states in a separate pool.

    Args:
        recipe: Resolved engine configuration from flags and defaults.
        d: Deployment with this configuration.
    """
    states = [g.attention for g in d.model.layer_groups if isinstance(g.attention, LinearMixerSpec)]
    if not states:
        return recipe
    origins = {**recipe.origins, "prefix_caching": Origin(recipes.ASSUMED, _OTHERS)}
    if d.serving.engine != VLLM:
        return replace(recipe, prefix_caching=False, origins=origins)
    version = recipes.served_release(VLLM, d.serving.engine_version)
    found = recipes.engine_default(VLLM, "state_prefix_caching", version, d.gpu)
    finds = found.value == "yes"
    kind, said = (recipes.ASSUMED, _NOT_MODELLED) if finds else (recipes.DEFAULT, "")
    origins["prefix_caching"] = Origin(kind, said + found.source)
    aligned = recipes.engine_default(VLLM, "latent_state_block", version, d.gpu)
    origins["block_tokens"] = Origin(recipes.DESIGN, aligned.source)
    block = _block_tokens(recipe, d, states[0], int(aligned.value))
    return replace(recipe, prefix_caching=False, block_tokens=block, origins=origins)


def _block_tokens(
    recipe: EffectiveRecipe, d: Deployment, state: LinearMixerSpec, latent_tokens: int
) -> int:
    attention = [g.attention for g in d.model.layer_groups if isinstance(g.attention, Attention)]
    if not attention:
        return d.longest_context
    tp, mixer = recipe.tensor_parallel_size, attention[0]
    step = latent_tokens if isinstance(mixer, LatentAttentionSpec) else KERNEL_TOKENS
    if keeps_state_ends(d) and state.kind in recipe.scheduler.state_checkpoints.split():
        step = math.lcm(step, _CHECKPOINT_TOKENS.get(state.kind, 1))
    token_bytes = cached_width(mixer, tp) * d.kv_precision(recipe).bytes_per_weight
    steps = -(-state.state_bytes(tp) // (step * token_bytes))
    return max(recipe.block_tokens, min(int(steps) * step, documents.MOST_MODEL_SIZE))


def _with_compressed_keys(recipe: EffectiveRecipe, d: Deployment) -> EffectiveRecipe:
    if d.serving.engine != VLLM or recipe.block_tokens == COMPRESSED_BLOCK:
        return recipe
    if not any(isinstance(g.attention, CompressedAttentionSpec) for g in d.model.layer_groups):
        return recipe
    text = "vllm 0.20.0 to 0.33.0 DeepSeek-V4's kernels: get_supported_kernel_block_sizes"
    origins = {**recipe.origins, "block_tokens": Origin(recipes.DESIGN, text)}
    return replace(recipe, block_tokens=COMPRESSED_BLOCK, origins=origins)


def _with_whole_prompts(recipe: EffectiveRecipe, d: Deployment) -> EffectiveRecipe:
    """Disable chunked prefill and prefix caching if the model has bidirectional attention.

    Tokens of these models attend to later ones, so no part of a prompt can be computed separately.
    Source: vllm 0.33.0 config/model.py: is_chunked_prefill_supported, is_prefix_caching_supported.
    """
    if not d.model.bidirectional:
        return recipe
    origin = Origin(recipes.DESIGN, "attention in both directions: is_chunked_prefill_supported")
    origins = {**recipe.origins, "chunked_prefill": origin, "prefix_caching": origin}
    return replace(recipe, chunked_prefill=False, prefix_caching=False, origins=origins)


def _with_page_sizes(recipe: EffectiveRecipe, d: Deployment) -> EffectiveRecipe:
    ratio = page_ratios(d.model, recipe.tensor_parallel_size)[0]
    if d.serving.engine != VLLM or ratio == 1:
        return recipe
    text = "vllm 0.15.1 to 0.33.0 kv_cache_utils.py: unify_kv_cache_spec_page_size"
    origins = {**recipe.origins, "block_tokens": Origin(recipes.DESIGN, text)}
    return replace(recipe, block_tokens=ratio * recipe.block_tokens, origins=origins)


def page_ratios(model: ModelSpec, tp: int) -> tuple[int, int]:
    """Return tokens per block of full and of windowed attention, divided by the smaller of the two.

    All blocks have the same number of bytes. If the ratio of bytes per token is a whole number,
    layers with fewer bytes per token keep more tokens per block; otherwise the block is padded
    (kv_cache_utils.py: unify_kv_cache_spec_page_size).
    """
    widths = {True: 0.0, False: 0.0}
    for mixer in cached_attention(model):
        has = bool(mixer.window_tokens)
        widths[has] = max(widths[has], cached_width(mixer, tp))
    few, many = sorted(widths.values())
    ratio = int(many // few) if few and many % few == 0 else 1
    return (ratio, 1) if widths[False] < widths[True] else (1, ratio)


def cached_attention(model: ModelSpec) -> Iterator[Attention]:
    """Yield the attention of each layer group that does not share another layer's KV cache."""
    mixers = (group.attention for group in model.layer_groups)
    return (m for m in mixers if isinstance(m, Attention) and not m.shares_cache)


def keeps_state_ends(d: Deployment) -> bool:
    """Return whether vLLM's prefix caching keeps recurrent states at the ends of KV blocks.

    A request then needs two blocks for its states instead of one.

    From 0.28 on, vLLM's ``mamba_cache_mode`` is "align" unless prefix caching is off
    (models/config.py: MambaModelConfig; v1/kv_cache_interface.py:
    MambaSpec.max_memory_usage_bytes).
    """
    if d.serving.engine != VLLM or not d.serving.enable_prefix_caching:
        return False
    version = recipes.served_release(VLLM, d.serving.engine_version)
    return recipes.engine_default(VLLM, "state_prefix_caching", version, d.gpu).value == "yes"


def cached_width(mixer: Attention, tensor_parallel_size: int) -> float:
    """Return the number of KV cache elements per token that one layer has on one GPU.

    Tensor parallelism divides KV heads among GPUs. With MLA, every GPU has the whole latent vector.
    """
    if isinstance(mixer, LatentAttentionSpec):
        return float(mixer.kv_width)
    return max(mixer.kv_heads // tensor_parallel_size, 1) * mixer.pair_width


# Deployments: a model on GPUs under an engine configuration, for which step times are predicted.


@dataclass(frozen=True)
class Deployment:
    """A model on a GPU with an engine's flags, checked for compatibility.

    Attributes:
        model: Served model.
        gpu: GPU that serves the model.
        serving: Engine and its flags.
        force: Whether to skip the compatibility checks (``pinn.engines.refusals``).

    Raises:
        RefusedError: If the engine refuses the flags, unless forced.
        PinnError: If expert parallelism is set for a model without experts, there are too many
            replicas, fewer layers than pipeline stages or fewer heads than GPUs, or the GPU has no
            kernels for mxfp4 experts with mxfp8 activations.
    """

    model: ModelSpec
    gpu: GpuSpec
    serving: ServingSpec
    force: bool = field(default=False, compare=False)

    @cached_property
    def recipe(self) -> EffectiveRecipe:
        """Return the resolved engine configuration, with defaults for flags that are not given."""
        found = effective_recipe(self.serving, self.gpu, self.model.model_type)
        engine = self.serving.engine
        version = recipes.served_release(engine, self.serving.engine_version)
        found = kernel_choice.with_release_kernels(found, self.model, self.gpu, engine, version)
        found = _with_page_sizes(_with_compressed_keys(with_states(found, self), self), self)
        return _with_whole_prompts(found, self)

    @property
    def longest_context(self) -> int:
        """Return the maximum context length of a request, in tokens."""
        return self.serving.max_model_len or self.model.max_position

    @cached_property
    def draft(self) -> Draft | None:
        """Return the draft model; None for n-gram drafting or without speculative decoding."""
        drafts = self.recipe.speculation
        return None if drafts is None else draft_of(self.model, drafts)

    def __post_init__(self) -> None:
        asked = self.serving.enable_expert_parallel or self.recipe.expert_parallel_size > 1
        if asked and self.model.moe is None:
            # Source: vllm/config/model.py: _verify_with_expert_parallelism.
            raise PinnError(
                "--enable-expert-parallel needs a model with experts, but "
                f"{self.model.name} has no experts: omit the flag, which vLLM refuses, too"
            )
        replicas, most = self.serving.data_parallel_size, documents.MOST_REPLICAS
        remedy = "predict a single replica with its share of the load"
        documents.check_size(replicas, most, "--data-parallel-size", remedy)
        capability = self.gpu.compute_capability
        mxfp8 = self.model.moe is not None and self.model.precisions.experts.name == "mxfp4_mxfp8"
        if mxfp8 and not 10 <= capability < 11:
            # Source: vllm/model_executor/layers/quantization/mxfp4.py: get_mxfp4_backend.
            raise PinnError(
                f"{self.gpu.name} has compute capability {capability}, but kernels "
                "for mxfp4_mxfp8 need 10.x: serve the model as mxfp4, as vLLM "
                "does on this GPU in any case"
            )
        stages, layers = self.serving.pipeline_parallel_size, self.model.layers
        if stages > layers:
            raise PinnError(
                f"--pipeline-parallel-size must be at most the {layers} layers of "
                f"{self.model.name}, got {stages}"
            )
        fewest = min((g.attention.heads for g in self.model.layer_groups if g.attention), default=0)
        tp = self.recipe.tensor_parallel_size
        if 0 < fewest < tp:
            raise PinnError(
                f"--tensor-parallel-size must be at most the {fewest} attention heads of "
                f"{self.model.name}, which cannot be split, got {tp}: use fewer GPUs"
            )
        found = None if self.force else refusal_of(self)
        if found is not None:
            raise RefusedError(found.text)

    @property
    def kv_cache_precision(self) -> Precision:
        """Return the KV cache's number format: the flag's or, for ``auto``, the checkpoint's."""
        return self.kv_precision(self.recipe)

    def kv_precision(self, recipe: EffectiveRecipe) -> Precision:
        """Return the number format of keys and values in a resolved engine configuration."""
        flag = recipe.kv_cache_dtype
        if flag == "auto":
            return self.model.kv_cache_precision
        return precision("fp8" if flag.startswith("fp8") else flag)

    @property
    def decode_attention_time(self) -> float:
        """Return the ratio of the engine's decode attention time to that with vLLM's kernels."""
        if self.recipe.decode_kernels == kernel_choice.AUTO or not self._is_hopper:
            return 1.0
        wide = self.kv_cache_precision.bytes_per_weight >= ACTIVATION_BYTES
        return kernel_choice.XQA_TIME[16 if wide else 8]

    @property
    def _is_hopper(self) -> bool:
        return self.gpu.compute_capability == kernel_choice.HOPPER

    @property
    def expert_kernels(self) -> str:
        """Return the experts' kernels; ``AUTO`` if they were measured as the engine's default.

        ``AUTO`` stands for the kernels that vLLM 0.24.0 selected in the measurements, depending on
        weight format and GPU. All other kernels have separate measurements.

        - Block-scaled fp8: Triton on Hopper (CUTLASS if whole experts are distributed over GPUs),
          and TensorRT-LLM's kernel on data-center Blackwell. CUTLASS is therefore separate on
          Hopper if experts are not distributed, and Triton is on Blackwell.
        - nvfp4: TensorRT-LLM's kernel on data-center Blackwell, so CUTLASS is separate there.
        - mxfp4: kernels other than Marlin on Hopper and Blackwell, so Marlin is separate there
          (vLLM's VLLM_MXFP4_USE_MARLIN). On other GPUs, ``AUTO`` is Marlin.
        """
        if self.model.moe is None:
            return kernel_choice.AUTO
        form, kernels = self.model.precisions.experts.name, named_kernels(self.recipe.moe_kernels)
        whole = self.recipe.expert_parallel_size == 1
        blackwell = 10.0 <= self.gpu.compute_capability < 11.0
        differs = {
            MARLIN: form == "mxfp4" and (self._is_hopper or blackwell),
            kernel_choice.CUTLASS: (form == "fp8_block" and self._is_hopper and whole)
            or (form == "nvfp4" and blackwell),
            kernel_choice.TRITON: form == "fp8_block" and blackwell,
        }
        return kernels if differs.get(kernels, False) else kernel_choice.AUTO

    @property
    def expert_kernel_format(self) -> Precision:
        """Return the weight format by which the experts' measured kernel times are selected."""
        if self.expert_kernels == MARLIN:
            return precision(kernel_choice.MARLIN_FORMAT)
        return self.model.precisions.experts

    @property
    def sampling(self) -> Sampling:
        """Return the sampling settings for draft tokens: from flags, or else from the model."""
        flags = self.serving
        base = self.model.sampling if flags.generation_config == "auto" else Sampling()
        return models.overridden(base, flags.override_generation_config)

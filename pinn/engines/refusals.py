"""Compatibility checks for combinations of flags that an engine refuses at startup."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from pinn.engines import refused_formats
from pinn.engines.recipe import engine_rows, release
from pinn.engines.refused_formats import Refusal, refusal, release_of, runs
from pinn.specs.model import AttentionSpec, LatentAttentionSpec
from pinn.specs.serving import SGLANG, VLLM
from pinn.specs.speculation import DRAFT_MODEL, MTP, NGRAM

if TYPE_CHECKING:
    from pinn.engines.deployment import Deployment


# Checks of scheduler limits and of the KV cache.

_BLOCKS = (1, 8, 16, 32, 64, 128, 256)
_FP8 = frozenset({"fp8", "fp8_static", "fp8_block", "nvfp4"})


def requests_per_step(d: Deployment) -> Refusal | None:
    """Return a refusal if the flag for the request limit exceeds the token budget of a step."""
    asked, tokens = d.serving.max_num_seqs, d.recipe.token_budget
    refused = asked is not None and asked > tokens and runs(d, VLLM)
    return refusal(d, "requests_per_step", asked=asked, tokens=tokens) if refused else None


def whole_prompts(d: Deployment) -> Refusal | None:
    """Return a refusal if unchunked prompts can exceed the token budget set by a flag."""
    asked, longest = d.serving.max_num_batched_tokens, d.longest_context
    whole = d.serving.enable_chunked_prefill is False
    refused = asked is not None and whole and asked < longest and runs(d, VLLM)
    return refusal(d, "whole_prompts", asked=asked, longest=longest) if refused else None


def prompt_interval(d: Deployment) -> Refusal | None:
    """Return a refusal if the release lacks the flag ``--prefill-schedule-interval``."""
    refused = d.serving.prefill_schedule_interval > 1 and runs(d, VLLM, below="0.24")
    return refusal(d, "prompt_interval") if refused else None


def longest_context(d: Deployment) -> Refusal | None:
    """Return a refusal if the requested context length exceeds the model's maximum.

    The remedy states the environment variable that allows longer contexts.
    """
    variables = {
        VLLM: "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        SGLANG: "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
    }
    asked, most, variable = d.longest_context, d.model.max_position, variables.get(d.serving.engine)
    if asked <= most or variable is None:
        return None
    own = "" if d.serving.engine == VLLM else ", SGLang's --context-length,"
    return refusal(d, "longest_context", asked=asked, own=own, most=most, variable=variable)


def block_size(d: Deployment) -> Refusal | None:
    """Return a refusal if the release or its attention kernels do not support the KV block size.

    Before vLLM 0.18, only the sizes in ``_BLOCKS`` are allowed. Models with latent attention or
    recurrent layers are not checked, because the engine rounds the size up. Flex attention in 0.18
    to 0.20 supports any size.
    """
    asked = d.serving.block_size
    if asked is None or not runs(d, VLLM):
        return None
    known = _BLOCKS if release_of(d) >= (0, 11, 1) else _BLOCKS[:-1]
    is_old = runs(d, VLLM, below="0.18")
    if is_old and asked not in known:
        return refusal(d, "listed_block_size", asked=asked, known=", ".join(map(str, known)))
    plain = all(isinstance(g.attention, AttentionSpec | None) for g in d.model.layer_groups)
    if not plain or asked % 16 == 0 or runs(d, VLLM, "0.18", "0.21"):
        return None
    file = "flash_attn.py: get_kv_cache_shape" if is_old else "*.py: supported_kernel_block_sizes"
    return refusal(d, "read_block_size", asked=asked, file=file)


def chunk_of_pages(d: Deployment) -> Refusal | None:
    """Return a refusal if SGLang's chunk size is not a multiple of its page size."""
    page = d.recipe.block_tokens
    chunk = d.serving.max_num_batched_tokens or d.recipe.token_budget * d.recipe.data_parallel_size
    refused = runs(d, SGLANG) and chunk % page
    return refusal(d, "chunk_of_pages", page=page, chunk=chunk) if refused else None


def cache_format(d: Deployment) -> Refusal | None:
    """Return a refusal of an fp8_e5m2 KV cache if the checkpoint may include KV cache scales.

    From 0.24.0 on, vLLM accepts compressed-tensors checkpoints without a ``kv_cache_scheme``. Model
    specifications do not record this key, so only block-scaled fp8 is refused.
    """
    if d.serving.kv_cache_dtype != "fp8_e5m2" or not runs(d, VLLM):
        return None
    formats = {form.name for form in vars(d.model.precisions).values()}
    refused = formats & (_FP8 if runs(d, VLLM, below="0.24") else {"fp8_block"})
    return refusal(d, "cache_format", form=min(refused)) if refused else None


def latent_cache(d: Deployment) -> Refusal | None:
    """Return a refusal of an fp8 KV cache if MLA runs in Triton in a release before vLLM 0.18."""
    hopper_or_blackwell = 9 <= d.gpu.compute_capability < 11
    latent = any(isinstance(g.attention, LatentAttentionSpec) for g in d.model.layer_groups)
    cached = latent and d.kv_cache_precision.name == "fp8" and not hopper_or_blackwell
    return refusal(d, "latent_cache") if cached and runs(d, VLLM, below="0.18") else None


# Checks of models and draft methods that a release may not support.


@cache
def absences() -> dict[tuple[str, str, str], dict[str, str]]:
    """Return the table rows on unsupported models, by engine, part (see below) and model type.

    The part is ``model`` or ``mtp`` (multi-token prediction). A row has the name of the
    ``architecture``; ``absent``, the last release without it; and ``since``, the first release with
    it (empty if there is none). ``scripts/read_architectures.py`` reads the table from the engines'
    source.
    """
    rows = engine_rows("architectures.csv")
    return {(row["engine"], row["part"], row["model_type"]): row for row in rows}


def _absent(d: Deployment, rule: str, line: dict[str, str], otherwise: str) -> Refusal:
    """Return the refusal for a row of :func:`absences`; the remedy is a newer release, if any."""
    remedy = f"use {line['since']} or newer" if line["since"] else otherwise
    told = {"architecture": line["architecture"], "absent": line["absent"]}
    return refusal(d, rule, **told, remedy=remedy)


def architecture(d: Deployment) -> Refusal | None:
    """Return a refusal if the user's release does not support the model."""
    found = absences().get((d.serving.engine, "model", d.model.model_type))
    if found is None or not d.serving.engine_version or release_of(d) > release(found["absent"]):
        return None
    return _absent(d, "architecture", found, "no known release supports it")


def prediction_layer(d: Deployment) -> Refusal | None:
    """Return a refusal of multi-token prediction if model or release has no prediction layer."""
    drafts = d.recipe.speculation
    if drafts is None or drafts.method != MTP or d.serving.engine != VLLM:
        return None
    found = absences().get((VLLM, "mtp", d.model.model_type))
    if found is None:
        return None
    named = bool(d.serving.engine_version)
    if found["since"] and (not named or release_of(d) > release(found["absent"])):
        return None
    return _absent(d, "prediction_layer", found, "use a draft model or n-gram speculation")


def draft_model(d: Deployment) -> Refusal | None:
    """Return a refusal of a draft model that the vLLM release or the target model does not allow.

    vLLM supports draft models from 0.15.0 on, if their vocabulary is as large as the target's.
    """
    drafts = d.recipe.speculation
    if drafts is None or drafts.method != DRAFT_MODEL or d.draft is None or not runs(d, VLLM):
        return None
    if runs(d, VLLM, below="0.15"):
        return refusal(d, "draft_model")
    draft, target = d.draft.model, d.model.vocab_size
    if draft.vocab_size == target:
        return None
    return refusal(d, "draft_vocabulary", draft=draft.name, own=draft.vocab_size, target=target)


def drafts_beside_replicas(d: Deployment) -> Refusal | None:
    """Return a refusal of draft models and n-grams with attention data parallelism in SGLang."""
    drafts, algorithm = d.recipe.speculation, d.serving.speculative_config
    apart = drafts is not None and drafts.method in (DRAFT_MODEL, NGRAM)
    refused = apart and d.serving.enable_dp_attention and runs(d, SGLANG)
    return refusal(d, "drafts_beside_replicas", algorithm=algorithm) if refused else None


# All compatibility checks. Each check states the release and the file of its source.

#: Checks of a whole deployment, in order. Only the first failed check is reported.
RULES: tuple[Callable[[Deployment], Refusal | None], ...] = (
    refused_formats.heads, refused_formats.kv_heads, refused_formats.experts_over_ranks,
    refused_formats.expert_width, refused_formats.dense_width, refused_formats.block_experts,
    refused_formats.block_dense, refused_formats.block_attention, refused_formats.groups,
    refused_formats.capability, requests_per_step, whole_prompts, prompt_interval, longest_context,
    block_size, chunk_of_pages, cache_format, latent_cache, architecture, prediction_layer,
    draft_model, drafts_beside_replicas,
)  # fmt: skip


def refusal_of(deployment: Deployment) -> Refusal | None:
    """Return why the engine would refuse a deployment, or None if all checks pass."""
    return next((found for rule in RULES if (found := rule(deployment)) is not None), None)

"""Formats and splits of a model that an engine refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pinn.engines.recipe import engine_rows, release, served_release
from pinn.specs.model import AttentionSpec, DenseFfnSpec, LatentAttentionSpec, Mixer, ModelSpec
from pinn.specs.serving import SGLANG, TRTLLM, VLLM

if TYPE_CHECKING:
    from pinn.engines.deployment import Deployment


# What a refusal says, and which release it is about.


class Refusal(NamedTuple):
    """Reason why an engine does not start, or one of its kernels fails.

    Attributes:
        reason: What does not fit, with its numbers.
        remedy: What to do instead.
        source: Release and file that say so.
    """

    reason: str
    remedy: str
    source: str

    @property
    def text(self) -> str:
        """One line for an error."""
        return f"{self.reason}: {self.remedy}, or predict it anyway with --force ({self.source})"


def refusal(d: Deployment, rule: str, **facts: object) -> Refusal:
    """Return what a line of ``data/engines/refusals.csv`` says of a deployment.

    Args:
        d: The refused deployment.
        rule: Name of the line.
        facts: Values of the names in it, beside those that every line knows: ``engine``,
            ``version``, ``gpu``, ``model`` and ``tp``.
    """
    known: dict[str, object] = {
        "engine": d.serving.engine,
        "version": version_of(d),
        "gpu": d.gpu.name,
        "model": d.model.name,
        "tp": d.recipe.tensor_parallel_size,
    }
    row = next(row for row in engine_rows("refusals.csv") if row["rule"] == rule)
    parts = (row["reason"], row["remedy"], row[d.serving.engine])
    return Refusal(*(part.format(**known | facts) for part in parts))


def version_of(d: Deployment) -> str:
    """The release that is served, such as ``0.15.1``: the flag's, or the defaults' table's."""
    return served_release(d.serving.engine, d.serving.engine_version)


def release_of(d: Deployment) -> tuple[int, ...]:
    """Its numbers."""
    return release(version_of(d))


def runs(d: Deployment, engine: str, least: str = "0", below: str = "") -> bool:
    """Whether a deployment is of an engine's releases from ``least`` up to, without, ``below``."""
    if d.serving.engine != engine:
        return False
    found = release_of(d)
    return release(least) <= found and (not below or found < release(below))


# Layers that tensor and expert parallelism cannot cut.


def _mixers(d: Deployment) -> Iterator[tuple[ModelSpec, Mixer]]:
    """Every kind of mixer of the model and of what drafts for it, with whose it is."""
    for model in (d.model,) if d.draft is None else (d.model, d.draft.model):
        yield from ((model, g.attention) for g in model.layer_groups if g.attention is not None)


def heads(d: Deployment) -> Refusal | None:
    """Attention heads are cut into equal parts."""
    for model, mixer in _mixers(d):
        if mixer.heads % d.recipe.tensor_parallel_size:
            return refusal(d, "heads", heads=mixer.heads, model=model.name)
    return None


def kv_heads(d: Deployment) -> Refusal | None:
    """KV heads are cut into equal parts, or each is kept by equally many GPUs."""
    tp = d.recipe.tensor_parallel_size
    for model, mixer in _mixers(d):
        is_latent = isinstance(mixer, LatentAttentionSpec)
        if not is_latent and mixer.kv_heads % tp and tp % mixer.kv_heads:
            return refusal(d, "kv_heads", heads=mixer.kv_heads, model=model.name)
    return None


def experts_over_ranks(d: Deployment) -> Refusal | None:
    """Every rank of expert parallelism has experts; SGLang's have equally many."""
    moe, ranks = d.model.moe, d.recipe.expert_parallel_size
    if moe is None or ranks == 1:
        return None
    if d.serving.engine == SGLANG:
        rule, is_refused = "unequal_experts", moe.experts % ranks > 0
    else:
        rule, is_refused = "fewer_experts_than_ranks", ranks > moe.experts
    return refusal(d, rule, ranks=ranks, experts=moe.experts) if is_refused else None


def expert_width(d: Deployment) -> Refusal | None:
    """Experts that are not whole on a GPU are cut into equal parts."""
    moe, parts = d.model.moe, d.recipe.expert_tensor_parallel_size
    if moe is None or moe.width % parts == 0 or d.serving.engine == TRTLLM:
        return None
    return refusal(d, "expert_width", parts=parts, width=moe.width)


def dense_widths(d: Deployment) -> dict[int, str]:
    """Width of feed-forward layers that tensor parallelism cuts, to the kind of their weights."""
    dense = [g.ffn for g in d.model.layer_groups if isinstance(g.ffn, DenseFfnSpec)]
    found = {ffn.width: "dense_ffn" for ffn in dense}
    if d.model.moe is not None and d.model.moe.shared_width:
        found[d.model.moe.shared_width] = "shared_experts"
    # Attention data parallelism keeps them whole on each GPU.
    return {} if d.serving.enable_dp_attention else found


def dense_width(d: Deployment) -> Refusal | None:
    """Dense layers are cut into equal parts."""
    for width in dense_widths(d):
        if width % d.recipe.tensor_parallel_size and not runs(d, TRTLLM):
            return refusal(d, "dense_width", width=width)
    return None


#: GPUs of a machine, within which NVLink connects them.
MACHINE_GPUS = 8


def beyond_a_machine(d: Deployment) -> str:
    """Return a warning if a layer's exchanges leave a machine of eight GPUs; empty if not.

    Racks of GB200 and GB300 are one machine. Engines start across machines, but slower: links
    between machines within a layer are not timed.
    """
    if d.gpu.name.startswith("GB"):
        return ""
    recipe, what = d.recipe, "tensor parallelism"
    gpus = recipe.tensor_parallel_size
    if d.model.moe is not None and gpus <= MACHINE_GPUS:
        gpus, what = (
            gpus * recipe.data_parallel_size,
            "the exchange of tokens between the GPUs of experts",
        )
    if gpus <= MACHINE_GPUS:
        return ""
    return (
        f"{gpus} GPUs for {what} are more than one machine has of {d.gpu.name}: "
        "communication is timed as if within one machine"
    )


# Number formats whose scales a cut would split, or that a GPU or a release does not have.

#: Sides of the block that shares a scale (``weight_block_size`` of all published checkpoints).
BLOCK = 128


def block_experts(d: Deployment) -> Refusal | None:
    """Experts in block-scaled fp8 are cut between blocks alone.

    From 0.29.0 vLLM repeats the scales for smaller blocks, of 32 at least
    (``fused_moe/oracle/fp8.py: refine_fp8_moe_block_shape``). Whole experts are not cut.
    """
    moe, parts = d.model.moe, d.recipe.expert_tensor_parallel_size
    if moe is None or d.model.precisions.experts.name != "fp8_block" or runs(d, TRTLLM):
        return None
    each, grain = moe.width // parts, 32 if runs(d, VLLM, "0.29") else BLOCK
    if each % grain == 0:
        return None
    return refusal(d, "block_experts", width=moe.width, parts=parts, each=each, grain=grain)


def block_dense(d: Deployment) -> Refusal | None:
    """Dense layers and shared experts in block-scaled fp8 are cut between blocks alone."""
    tp = d.recipe.tensor_parallel_size
    for width, kind in dense_widths(d).items():
        form, each = getattr(d.model.precisions, kind).name, width // tp
        if form == "fp8_block" and tp > 1 and each % BLOCK and not runs(d, TRTLLM):
            return refusal(d, "block_dense", width=width, each=each, grain=BLOCK)
    return None


def block_attention(d: Deployment) -> Refusal | None:
    """Projections of attention in block-scaled fp8 likewise, where tensor parallelism cuts them.

    MiMo-V2's keys and values are padded to whole blocks together (vLLM 0.31.0 models/mimo_v2.py).
    """
    tp = d.recipe.tensor_parallel_size
    if tp == 1 or d.model.precisions.attention.name != "fp8_block" or runs(d, TRTLLM):
        return None
    for group in d.model.layer_groups:
        mixer = group.attention
        if isinstance(mixer, AttentionSpec) and mixer.v_head_dim and runs(d, VLLM, "0.31"):
            continue
        for what, width in _projections(mixer, tp):
            if width % BLOCK:
                return refusal(d, "block_attention", what=what, width=width, grain=BLOCK)
    return None


def _projections(attention: object, tp: int) -> tuple[tuple[str, int], ...]:
    """Projections that are cut, and their width on a GPU; heads that are not whole are refused."""
    if isinstance(attention, LatentAttentionSpec):
        here = attention.heads // tp
        nope, value = attention.qk_nope_head_dim, attention.v_head_dim
        return (
            ("query projection", here * attention.head_dim),
            ("key and value projection", here * (nope + value)),
            ("output projection", here * value),
        )
    if isinstance(attention, AttentionSpec):
        here, kept = attention.heads // tp, max(attention.kv_heads // tp, 1)
        return (
            ("query projection", here * (attention.head_dim + attention.gate_width)),
            ("key projection", kept * attention.head_dim),
            ("output projection", here * attention.value_dim),
        )
    return ()


def groups(d: Deployment) -> Refusal | None:
    """Inputs that share a scale stay on one GPU.

    ``data/engines/format_groups.csv`` has the fewest inputs that one scale may cover (a
    checkpoint's own number is not kept), and who says that they are not cut. mxfp4 is padded
    (``quantization/mxfp4.py: create_weights``), as are nvfp4's experts.
    """
    known = {row["format"]: row for row in engine_rows("format_groups.csv")}
    recipe, precisions, moe = d.recipe, d.model.precisions, d.model.moe
    tp, cut = recipe.tensor_parallel_size, recipe.expert_tensor_parallel_size
    parts = [(width, tp, getattr(precisions, kind)) for width, kind in dense_widths(d).items()]
    if moe is not None and precisions.experts.name == "int4_wo":
        parts.append((moe.width, cut, precisions.experts))
    for width, gpus, form in parts:
        row = known.get(form.name)
        if row and gpus > 1 and width // gpus % int(row["least"]) and not runs(d, TRTLLM):
            told = {"width": width, "parts": gpus, "each": width // gpus, "form": form.name}
            return refusal(d, "groups", **told | row)
    return None


def capability(d: Deployment) -> Refusal | None:
    """Every format has kernels on the GPU: the least capability is that of all kernels.

    Below the tensor cores' own fp8 or fp4, Marlin expands the weights.
    """
    have = d.gpu.compute_capability
    formats = {form.name for form in vars(d.model.precisions).values()}
    for row in engine_rows("format_capabilities.csv"):
        missing, least = formats & set(row["formats"].split()), float(row["capability"])
        if missing and have < least and runs(d, row["engine"], row["since"], row["below"]):
            told = {"have": have, "form": min(missing), "least": least}
            return refusal(d, "capability", **told, source=row["source"])
    return None

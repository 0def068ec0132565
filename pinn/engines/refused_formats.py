"""Formats and splits of a model that an engine refuses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pinn.engines.recipe import engine_rows, release, served_release
from pinn.specs.model import AttentionSpec, DenseFfnSpec, LatentAttentionSpec, Mixer, ModelSpec
from pinn.specs.serving import SGLANG, TRTLLM, VLLM

if TYPE_CHECKING:
    from pinn.engines.deployment import Deployment


# What a refusal says, and which release it is about.


class Refusal(NamedTuple):
    """Why an engine does not start, or a kernel of it stops.

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
        return f"{self.reason}: {self.remedy}, or --force to time it anyway ({self.source})"


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

_LINEAR = "vllm 0.10.2 to 0.33.0 vllm/model_executor/layers/linear.py: divide; sglang likewise"
_FUSED_MOE = "vllm 0.15.1 vllm/model_executor/layers/fused_moe/layer.py"
_SGLANG_LINEAR = "sglang 0.5.3 to 0.5.23 srt/layers/linear.py: QKVParallelLinear"


def _cited(d: Deployment, of_vllm: str) -> str:
    """Where the engine itself says so; TensorRT-LLM's source was not read for it."""
    if d.serving.engine == SGLANG:
        return _SGLANG_LINEAR
    return of_vllm if d.serving.engine != TRTLLM else f"assumed of TensorRT-LLM as of {of_vllm}"


def _mixers(d: Deployment) -> Iterator[tuple[ModelSpec, Mixer]]:
    """Every kind of mixer of the model and of what drafts for it, with whose it is."""
    for model in (d.model,) if d.draft is None else (d.model, d.draft.model):
        yield from ((model, g.attention) for g in model.layer_groups if g.attention is not None)


def heads(d: Deployment) -> Refusal | None:
    """Attention heads are cut into equal parts."""
    tp = d.recipe.tensor_parallel_size
    for model, mixer in _mixers(d):
        if mixer.heads % tp:
            return Refusal(
                f"--tensor-parallel-size {tp} does not divide the {mixer.heads} attention heads of "
                f"{model.name}",
                f"use a divisor of {mixer.heads}",
                _cited(d, "vllm 0.15.1 vllm/config/model.py: verify_with_parallel_config"),
            )
    return None


def kv_heads(d: Deployment) -> Refusal | None:
    """KV heads are cut into equal parts, or each is kept by equally many GPUs."""
    tp = d.recipe.tensor_parallel_size
    for model, mixer in _mixers(d):
        is_latent = isinstance(mixer, LatentAttentionSpec)
        if not is_latent and mixer.kv_heads % tp and tp % mixer.kv_heads:
            return Refusal(
                f"--tensor-parallel-size {tp} neither divides nor is a multiple of the "
                f"{mixer.kv_heads} KV heads of {model.name}",
                f"use a divisor or a multiple of {mixer.kv_heads}",
                _cited(d, "vllm 0.15.1 vllm/model_executor/layers/linear.py: QKVParallelLinear"),
            )
    return None


def experts_over_ranks(d: Deployment) -> Refusal | None:
    """Every rank of expert parallelism has experts; SGLang's have equally many."""
    moe, ranks = d.model.moe, d.recipe.expert_parallel_size
    if moe is None or ranks == 1:
        return None
    if d.serving.engine != SGLANG and ranks > moe.experts:
        return Refusal(
            f"expert parallelism over {ranks} GPUs exceeds the {moe.experts} experts of "
            f"{d.model.name}",
            "spread them over fewer",
            _cited(d, f"{_FUSED_MOE}: determine_expert_map"),
        )
    if d.serving.engine == SGLANG and moe.experts % ranks:
        return Refusal(
            f"--ep-size {ranks} does not divide the {moe.experts} experts of {d.model.name}",
            f"use a divisor of {moe.experts}",
            "sglang 0.5.3 to 0.5.23 srt/layers/moe/fused_moe_triton/layer.py",
        )
    return None


def expert_width(d: Deployment) -> Refusal | None:
    """Experts that are not whole on a GPU are cut into equal parts."""
    moe, parts = d.model.moe, d.recipe.expert_tensor_parallel_size
    if moe is None or moe.width % parts == 0 or d.serving.engine == TRTLLM:
        return None
    return Refusal(
        f"{parts} GPUs do not divide the {moe.width} columns of an expert of {d.model.name}",
        f"use a divisor of {moe.width}, or whole experts on each GPU",
        "vllm 0.10.2 to 0.23.0 vllm/model_executor/layers/fused_moe/layer.py, to 0.33.0 config.py; "
        "sglang 0.5.3 to 0.5.23 srt/layers/moe/fused_moe_triton/layer.py",
    )


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
    tp = d.recipe.tensor_parallel_size
    for width in dense_widths(d):
        if width % tp and not runs(d, TRTLLM):
            return Refusal(
                f"--tensor-parallel-size {tp} does not divide the {width} columns of a "
                f"feed-forward layer of {d.model.name}",
                f"use a divisor of {width}",
                _LINEAR,
            )
    return None


def beyond_a_machine(d: Deployment) -> bool:
    """Whether tensor parallelism leaves a machine of eight GPUs; racks of GB200 and GB300 do not.

    Engines start there, slower: nothing here times links between machines within a layer.
    """
    return d.recipe.tensor_parallel_size > 8 and not d.gpu.name.startswith("GB")


# Number formats whose scales a cut would split, or that a GPU or a release does not have.

#: Sides of the block that shares a scale (``weight_block_size`` of all published checkpoints).
BLOCK = 128
_VLLM_FP8 = "vllm {} vllm/model_executor/layers/quantization/"
_SGLANG_FP8 = "sglang {} srt/layers/quantization/fp8.py"


def block_experts(d: Deployment) -> Refusal | None:
    """Experts in block-scaled fp8 are cut between blocks alone.

    From 0.29.0 vLLM repeats the scales for smaller blocks, of 32 at least
    (``fused_moe/oracle/fp8.py: refine_fp8_moe_block_shape``). Whole experts are not cut.
    """
    moe, parts = d.model.moe, d.recipe.expert_tensor_parallel_size
    if moe is None or d.model.precisions.experts.name != "fp8_block" or runs(d, TRTLLM):
        return None
    width = moe.width // parts
    grain = 32 if runs(d, VLLM, "0.29") else BLOCK
    if width % grain == 0:
        return None
    return Refusal(
        f"an expert of {d.model.name} has {moe.width} / {parts} = {width} columns on a GPU, no "
        f"multiple of the {grain} that share a scale",
        "use fewer GPUs for tensor parallelism, or --enable-expert-parallel",
        _source(d, "fp8.py: Fp8MoEMethod.create_weights"),
    )


def block_dense(d: Deployment) -> Refusal | None:
    """Dense layers and shared experts in block-scaled fp8 are cut between blocks alone."""
    tp = d.recipe.tensor_parallel_size
    for width, kind in dense_widths(d).items():
        form = getattr(d.model.precisions, kind).name
        if form == "fp8_block" and tp > 1 and width // tp % BLOCK and not runs(d, TRTLLM):
            return Refusal(
                f"a feed-forward layer of {d.model.name} has {width} / {tp} = {width // tp} "
                f"columns on a GPU, no multiple of the {BLOCK} that share a scale",
                "use fewer GPUs for tensor parallelism",
                _source(d, "utils/fp8_utils.py: validate_fp8_block_shape"),
            )
    return None


def block_attention(d: Deployment) -> Refusal | None:
    """Projections of attention in block-scaled fp8 likewise, where tensor parallelism cuts them."""
    tp = d.recipe.tensor_parallel_size
    if tp == 1 or d.model.precisions.attention.name != "fp8_block" or runs(d, TRTLLM):
        return None
    for group in d.model.layer_groups:
        for what, width in _projections(group.attention, tp):
            if width % BLOCK:
                return Refusal(
                    f"the {what} of {d.model.name} has {width} columns on each of {tp} GPUs, no "
                    f"multiple of the {BLOCK} that share a scale",
                    "use fewer GPUs for tensor parallelism",
                    _source(d, "utils/fp8_utils.py: validate_fp8_block_shape"),
                )
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
            ("query projection", here * attention.head_dim * (1 + attention.output_gate)),
            ("key projection", kept * attention.head_dim),
            ("output projection", here * attention.head_dim),
        )
    return ()


_QUANTIZED = "vllm 0.10.2 to 0.33.0 vllm/model_executor/layers/quantization"
_MARLIN = "sglang 0.5.9 srt/layers/quantization/marlin_utils.py"
#: Format to the fewest inputs that one scale may cover (a checkpoint's own number is not kept), and
#: who says that they are not cut.
#: mxfp4 is padded (``quantization/mxfp4.py: create_weights``), as are nvfp4's experts.
GROUPS = {
    "int4_wo": (32, f"{_QUANTIZED}/awq.py, gptq.py: create_weights, moe_wna16.py; {_MARLIN}"),
    "nvfp4": (16, f"{_QUANTIZED}/modelopt.py: in features a multiple of 16"),
}


def groups(d: Deployment) -> Refusal | None:
    """Inputs that share a scale stay on one GPU."""
    recipe, precisions, moe = d.recipe, d.model.precisions, d.model.moe
    tp, cut = recipe.tensor_parallel_size, recipe.expert_tensor_parallel_size
    parts = [(width, tp, getattr(precisions, kind)) for width, kind in dense_widths(d).items()]
    if moe is not None and precisions.experts.name == "int4_wo":
        parts.append((moe.width, cut, precisions.experts))
    for width, gpus, form in parts:
        least, source = GROUPS.get(form.name, (1, ""))
        if gpus > 1 and width // gpus % least and not runs(d, TRTLLM):
            return Refusal(
                f"{width} / {gpus} = {width // gpus} inputs of {d.model.name} on a GPU are no "
                f"multiple of the {least} that share a scale in {form.name} at least",
                "use fewer GPUs for tensor parallelism",
                source,
            )
    return None


@cache
def _capabilities() -> list[dict[str, str]]:
    """Return lines of ``data/engines/format_capabilities.csv``: the least capability of formats.

    It is the least of all kernels: below the tensor cores' own fp8 or fp4, Marlin expands the
    weights.
    """
    return engine_rows("format_capabilities.csv")


def capability(d: Deployment) -> Refusal | None:
    """Every format has kernels on the GPU."""
    have = d.gpu.compute_capability
    formats = {form.name for form in vars(d.model.precisions).values()}
    for row in _capabilities():
        missing, least = formats & set(row["formats"].split()), float(row["capability"])
        if missing and have < least and runs(d, row["engine"], row["since"], row["below"]):
            version = f"{row['engine']} {version_of(d)}"
            return Refusal(
                f"{d.gpu.name} has compute capability {have:g}, and {version} has "
                f"{min(missing)} from {least:g}",
                "use another GPU or another format",
                f"{version} layers/{row['source']}",
            )
    return None


def _source(d: Deployment, file: str) -> str:
    if d.serving.engine == SGLANG:
        return _SGLANG_FP8.format(version_of(d))
    return _VLLM_FP8.format(version_of(d)) + file

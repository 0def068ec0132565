"""Compatibility checks of a model's number formats and of how it is sharded over GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pinn.engines.recipe import engine_rows, release, served_release
from pinn.specs.model import AttentionSpec, DenseFfnSpec, LatentAttentionSpec, Mixer, ModelSpec
from pinn.specs.serving import SGLANG, TRTLLM, VLLM

if TYPE_CHECKING:
    from pinn.engines.deployment import Deployment


# Refusal of a deployment, and the engine release to which a check applies.


class Refusal(NamedTuple):
    """Reason why an engine does not start, or why one of its kernels fails.

    Attributes:
        reason: Description of the incompatibility, with the conflicting numbers.
        remedy: Flag changes that avoid the refusal.
        source: Release and source file of the check, and whether the check is assumed for the
            served release.
    """

    reason: str
    remedy: str
    source: str

    @property
    def text(self) -> str:
        """Return the refusal as a one-line error message."""
        remedy = f"{self.remedy}, or predict the configuration anyway with --force"
        return f"{self.reason}: {remedy} (source: {self.source})"


def refusal(d: Deployment, rule: str, **facts: object) -> Refusal:
    """Return the refusal of a deployment, with the text from a row of ``refusals.csv``.

    Args:
        d: The refused deployment.
        rule: Name of the row in ``refusals.csv``.
        facts: Values of the row's placeholders other than ``engine``, ``version``, ``gpu``,
            ``model`` and ``tp``.
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
    reason, remedy, source = (part.format(**known | facts) for part in parts)
    return Refusal(reason, remedy, source + _assumed(source, d))


#: Pattern of the releases at the start of a source, such as ``vllm 0.10.2 to 0.33.0``; the second
#: release is optional.
_READ = re.compile(r"(\w+) (\d[\d.]*)(?: to (\d[\d.]*))?")


def _assumed(source: str, d: Deployment) -> str:
    """Return a remark if a source applies to releases other than the served one, else ""."""
    found, served = _READ.match(source), release_of(d)
    if found is None or found[1] != d.serving.engine:
        return ""
    first, last = release(found[2]), release(found[3] or found[2])
    return "" if first <= served <= last else f"; assumed for {d.serving.engine} {version_of(d)}"


def version_of(d: Deployment) -> str:
    """Return the served release, such as ``0.15.1``: as given, or else the newest known one."""
    return served_release(d.serving.engine, d.serving.engine_version)


def release_of(d: Deployment) -> tuple[int, ...]:
    """Return the served release as a tuple of numbers, such as (0, 15, 1)."""
    return release(version_of(d))


def runs(d: Deployment, engine: str, least: str = "0", below: str = "") -> bool:
    """Return whether a deployment's engine and release match.

    The release must be at least ``least`` and lower than ``below``. An empty ``below`` is no limit.
    """
    if d.serving.engine != engine:
        return False
    found = release_of(d)
    return release(least) <= found and (not below or found < release(below))


# Checks for layers that tensor and expert parallelism cannot divide.


def _mixers(d: Deployment) -> Iterator[tuple[ModelSpec, Mixer]]:
    """Yield (model, attention or recurrence) of each layer group, including the draft model's."""
    for model in (d.model,) if d.draft is None else (d.model, d.draft.model):
        yield from ((model, g.attention) for g in model.layer_groups if g.attention is not None)


def heads(d: Deployment) -> Refusal | None:
    """Return a refusal if the tensor-parallel size does not divide the attention heads."""
    for model, mixer in _mixers(d):
        if mixer.heads % d.recipe.tensor_parallel_size:
            return refusal(d, "heads", heads=mixer.heads, model=model.name)
    return None


def kv_heads(d: Deployment) -> Refusal | None:
    """Return a refusal if the KV heads can neither be divided nor replicated evenly."""
    tp = d.recipe.tensor_parallel_size
    for model, mixer in _mixers(d):
        is_latent = isinstance(mixer, LatentAttentionSpec)
        if not is_latent and mixer.kv_heads % tp and tp % mixer.kv_heads:
            return refusal(d, "kv_heads", heads=mixer.kv_heads, model=model.name)
    return None


def experts_over_ranks(d: Deployment) -> Refusal | None:
    """Return a refusal if experts cannot be distributed over the expert-parallel ranks.

    Each rank needs at least one expert; in SGLang, all ranks need the same number of experts.
    """
    moe, ranks = d.model.moe, d.recipe.expert_parallel_size
    if moe is None or ranks == 1:
        return None
    if d.serving.engine == SGLANG:
        rule, is_refused = "unequal_experts", moe.experts % ranks > 0
    else:
        rule, is_refused = "fewer_experts_than_ranks", ranks > moe.experts
    return refusal(d, rule, ranks=ranks, experts=moe.experts) if is_refused else None


def expert_width(d: Deployment) -> Refusal | None:
    """Return a refusal if the number of GPUs that share an expert does not divide its width."""
    moe, parts = d.model.moe, d.recipe.expert_tensor_parallel_size
    if moe is None or moe.width % parts == 0 or d.serving.engine == TRTLLM:
        return None
    return refusal(d, "expert_width", parts=parts, width=moe.width)


def dense_widths(d: Deployment) -> dict[int, str]:
    """Map the inner width of each type of dense layer that tensor parallelism splits to its name.

    The names are ``dense_ffn`` and ``shared_experts``.
    """
    dense = [g.ffn for g in d.model.layer_groups if isinstance(g.ffn, DenseFfnSpec)]
    found = {ffn.width: "dense_ffn" for ffn in dense}
    if d.model.moe is not None and d.model.moe.shared_width:
        found[d.model.moe.shared_width] = "shared_experts"
    # Under attention data parallelism, dense layers are not split: each GPU has them whole.
    return {} if d.serving.enable_dp_attention else found


def dense_width(d: Deployment) -> Refusal | None:
    """Return a refusal if the tensor-parallel size does not divide the width of a dense layer."""
    for width in dense_widths(d):
        if width % d.recipe.tensor_parallel_size and not runs(d, TRTLLM):
            return refusal(d, "dense_width", width=width)
    return None


#: Number of GPUs per machine, which are connected by NVLink.
MACHINE_GPUS = 8


def beyond_a_machine(d: Deployment) -> str:
    """Return a warning if a replica spans several eight-GPU machines, otherwise an empty string.

    Racks of GB200 and GB300 count as one machine. Engines can run across machines, but the slower
    links between machines are not modelled.
    """
    if d.gpu.name.startswith("GB"):
        return ""
    recipe, what = d.recipe, "tensor parallelism"
    gpus = recipe.tensor_parallel_size
    if d.model.moe is not None and gpus <= MACHINE_GPUS:
        gpus, what = (
            gpus * recipe.data_parallel_size,
            "the all-to-all communication of expert parallelism",
        )
    if gpus <= MACHINE_GPUS:
        return ""
    return (
        f"{what} spans {gpus} GPUs, more than one {d.gpu.name} machine has: communication times "
        f"assume a single machine"
    )


# Checks of number formats: block scales that a tensor-parallel split would cut, and formats that a
# GPU or release does not support.

#: Number of rows, and of columns, in a block of weights that share a scale (``weight_block_size``
#: in all published checkpoints).
BLOCK = 128


def block_experts(d: Deployment) -> Refusal | None:
    """Return a refusal if tensor parallelism splits experts inside blocks of fp8 scales.

    From 0.29.0 on, vLLM repeats the scales for smaller blocks of at least 32
    (``fused_moe/oracle/fp8.py: refine_fp8_moe_block_shape``). Whole experts are not split.
    """
    moe, parts = d.model.moe, d.recipe.expert_tensor_parallel_size
    if moe is None or d.model.precisions.experts.name != "fp8_block" or runs(d, TRTLLM):
        return None
    each, grain = moe.width // parts, 32 if runs(d, VLLM, "0.29") else BLOCK
    if each % grain == 0:
        return None
    return refusal(d, "block_experts", width=moe.width, parts=parts, each=each, grain=grain)


def block_dense(d: Deployment) -> Refusal | None:
    """Return a refusal if tensor parallelism splits dense layers inside blocks of fp8 scales."""
    tp = d.recipe.tensor_parallel_size
    for width, kind in dense_widths(d).items():
        form, each = getattr(d.model.precisions, kind).name, width // tp
        if form == "fp8_block" and tp > 1 and each % BLOCK and not runs(d, TRTLLM):
            return refusal(d, "block_dense", width=width, each=each, grain=BLOCK)
    return None


def block_attention(d: Deployment) -> Refusal | None:
    """Return a refusal if tensor parallelism splits projections inside blocks of fp8 scales.

    MiMo-V2's projections of keys and values are padded to whole blocks, so they are not refused
    (vLLM 0.31.0 models/mimo_v2.py).
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
    """Return the name and per-GPU width of each projection that tensor parallelism splits."""
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
    """Return a refusal if tensor parallelism would separate inputs that share a scale.

    ``data/engines/format_groups.csv`` has the minimum number of inputs per scale, with its source;
    the checkpoint's own number is not recorded. mxfp4 is not refused, since its weights are padded
    (``quantization/mxfp4.py: create_weights``), and neither are nvfp4's experts.
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
    """Return a refusal if the engine has no kernels for a weight format on the GPU.

    On GPUs without fp8 or fp4 tensor cores, Marlin expands the weights to 16 bits.
    """
    have = d.gpu.compute_capability
    formats = {form.name for form in vars(d.model.precisions).values()}
    for row in engine_rows("format_capabilities.csv"):
        missing, least = formats & set(row["formats"].split()), float(row["capability"])
        if missing and have < least and runs(d, row["engine"], row["since"], row["below"]):
            told = {"have": have, "form": min(missing), "least": least}
            return refusal(d, "capability", **told, source=row["source"])
    return None

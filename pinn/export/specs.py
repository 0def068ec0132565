"""Models and GPUs as plain JSON, for programs that do not read a Hugging Face config.json."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from math import gcd
from pathlib import Path
from typing import Any

from pinn.common.files import json_text, write_whole
from pinn.engines.deployment import eagle_layer, prediction_layer
from pinn.errors import PinnError
from pinn.physics.cost_facts import dense_work, model_facts
from pinn.simulator.memory import widest_head
from pinn.specs.catalog import load_model
from pinn.specs.gpu import GpuSpec, gpu_aliases
from pinn.specs.model import Attention, AttentionSpec, ModelSpec, Sampling, mixer_names
from pinn.specs.model_names import names_of
from pinn.specs.precision import PRECISIONS
from pinn.specs.speculation import DEFAULT_ACCEPTANCE
from pinn.surrogate.featurizer import model_descriptors

FORMAT = "pinn.specs"
VERSION = 3
#: Descriptors that depend on flags beside the tensor-parallel size.
_OF_RANKS = ("local_experts", "expert_width", "expert_parallel", "data_parallel")


@dataclass(frozen=True)
class WeightFormats:
    """Names of the number formats of each kind of weight matrix."""

    attention: str
    dense_ffn: str
    experts: str
    shared_experts: str
    lm_head: str


@dataclass(frozen=True)
class Experts:
    """Routed experts of one shape.

    Attributes:
        experts: Routed experts.
        top_k: Those that a token uses.
        width: Inner width of one.
        matrices: Of each.
        stream_width: Width of what they read and write.
    """

    experts: int
    top_k: int
    width: int
    matrices: int
    stream_width: int


@dataclass(frozen=True)
class Shard:
    """What layers come to on one GPU of a tensor-parallel group.

    Attributes:
        facts: Of ``CostFacts`` those that layers decide; the others, and zeros, are left out.
        token_flop: Operations of a token by the format of the weights, without the head.
        head_flop: The same of a sequence in the head.
        descriptors: All but those of ranks, formats and GPU.
    """

    facts: dict[str, float]
    token_flop: dict[str, float]
    head_flop: dict[str, float]
    descriptors: dict[str, float]


@dataclass(frozen=True)
class Layers:
    """What layers and head come to.

    Attributes:
        precisions: Formats of the weights.
        experts: The routed ones; none of a dense model.
        shards: By the tensor-parallel sizes that divide the heads.
    """

    precisions: WeightFormats
    experts: Experts | None
    shards: dict[int, Shard]


@dataclass(frozen=True)
class ExportedModel:
    """A model as a serving engine sees it.

    Attributes:
        name: With its organisation.
        model_type: As its config.json; some defaults ask for it.
        max_position: Longest context in tokens.
        window_tokens: Of the layers with a window; 0 without one.
        head_elements: Cached elements of a token in the widest head.
        kv_cache_precision: Format of the KV cache that the checkpoint asks for.
        sampling: What its generation_config.json asks for.
        layers: Its layers and head.
        mtp: A layer like its last, which drafts.
        eagle: A dense layer with its attention, which others have trained to draft.
        aliases: Other names, each with how it samples.
    """

    name: str
    model_type: str
    max_position: int
    window_tokens: int
    head_elements: int
    kv_cache_precision: str
    sampling: Sampling
    layers: Layers
    mtp: Layers
    eagle: Layers
    aliases: dict[str, Sampling]


def specs_document(models: Sequence[ModelSpec], gpus: Sequence[GpuSpec]) -> dict[str, Any]:
    """Everything that embedding and costs need, JSON-ready.

    Args:
        models: Their shapes as this program read them from each config.json.
        gpus: Datasheets in SI units.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "precisions": {name: asdict(p) for name, p in PRECISIONS.items()},
        "draft_acceptance": {name: a.rate for name, a in DEFAULT_ACCEPTANCE.items()},
        "models": [asdict(_exported(model)) for model in models],
        "gpus": [asdict(gpu) | {"aliases": list(gpu_aliases(gpu))} for gpu in gpus],
    }


def _exported(model: ModelSpec) -> ExportedModel:
    if not model.is_plain:
        raise PinnError(
            f"the Go package makes coefficients of models of attention over keys alone, and "
            f"{model.name} has other layers ({mixer_names(model)}): 'pinn export table' writes "
            "its coefficients for Go"
        )
    return ExportedModel(
        model.name,
        model.model_type,
        model.max_position,
        model.window_tokens or 0,
        widest_head(model),
        model.kv_cache_precision.name,
        model.sampling,
        _layers(model),
        _layers(prediction_layer(model)),
        _layers(eagle_layer(model)),
        _aliases(model),
    )


def _layers(model: ModelSpec) -> Layers:
    moe, formats = model.moe, model.precisions
    names = (getattr(formats, f.name).name for f in fields(WeightFormats))
    experts = None
    if moe is not None:
        stream = moe.stream_width(model.hidden_size)
        experts = Experts(moe.experts, moe.top_k, moe.width, 2 + moe.gated, stream)
    return Layers(WeightFormats(*names), experts, {tp: _shard(model, tp) for tp in _sizes(model)})


def _sizes(model: ModelSpec) -> Iterator[int]:
    mixers = [g.attention for g in model.layer_groups if isinstance(g.attention, Attention)]
    heads = gcd(*(m.heads for m in mixers))
    kv_heads = {m.kv_heads for m in mixers if isinstance(m, AttentionSpec)}
    for tp in range(1, heads + 1):
        if heads % tp == 0 and all(n % tp == 0 or tp % n == 0 for n in kv_heads):
            yield tp


def _shard(model: ModelSpec, tp: int) -> Shard:
    dense, described = dense_work(model, tp), model_descriptors(model, tp, tp, 1)
    return Shard(
        {name: value for name, value in model_facts(model, tp).items() if value},
        {weights.name: flop for weights, flop in dense.token_flop},
        {weights.name: flop for weights, flop in dense.head_flop},
        {name: float(v) for name, v in described.items() if name not in _OF_RANKS},
    )


def _aliases(model: ModelSpec) -> dict[str, Sampling]:
    """Other names of a model; a chat model samples otherwise than its base model."""
    base, at, scheme = model.name.partition("@")
    return {f"{name}{at}{scheme}": load_model(name).sampling for name in names_of(base)[1:]}


def write_specs(document: dict[str, Any], path: Path) -> None:
    """Write a document of ``specs_document``; the file appears whole or not at all."""
    write_whole(path, json_text(document) + "\n")

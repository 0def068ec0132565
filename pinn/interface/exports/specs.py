"""Models and GPUs as plain JSON, for programs that do not read a Hugging Face config.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pinn.common.files import replace_atomically
from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.gpu import GpuSpec, gpu_aliases
from pinn.specs.model import (
    LatentAttentionSpec,
    LayerGroup,
    ModelSpec,
    MoeFfnSpec,
    Sampling,
    WeightPrecisions,
    mixer_names,
)
from pinn.specs.model_names import names_of
from pinn.specs.precision import PRECISIONS
from pinn.specs.speculation import DEFAULT_ACCEPTANCE

FORMAT = "pinn.specs"
VERSION = 2
#: Fields that only models have which are refused here.
_OF_OTHER_LAYERS = ("output_gate", "shares_cache", "indexer", "latent_width")


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
        "models": [_model(model) for model in models],
        "gpus": [asdict(gpu) | {"aliases": list(gpu_aliases(gpu))} for gpu in gpus],
    }


def _model(model: ModelSpec) -> dict[str, Any]:
    if not model.is_plain:
        raise PinnError(
            f"the Go package makes coefficients of models of attention over keys alone, and "
            f"{model.name} has other layers ({mixer_names(model)}): 'pinn export table' writes "
            "its coefficients for Go"
        )
    return {
        "name": model.name,
        "model_type": model.model_type,
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "max_position": model.max_position,
        "layer_groups": [_group(group) for group in model.layer_groups],
        "precisions": {
            f.name: getattr(model.precisions, f.name).name for f in fields(WeightPrecisions)
        },
        "kv_cache_precision": model.kv_cache_precision.name,
        "sampling": asdict(model.sampling),
        "aliases": {name: asdict(sampling) for name, sampling in _aliases(model).items()},
    }


def _aliases(model: ModelSpec) -> dict[str, Sampling]:
    """Other names of a model; a chat model samples otherwise than its base model."""
    base, at, scheme = model.name.partition("@")
    return {f"{name}{at}{scheme}": load_model(name).sampling for name in names_of(base)[1:]}


def _group(group: LayerGroup) -> dict[str, Any]:
    kind = "latent" if isinstance(group.attention, LatentAttentionSpec) else "grouped_query"
    ffn = "mixture_of_experts" if isinstance(group.ffn, MoeFfnSpec) else "dense"
    return {
        "count": group.count,
        "attention": {"kind": kind, **_sizes(group.attention)},
        "ffn": {"kind": ffn, **_sizes(group.ffn)},
    }


def _sizes(part: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(part).items() if name not in _OF_OTHER_LAYERS}


def write_specs(document: dict[str, Any], path: Path) -> None:
    """Write a document of ``specs_document``; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(path, lambda target: target.write_text(json.dumps(document) + "\n"))

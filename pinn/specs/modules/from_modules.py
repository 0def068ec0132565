"""A model specification of what was read off modules."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from pinn.errors import PinnError, UnknownLayersError
from pinn.specs import model
from pinn.specs.config_fields import models_file, read_fields
from pinn.specs.huggingface import ReadSettings, longest_context, model_of
from pinn.specs.modules.building import build_text_model
from pinn.specs.modules.reading import ModuleReader


def model_from_modules(
    config: Mapping[str, Any], source: str, settings: ReadSettings, refusal: UnknownLayersError
) -> model.ModelSpec:
    """Read a model off the modules that transformers builds for its config.json.

    A warning says what was recognized.

    Args:
        config: The JSON object.
        source: File name for error messages.
        settings: What is known beside the config.json.
        refusal: Why its keys alone do not tell its layers.

    Raises:
        PinnError: Why it cannot be read either way.
    """
    try:
        found = _read(config, source, settings)
    except PinnError as error:
        reason = str(error).removeprefix(f"{source}: ")
        raise PinnError(f"{refusal}. Read off modules: {reason}") from error
    return found


def _read(config: Mapping[str, Any], source: str, settings: ReadSettings) -> model.ModelSpec:
    given = read_fields(config, source)
    other = models_file("types.json")["unlike_modules"].get(given.model_type)
    if other is not None:
        raise PinnError(f"{source}: engines compute it unlike transformers: {other}")
    built = build_text_model(given)
    reader = ModuleReader(built, longest_context(built.fields))
    parts, stem = reader.read()
    _check_shapes(parts, source)
    stated = given.truth("tie_word_embeddings")
    stem |= {} if stated is None else {"tied_embeddings": stated}
    found = model_of(given, parts, stem, settings)
    warnings.warn(f"{source}: {reader.note}", stacklevel=2)
    return found


def _check_shapes(parts: Sequence[model.LayerPart], source: str) -> None:
    """Refuse layers of several shapes, which a model has no costs for.

    Raises:
        PinnError: If attention or dense networks differ by layer in more than the window.
    """
    mixers = [part.mixer for part in parts]
    shapes = {
        (m.heads, m.kv_heads, m.head_dim) for m in mixers if isinstance(m, model.AttentionSpec)
    }
    widths = {p.ffn.width for p in parts if isinstance(p.ffn, model.DenseFfnSpec)}
    for what, found in (("attention heads", shapes), ("dense feed-forward width", widths)):
        if len(found) > 1:
            text = ", ".join(map(str, sorted(found, key=str)[:3]))
            raise PinnError(f"{source}: layers differ in {what} ({text}), which is not supported")

"""Loading of models by name or path: ``load_model`` and ``list_models``."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

from pinn.common import documents, files
from pinn.errors import PinnError, UnknownLayersError, warn_user
from pinn.specs import model_names
from pinn.specs.config_fields import check_supported, name_of, read_fields
from pinn.specs.huggingface import ReadSettings, model_from_config, quantization_of
from pinn.specs.model import ModelSpec, Sampling, sampling_from_generation_config
from pinn.specs.model_names import CatalogModel, catalog_models, optional_json, quantization_beside
from pinn.specs.model_variants import Variant, find_variant


def load_model(
    source: str | Path | Mapping[str, object],
    *,
    published_as: str | None = None,
    fallback_precision: str | None = None,
) -> ModelSpec:
    """Load the model that a parsed config.json, a path or a name specifies.

    As in vLLM, sampling settings are read from a generation_config.json in the folder of the
    config.json. Models of the catalog have their published settings
    (``data/models/generation.json``).

    Args:
        source: A parsed config.json; the path of a config.json or of its folder; or a name. Names
            are case-insensitive. They are looked up in the catalog (``org/name``, a unique bare
            ``name`` or an alias), then in the local Hugging Face cache, then on the hub. A name
            without any match is interpreted word by word, with a warning (``find_variant``).
        published_as: Name of the model whose published sampling settings apply if a path's folder
            has no generation_config.json.
        fallback_precision: Weight format to assume, with a warning, if the quantization is unknown.

    Raises:
        PinnError: If the model cannot be read, or is not found (the message suggests similar
            names).
    """
    if isinstance(source, Mapping):
        name = str(source.get("_name_or_path") or "config.json")
        return _read(source, name, ReadSettings(name, fallback_precision=fallback_precision))
    path = _as_path(source)
    if path is not None:
        quant = optional_json(quantization_beside(path))
        sampling = _sampling(_beside(path, model_names.GENERATION_FILE), published_as)
        processor = optional_json(_beside(path, model_names.PROCESSOR_FILE))
        settings = ReadSettings(name_of(path), quant, sampling, fallback_precision, processor)
        return _read(documents.read_json(path), str(path), settings)
    name = str(source)
    return replace(_load_name(name, fallback_precision), asked_as=name)


@cache
def list_models() -> tuple[str, ...]:
    """Return the full names of the catalog's models, without aliases and unsupported models."""
    return tuple(sorted(each.name for each in catalog_models().values() if _is_supported(each)))


def _is_supported(model: CatalogModel) -> bool:
    config, quantization = model.documents()
    try:
        fields = read_fields(config, model.name)
        check_supported(fields)
        quantization_of(fields, quantization)
    except PinnError:
        return False
    return True


@lru_cache(maxsize=256)
def _load_name(name: str, fallback_precision: str | None) -> ModelSpec:
    known = model_names.find_in_catalog(name)
    if known is not None:
        if fallback_precision is not None and _is_supported(known):
            # Cache a model with a known quantization without the fallback, so that look-ups with
            # different fallback formats share one cache entry.
            return _load_name(name, None)
        config, quantization = known.documents()
        sampling = _sampling(None, name)
        settings = ReadSettings(known.name, quantization, sampling, fallback_precision)
        return _read(config, known.name, settings)
    model_names.check_name(name)
    try:
        path = model_names.cached_file(name, "config.json") or model_names.download_config(name)
    except PinnError as error:
        variant = find_variant(name)
        if variant is not None:
            return _load_variant(name, variant)
        where = f"the name is not in 'pinn models' or the local Hugging Face cache, and {error}"
        remedy = model_names.suggestion(name)
        raise PinnError(f"the model {name!r} is unknown: {where}; {remedy}") from error
    files_of = (model_names.QUANT_FILE, model_names.PROCESSOR_FILE)
    quant, processor = (optional_json(model_names.cached_file(name, each)) for each in files_of)
    sampling = _sampling(model_names.cached_file(name, model_names.GENERATION_FILE), name)
    settings = ReadSettings(name, quant, sampling, fallback_precision, processor)
    return _read(documents.read_json(path), str(path), settings)


def forget_models() -> None:
    """Clear the cache of models that were loaded by name."""
    _load_name.cache_clear()


def _load_variant(name: str, variant: Variant) -> ModelSpec:
    base = _load_name(variant.base, None)
    sampling = _sampling(None, variant.published_as) or base.sampling
    model = variant.applied(replace(base, sampling=sampling), name)
    warn_user(variant.note(name, model))
    return model


def _read(config: Mapping[str, object], source: str, settings: ReadSettings) -> ModelSpec:
    """Build the model of a config.json, from its keys or else from transformers' modules."""
    try:
        return model_from_config(config, source, settings)
    except UnknownLayersError as refusal:
        from pinn.specs.modules.from_modules import model_from_modules

        return model_from_modules(config, source, settings, refusal)


def _sampling(file: Path | None, name: str | None) -> Sampling | None:
    """Return the sampling settings of a generation_config.json, or else a model's published ones.

    Raises:
        PinnError: If the file is not a JSON object.
    """
    if file is None:
        content: object = model_names.published_generation(name or "")
        if content is None:
            return None
    else:
        content = documents.read_json(file)
    if not isinstance(content, Mapping):
        raise PinnError(f"{file} must have a JSON object, got {content!r:.60}")
    return sampling_from_generation_config(content, str(file or "data/models/generation.json"))


def _as_path(source: str | Path) -> Path | None:
    """Return the path of the config.json that a string denotes; None if it is a model's name."""
    path = files.given_path(source)
    config = path / "config.json" if path.is_dir() else path
    if config.name == "config.json" and config.is_file():
        return config
    if path.exists() and model_names.find_in_catalog(str(source)) is None:
        model_names.check_path(path)
    if path.is_file():
        return path
    text = str(source)
    if path.is_dir() and (isinstance(source, Path) or model_names.find_in_catalog(text) is None):
        raise PinnError(f"the folder {path} has no config.json: give the folder of a model")
    if isinstance(source, Path) or text.endswith(".json") or text[:1] in (".", "/", "~"):
        raise PinnError(
            f"the file {path} does not exist: give a config.json, its folder, or a model name"
        )
    return None


def _beside(path: Path, name: str) -> Path | None:
    """Return the path of a file in a config.json's folder; None if there is no such file."""
    found = path.with_name(name)
    return found if path.name == "config.json" and found.is_file() else None

"""Engine configurations as key-value pairs: single ones, lists, grids, and pools of servers."""

import difflib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any

from pinn.common import documents, files
from pinn.engines import launch_values
from pinn.engines.deployment import Deployment, draft_of
from pinn.engines.recipe import FLAGS, unread_notice
from pinn.engines.refused_formats import beyond_a_machine
from pinn.errors import PinnError, warn_user
from pinn.specs.catalog import forget_models, load_model
from pinn.specs.flags import FORCE, FlagValue
from pinn.specs.gpu import load_gpu
from pinn.specs.model import ModelSpec
from pinn.specs.model_variants import check_format, fallback_of, with_precision
from pinn.specs.pooling import with_runner
from pinn.specs.request_media import media_options
from pinn.specs.serving import VLLM, ServingSpec

# Engine configurations as keys and values, one or many, and their deployments.

#: Configuration as the user writes it: values by key, as text or typed.
Configuration = Mapping[str, object]
#: Configuration with canonical keys and types, from :func:`canonical`.
Values = dict[str, FlagValue]

_FLAGS = {**FLAGS, FORCE.name: FORCE}
_SPELLINGS = {text: name for name, flag in FLAGS.items() for text in (flag.option, *flag.shorts)}
_SPELLINGS |= {
    text: flag.name
    for flag in FLAGS.values()
    for text in (*flag.other_names, *(short.removeprefix("-") for short in flag.shorts))
}
#: Switches that set a flag to the opposite of their own value, such as SGLang's ``--disable-...``.
_REVERSED = {text for flag in FLAGS.values() for text in flag.reversed_names}
_ALIASES = {"quantization": "precision", "-q": "precision", "q": "precision"}

#: All keys of a configuration: model, GPU, weight format, and vLLM's flags with underscores.
KEYS = ("model", "gpu", "precision", *_FLAGS)
#: All keys and their accepted alternative names.
_NAMES = sorted({*KEYS, *_ALIASES, *_SPELLINGS})


class UnreadableValue(str):
    """Value of the wrong type in a row of a table, as text.

    Attributes:
        fault: Error message that states the expected value.
        where: Prefix of the message, such as the file and the row.
    """

    fault: str
    where: str

    def __new__(cls, value: object, fault: str, where: str) -> "UnreadableValue":
        """Return the value as text, with its error message and the place of the value."""
        found = super().__new__(cls, value)
        found.fault, found.where = fault, where
        return found


def canonical(
    configuration: Configuration, where: str = "", spelled: dict[str, str] | None = None
) -> Values:
    """Return a configuration with canonical keys and typed values, without missing values.

    Args:
        configuration: Values by key. Keys are as in ``KEYS`` or in another engine's spelling, with
            dashes or underscores, or abbreviated, such as ``-tp`` or ``tp``; ``quantization`` means
            ``precision``.
        where: Prefix for error messages, such as the file and the row.
        spelled: Dictionary to which the user's spelling of each canonical key is added. With it,
            the user's own identifiers (:func:`is_own_id`) are kept; without it, they are unknown
            keys. With it, a value of the wrong type becomes an :class:`UnreadableValue`, which
            :func:`make_deployments` refuses.

    Raises:
        PinnError: If a key is unknown or, without ``spelled``, a value has the wrong type.
    """
    found: Values = {}
    first: dict[str, str] = {}
    for key, value in configuration.items():
        name = _key(str(key))
        if spelled is not None:
            spelled[name] = str(key)
            if name not in KEYS and is_own_id(str(key)):
                found[name] = value if isinstance(value, int | float | None) else str(value)
                continue
        if name not in KEYS:
            remedy = _key_remedy(name, str(key), is_column=spelled is not None)
            raise PinnError(f"{where}the configuration key {key!r} is unknown: {remedy}")
        if not (is_missing(value) or (isinstance(value, str) and value == "")):
            if name in found:
                raise PinnError(
                    f"{where}{name} is given twice, as {first[name]!r} and as {key!r}: omit one of "
                    "the two"
                )
            first[name] = str(key)
            read = _cell(name, value) if isinstance(value, str) else None
            if read is None:
                read = _read_or_keep(name, value, where, spelled is not None)
            negated = is_reversed(str(key)) and not isinstance(read, UnreadableValue)
            found[name] = not read if negated else read
    return found


def is_missing(value: object) -> bool:
    """Return whether a value means "not given": None, NaN or pandas' NA.

    >>> is_missing(None), is_missing(float("nan")), is_missing(0)
    (True, True, False)
    """
    if isinstance(value, Real):
        return bool(value != value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _key_remedy(name: str, key: str, is_column: bool) -> str:
    """Return what to do about an unknown key: use a similar key, or rename the user's own column.

    >>> _key_remedy("tensor_paralel_size", "tensor_paralel_size", False)
    'did you mean tensor_parallel_size?'
    >>> _key_remedy("tpsize", "tpsize", False)
    'did you mean tp_size?'
    """
    own = f"drop the column, or name it '{key}_id' to keep it" if is_column else ""
    if close := difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.75):
        return f"did you mean {close[0]}?" + (f" Otherwise {own}" if own else "")
    known = f"use {', '.join(KEYS).replace('precision', 'quantization', 1)}"
    return f"{own}; for a flag, {known}" if own else known


def _read_or_keep(name: str, value: object, where: str, keep: bool) -> FlagValue:
    """Return a value in its flag's type; with ``keep``, return a bad one as UnreadableValue."""
    if not keep:
        return _read(name, value, where)
    try:
        return _read(name, value, "")
    except PinnError as error:
        return UnreadableValue(value, str(error), where)


def is_own_id(key: str) -> bool:
    """Return whether a key is a user-defined row identifier: ``id`` or ``..._id``."""
    return _spelled(key).lower().split("_")[-1] == "id"


def _read(name: str, value: object, where: str) -> FlagValue:
    flag = _FLAGS.get(name)
    if name in SPELLED and isinstance(value, str):
        value = launch_values.plain(VLLM, name, value).fields.get(name, value)
    return flag.read(value, where + name) if flag else _text(value, where + name)


#: Flags with values that engines also accept in other notations, such as ``32k`` for 32,000.
SPELLED = ("kv_cache_dtype", "max_model_len", "max_num_batched_tokens")


@lru_cache(maxsize=65536)
def _cell(name: str, text: str) -> FlagValue:
    """Convert a string to the type of the flag ``name``; return None if that fails."""
    try:
        return _read(name, text, "")
    except PinnError:
        return None


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        got = documents.written(value)
        raise PinnError(f"{where} must be text, got {got}: put the value in quotes")
    return value.strip()


@lru_cache(maxsize=256)
def _key(text: str) -> str:
    if text.strip() in _SPELLINGS:
        return _SPELLINGS[text.strip()]
    name = _spelled(text)
    return _ALIASES.get(name, _SPELLINGS.get(name, name))


@lru_cache(maxsize=256)
def is_reversed(text: str) -> bool:
    """Return whether a key negates a flag, so that its value is inverted (``disable_...``)."""
    return _spelled(text) in _REVERSED


def _spelled(text: str) -> str:
    return text.strip().removeprefix("--").replace("-", "_")


def make_deployment(configuration: Configuration) -> Deployment:
    """Return the deployment for one configuration; missing flags have the engine's defaults.

    Args:
        configuration: A configuration from :func:`canonical`.

    Raises:
        PinnError: If the model or the GPU is missing or unknown, or the flags are incompatible.
    """
    for name in ("model", "gpu"):
        if configuration.get(name) is None:
            raise PinnError(f"{name} is missing: give --{name}, or add a column {name!r}")
    precision = configuration.get("precision")
    model = _model(str(configuration["model"]), None if precision is None else str(precision))
    gpu = _gpu(str(configuration["gpu"]))
    flags = {name: value for name, value in configuration.items() if name in FLAGS}
    force = bool(configuration.get(FORCE.name))
    serving = _serving(tuple(flags.items()))
    if serving.runner != "auto":
        model = with_runner(model, serving.runner)
    found = Deployment(model, gpu, serving, force=force)
    notice = unread_notice(found.serving.engine, found.serving.engine_version)
    if notice is not None:
        warn_user(notice)
    _warn_of_stand_ins(model)
    if found.serving.enable_lora:
        warn_user(
            "the memory of LoRA adapters is included, but step times exclude the adapters' kernels"
        )
    if warning := beyond_a_machine(found):
        warn_user(warning)
    return found


@lru_cache(maxsize=1024)
def _model(name: str, precision: str | None) -> ModelSpec:
    fallback = None if precision is None else fallback_of(precision)
    model = load_model(name, fallback_precision=fallback)
    if model.left_out:
        remedy = "count the tokens of images and audio as prompt tokens"
        if options := media_options(model.images, model.audio):
            remedy = (
                "'pinn coefficients', 'breakdown', 'simulate' and 'plan' include images and audio "
                f"if {options} is given; exported files do not include them"
            )
        warn_user(
            f"{name}: times cover only the text model, without its {model.left_out}; {remedy}"
        )
    if model.bidirectional:
        told = (
            "the model is an encoder without a KV cache: the memory shown for the cache "
            "remains unused"
        )
        warn_user(f"{name}: {told}; the training data has no encoder models")
    if precision is None:
        return model
    check_format(model, precision)
    return with_precision(model, precision)


def _warn_of_stand_ins(model: ModelSpec) -> None:
    """Warn if weight formats of a model have no measured kernels, and name the substitutes."""
    stand_ins = {form.name: form.timed_as for form in vars(model.precisions).values()}
    for form, timed_as in stand_ins.items():
        if timed_as:
            told = f"kernels for {form} were not measured: times of {timed_as} kernels are used"
            warn_user(f"{model.title}: {told}; weight sizes are exact")


_gpu = lru_cache(maxsize=1024)(load_gpu)


def forget_files() -> None:
    """Clear the in-memory cache of model and GPU files.

    A long-running process then reads the files again, and repeats the warnings about models.
    """
    forget_models()
    for cached in (_model, _gpu, draft_of):
        cached.cache_clear()


@lru_cache(maxsize=65536)
def _serving(flags: tuple[tuple[str, Any], ...]) -> ServingSpec:
    return ServingSpec(**dict(flags))


def _values(values: object) -> list[object]:
    """Return the values of an axis: a sequence's, an array's or a pandas Series's, or the one."""
    if isinstance(values, Sequence) and not isinstance(values, str):
        return list(values)
    return list(values.tolist()) if getattr(values, "ndim", 0) == 1 else [values]  # type: ignore[attr-defined]


def expand_grid(
    axes: Configuration, where: str = "", spelled: dict[str, str] | None = None
) -> list[Values]:
    """Return the configurations of a grid: one per combination of the values in ``axes``.

    ``spelled`` is as in :func:`canonical`; a grid has no identifiers.

    Raises:
        PinnError: If a key is unknown, a value has the wrong type, or a list is empty.

    >>> [c["gpu"] for c in expand_grid({"gpu": ["H100", "A100"], "tensor_parallel_size": 2})]
    ['H100', 'A100']
    """
    listed = {key: _values(values) for key, values in axes.items()}
    empty = [key for key, values in listed.items() if not values]
    if empty:
        raise PinnError(
            f"{where}the keys {', '.join(empty)} have no values: give at least one value per key"
        )
    check_configurations(math.prod(map(len, listed.values())), where)
    canonical(dict.fromkeys(axes), where)  # without ``spelled``, identifiers are unknown keys
    combined = (zip(listed, each, strict=True) for each in itertools.product(*listed.values()))
    return [canonical(dict(named), where, spelled) for named in combined]


def check_configurations(count: int, where: str = "") -> None:
    """Check the number of configurations in a list or grid before they are built.

    Raises:
        PinnError: If ``count`` exceeds ``MOST_CONFIGURATIONS``.
    """
    documents.check_size(
        count,
        documents.MOST_CONFIGURATIONS,
        f"{where}the number of configurations",
        "split the list",
    )


def parse_grid(text: str, spelled: dict[str, str] | None = None) -> list[Values]:
    """Parse a grid in command-line notation and return its configurations.

    ``spelled`` is as in :func:`canonical`.

    Raises:
        PinnError: If a word of the text does not have the form ``key=value,value``.

    >>> len(parse_grid("gpu=H100,A100 tensor_parallel_size=1,2,4"))
    6
    """
    axes: dict[str, list[str]] = {}
    for part in text.split():
        key, equals, values = part.partition("=")
        if not equals or not values or key in axes:
            raise PinnError(
                f"the part {part!r} of the grid cannot be read: write key=value,value once per "
                "key, such as 'gpu=H100,A100 tensor_parallel_size=1,2'. Values with spaces or "
                "commas need a YAML file"
            )
        axes[key] = values.split(",")
    return expand_grid(axes, spelled=spelled)


def make_deployments(
    configurations: Iterable[Mapping[str, FlagValue]],
    skip_invalid: bool = False,
    names: Sequence[str] | None = None,
) -> tuple[list[Values], list[Deployment], dict[int, PinnError]]:
    """Return the deployments for many configurations, and the reasons for skipped configurations.

    Args:
        configurations: Configurations from :func:`canonical`.
        skip_invalid: Whether to skip incompatible configurations, which occur in most grids.
        names: Name of each configuration in error messages; None for its 1-based position.

    Returns:
        The valid configurations; their deployments; and for each skipped configuration its 1-based
        position in ``configurations``, with the error.

    Raises:
        PinnError: If a configuration is incompatible and ``skip_invalid`` is false.
    """
    kept: list[Values] = []
    deployments: list[Deployment] = []
    reasons: dict[int, PinnError] = {}
    for number, configuration in enumerate(configurations, 1):
        bad = next((v for v in configuration.values() if isinstance(v, UnreadableValue)), None)
        if bad is not None and not skip_invalid:
            raise PinnError(bad.where + bad.fault)
        try:
            if bad is not None:
                raise PinnError(bad.fault)
            deployments.append(make_deployment(configuration))
        except PinnError as error:
            if not skip_invalid:
                name = f"configuration {number}" if names is None else names[number - 1]
                raise PinnError(f"{name}: {error}") from error
            reasons[number] = error
            continue
        kept.append(dict(configuration))
    return kept, deployments, reasons


# Lists and grids of configurations, read from CSV, YAML or JSON files.

SUFFIXES = (".csv", ".yaml", ".yml", ".json")


def read_configurations(path: Path, spelled: dict[str, str] | None = None) -> list[Values]:
    """Return the configurations in a CSV, YAML or JSON file.

    A CSV file has one column per key and one row per configuration. A YAML or JSON file contains a
    list of configurations, or a grid, which has a list of values per key. ``spelled`` is as in
    :func:`canonical`.

    Raises:
        PinnError: If the file is missing, malformed or empty, or has an unknown key or a value of
            the wrong type; the message gives the file and the row.
    """
    if path.suffix.lower() not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise PinnError(f"the format of {path} is unknown: give a name that ends in {known}")
    read = _from_csv if path.suffix.lower() == ".csv" else _from_tree
    found = read(path, spelled)
    if not found:
        raise PinnError(f"{path} has no configurations: add at least one row")
    return found


def typed_configurations(typed: str | Path, spelled: dict[str, str] | None = None) -> list[Values]:
    """Return the configurations from a file if the text is a file name, otherwise from a grid."""
    path = files.given_path(typed)
    grid = "=" in str(typed) and not path.is_file()
    return parse_grid(str(typed), spelled) if grid else read_configurations(path, spelled)


def _from_csv(path: Path, spelled: dict[str, str] | None) -> list[Values]:
    table = documents.CsvTable(path)
    rows = list(itertools.islice(table.rows(), documents.MOST_CONFIGURATIONS + 1))
    check_configurations(len(rows), f"{path}: ")
    named = ((line, dict(zip(table.names, values, strict=True))) for line, values in rows)
    return [canonical(row, f"{path}, line {line}: ", spelled) for line, row in named]


def _from_tree(path: Path, spelled: dict[str, str] | None) -> list[Values]:
    where = f"{path}: "
    read = documents.read_json if path.suffix.lower() == ".json" else documents.read_yaml
    tree = read(path)
    if isinstance(tree, dict):
        return expand_grid(_named(tree, where), where, spelled)
    if tree is not None and not isinstance(tree, list):
        raise PinnError(
            f"{where}the file must have a list of configurations or a grid, got {tree!r:.60}"
        )
    check_configurations(len(tree or ()), where)
    found: list[Values] = []
    for number, entry in enumerate(tree or (), 1):
        if not isinstance(entry, dict):
            raise PinnError(f"{where}entry {number} must map keys to values, got {entry!r:.60}")
        about = f"{path}, entry {number}: "
        found.append(canonical(_named(entry, about), about, spelled))
    return found


def _named(tree: Configuration, where: str) -> Configuration:
    """Return a mapping after checking that all keys are strings (YAML allows other types)."""
    other = [key for key in tree if not isinstance(key, str)]
    if other:
        raise PinnError(f"{where}a key must be text, such as gpu, got {other[0]!r:.60}")
    return tree


# Pools of servers as text, such as ``2x tp=4 ep``.

_WORKERS = re.compile(r"(\d+)x")
_SHORTS = {short.lstrip("-"): name for name, flag in FLAGS.items() for short in flag.shorts}
_LAYOUT = "write the number of servers and the flags of each server, such as '2x tp=4 ep'"


def parse_pool(text: str, option: str) -> tuple[int, Values]:
    """Parse the description of a pool of servers, such as ``2x tp=4 ep``.

    Args:
        text: The number of servers with the suffix ``x`` (default 1), and the settings of each
            server as ``name=value`` or, for a switch, as ``name``. Names are flags, abbreviated
            (``tp``) or in full, ``gpu`` and ``precision``.
        option: Name of the option for error messages, such as ``--prefill``.

    Returns:
        The number of servers, and the flags of each server as :func:`canonical` returns them.

    Raises:
        PinnError: If the text is malformed, specifies no server, or has an unknown flag or value.

    >>> parse_pool("2x tp=4 ep", "--prefill")
    (2, {'tensor_parallel_size': 4, 'enable_expert_parallel': True})
    """
    words = text.split()
    found = _WORKERS.fullmatch(words[0]) if words else None
    workers = int(found[1]) if found else 1
    if not words or workers == 0:
        raise PinnError(f"{option} is {text!r}, which has no servers: {_LAYOUT}")
    flags: Values = {}
    for word in words[1:] if found else words:
        name, equals, value = word.partition("=")
        name = _SHORTS.get(name, name)
        flag = FLAGS.get(name.replace("-", "_"))
        switch = flag is not None and flag.kind == "bool"
        if not name or (equals and not value) or not (equals or switch):
            raise PinnError(f"{option} {text!r} has the unknown word {word!r}: {_LAYOUT}")
        if name == "model":
            raise PinnError(
                f"{option} {text!r} names a model, but prefill and decode workers serve the same "
                "model: give the model with --model"
            )
        if name in flags:
            raise PinnError(f"{option} {text!r} has {name} twice: omit one of the two")
        flags[name] = value if equals else True
    return workers, canonical(flags, f"{option}: ")


def pool_text(workers: int, flags: Mapping[str, FlagValue]) -> str:
    """Return the shortest description that :func:`parse_pool` parses as this pool.

    >>> pool_text(2, {"tensor_parallel_size": 4, "enable_expert_parallel": True})
    '2x tp=4 ep'
    """
    shorts = {name: short for short, name in _SHORTS.items()}
    words = [f"{workers}x"]
    for name, value in flags.items():
        known = shorts.get(name, name)
        words.append(known if value is True else f"{known}={value}")
    return " ".join(words)

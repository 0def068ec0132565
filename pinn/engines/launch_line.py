"""Conversion of an engine's launch command to a configuration, flag by flag."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pinn.common.documents import parse_json, parse_yaml, read_yaml
from pinn.common.files import json_text
from pinn.engines import launch_values
from pinn.engines.recipe import engine_rows
from pinn.errors import PinnError, printable
from pinn.specs.catalog import load_model
from pinn.specs.flags import TRUTH
from pinn.specs.gpu import GpuSpec
from pinn.specs.serving import SGLANG, TRTLLM, VLLM

# Flags of the engines' launch commands: ``data/engines/launch_flags.csv``.
#
# Flag names are from the argument parsers of vLLM 0.10.2 to 0.33.0 and SGLang 0.5.3 to 0.5.23
# (``vllm/engine/arg_utils.py``, ``entrypoints``; ``srt/server_args.py``, ``arg_groups/fields``),
# and of ``trtllm-serve`` with the keys of its YAML options (not verified). A test compares the
# table with the source of the newest release.

TAKEN, NO_EFFECT, UNMODELLED = "taken", "no_effect", "unmodelled"
SWITCH, VALUE, VALUES = "switch", "value", "values"


class Known(NamedTuple):
    """Treatment of one flag of an engine's launch command.

    Attributes:
        kind: Effect on predictions: ``TAKEN`` (sets a field), ``NO_EFFECT`` or ``UNMODELLED``.
        takes: Number of arguments of the flag: ``SWITCH`` for none, ``VALUE`` for one, ``VALUES``
            for several.
        field: Field of ``ServingSpec`` or ``EngineSpec`` that the flag sets. With the prefix ``!``,
            the field is set to the opposite value. The prefix ``:`` names a function of
            ``pinn.engines.launch_values``.
    """

    kind: str
    takes: str
    field: str


@cache
def known_flags(engine: str) -> dict[str, Known]:
    """Return how each flag of an engine is treated, by flag name with dashes."""
    return {
        name: Known(row["kind"], row["takes"], row["field"])
        for row in engine_rows("launch_flags.csv")
        if row["engine"] == engine
        for name in row["flags"].split()
    }


def unknown_flag(engine: str, name: str) -> PinnError:
    """Return the error for an unknown flag; the message suggests the most similar known flag."""
    close = difflib.get_close_matches(name, sorted(known_flags(engine)), n=1, cutoff=0.5)
    meant = f": did you mean {close[0]}?" if close else f": omit {name}"
    return PinnError(f"{name} is not a known flag of {engine}{meant}")


# Conversion of a launch command to a configuration, with lists of its flags by effect.

#: Full names of vLLM's short flags for keys of JSON arguments (0.33.0
#: ``vllm/engine/arg_utils.py``).
_PARTS = {
    "--spec-method": "--speculative-config.method",
    "--spec-model": "--speculative-config.model",
    "--spec-tokens": "--speculative-config.num_speculative_tokens",
}
#: Prefixes of the names of environment variables that each engine reads.
_OWN = {VLLM: ("VLLM_",), SGLANG: ("SGLANG_", "SGL_"), TRTLLM: ("TRTLLM_", "TLLM_", "ENABLE_")}


@dataclass
class Launch:
    """Configuration and flags that a launch command sets.

    Attributes:
        engine: One of ``ENGINES``.
        release: Release of the engine, from the image's tag or as given; empty if unknown.
        configuration: ``model``, ``precision``, ``force`` and fields of ``ServingSpec`` and
            ``EngineSpec``.
        taken: Flags and environment variables that affect predicted times, as typed.
        no_effect: Flags and environment variables that do not affect predicted times, as typed.
        unmodelled: Flags and environment variables that may affect times but are not modelled, with
            the assumption made instead.
    """

    engine: str
    release: str
    configuration: dict[str, Any] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    no_effect: list[str] = field(default_factory=list)
    unmodelled: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """Return a line of text for each type of effect, which lists its flags and variables."""
        titles = "taken from the command", "no effect on predictions", "not modelled"
        lists = [self.taken, self.no_effect, self.unmodelled]
        shown = [", ".join(printable(word, 500) for word in words) for words in lists]
        return [f"{title}: {text}" for title, text in zip(titles, shown, strict=True) if text]


def read_launch(command: str, gpu: GpuSpec | None = None, release: str = "") -> Launch:
    """Return the configuration that a launch command of vLLM, SGLang or TensorRT-LLM sets.

    Args:
        command: Command as typed in a shell, possibly with variables, a container image and line
            breaks.
        gpu: GPU of the server, which determines the effect of some environment variables.
        release: Release of the engine, used if the command has no container image that states it.

    Raises:
        PinnError: If the command starts no known engine, names no model, or has an unknown flag;
            the message then suggests the most similar flag.
    """
    words = launch_values.words_of(command)
    found = read_arguments(words.engine, words.arguments, words.release or release)
    found.configuration["engine"] = words.engine
    if words.release:
        found.configuration["engine_version"] = words.release
    if "model" not in found.configuration:
        raise PinnError("--serve: the launch command names no model: add the model")
    for name, value in words.variables.items():
        _take_variable(found, name, value, gpu)
    return found


def read_arguments(
    engine: str, arguments: list[str], release: str = "", only_known: bool = False
) -> Launch:
    """Return the configuration that an engine's command-line arguments set.

    Args:
        engine: One of ``ENGINES``.
        arguments: Words of the command after the program.
        release: Release of the engine, which determines the meaning of some flags.
        only_known: Whether to skip unknown flags, for commands that an engine is known to accept.

    Raises:
        PinnError: If the arguments name no model, or have an unknown flag.
    """
    found = Launch(engine, release)
    known, pairs = known_flags(engine), list(_pairs(engine, arguments, only_known))
    files = [_of_file(engine, value) for name, value in pairs if _is_file(known, name)]
    typed = [(name, value) for name, value in pairs if not _is_file(known, name)]
    inside = list(chain.from_iterable(files))
    # Arguments on the command line override the YAML file in vLLM and SGLang; in TensorRT-LLM the
    # file overrides the command line.
    ordered = [*typed, *inside] if engine == TRTLLM else [*inside, *typed]
    for name, value in _gathered(engine, ordered).items():
        _take(found, name, value)
    return found


def _is_file(known: Mapping[str, Known], name: str) -> bool:
    return name in known and known[name].field == ":config"


def _pairs(engine: str, arguments: list[str], only_known: bool) -> Iterator[tuple[str, Any]]:
    """Yield each flag of a command with its value, in order."""
    known, rest, positional = known_flags(engine), list(arguments), ""
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            if positional:
                raise PinnError(
                    f"--serve: {word!r:.60} belongs to no flag, but the launch command already has "
                    f"the model {positional!r:.60}: remove one of the two words"
                )
            positional = word
            yield "model", word
            continue
        name, equals, value = word.partition("=")
        base, dot, path = name.partition(".")
        name = base.replace("_", "-") + dot + path
        if "-O" in known and name[:2] == "-O" and name[2:3].isdigit():
            yield "-O", name[2:]
            continue
        try:
            flag = _known(engine, name)
        except PinnError:
            if not only_known:
                raise
            del rest[: _values(rest)]
            continue
        if flag.takes == SWITCH:
            yield _on(known, name), value if equals else name in known or "." in name
        elif equals:
            yield name, value
        elif flag.takes == VALUES:
            count = _values(rest)
            yield name, rest[:count]
            del rest[:count]
        # If the next word is a known flag, the value is missing. A word such as -1 is a value.
        elif not rest or _on(known, rest[0].partition("=")[0].replace("_", "-")) in known:
            raise PinnError(f"--serve: the flag {name} has no value: add a value")
        else:
            yield name, rest.pop(0)


def _values(rest: list[str]) -> int:
    """Return the number of words before the next flag of a command."""
    return next((i for i, word in enumerate(rest) if word.startswith("-")), len(rest))


def _known(engine: str, name: str) -> Known:
    known = known_flags(engine)
    found = known.get(_on(known, name))
    base, dot, _ = name.partition(".")
    if found is None and dot and base in known:
        # The name consists of a flag with a JSON argument, a dot and a key of the JSON object.
        whole = known[base]
        found = None if whole.takes == SWITCH or _is_file(known, base) else whole
    if found is None:
        raise unknown_flag(engine, name)
    return found


def _on(known: Mapping[str, Known], name: str) -> str:
    """Return the switch that a ``--no-`` flag disables; return any other flag unchanged."""
    on = f"--{name.removeprefix('--no-')}"
    off = name.startswith("--no-") and name not in known and on in known
    return on if off and known[on].takes == SWITCH else name


def _of_file(engine: str, path: str) -> Iterator[tuple[str, object]]:
    """Yield the flags in a YAML file, or in YAML or JSON text; nested keys are joined with dots."""
    inline = path.lstrip().startswith("{") or (":" in path and not Path(path).is_file())
    tree = parse_yaml(path, "--serve: options") if inline else read_yaml(Path(path))
    if not isinstance(tree, dict):
        raise PinnError(
            f"--serve: the options in {path!r:.60} must be a mapping of flag names to values"
        )
    known = known_flags(engine)
    for key, value in sorted(tree.items(), key=lambda item: str(item[0])):
        name = f"--{str(key).replace('_', '-')}"
        if isinstance(value, dict) and name not in known:
            for inner, item in sorted(value.items(), key=lambda item: str(item[0])):
                whole = f"{name}.{str(inner).replace('_', '-')}"
                _known(engine, whole)
                yield whole, item
        elif value is not None:
            _known(engine, name)
            yield name, value


def _gathered(engine: str, pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Return the last value of each flag; dotted keys are merged into one JSON object."""
    known, found = known_flags(engine), dict[str, object]()
    for name, value in pairs:
        name = _PARTS.get(name, name) if engine == VLLM else name
        base, dot, path = name.partition(".")
        if not dot or name in known:
            found.pop(name, None)
            found[name] = value
            continue
        whole = found.setdefault(base, {})
        if isinstance(whole, str):
            found[base] = whole = parse_json(whole, base)
        *parents, last = path.split(".")
        for parent in parents:
            whole = whole.setdefault(parent, {}) if isinstance(whole, dict) else whole
        if not isinstance(whole, dict):
            raise PinnError(
                f"{name} sets the key {last} of {base}, which is not a JSON object: correct {base}"
            )
        whole[last] = _scalar(value)
    return found


def _scalar(value: Any) -> object:
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        return value


def _take(found: Launch, name: str, value: object) -> None:
    shown = _as_typed(name, value)
    if name == "model":
        _set(found, name, launch_values.Read({"model": value}), shown)
        return
    flag = known_flags(found.engine)[name]
    if flag.kind != TAKEN:
        {NO_EFFECT: found.no_effect, UNMODELLED: found.unmodelled}[flag.kind].append(shown)
        return
    if flag.field.startswith(":"):
        try:
            read = launch_values.READERS[flag.field](value, found.release)
        except (TypeError, ValueError) as error:
            if isinstance(error, PinnError):
                raise
            raise PinnError(
                f"{name} has the value {_short(value)!r}, which cannot be read: correct the value"
            ) from None
    else:
        field_name = flag.field.removeprefix("!")
        on = _switched(name, value) if flag.takes == SWITCH else value
        read = launch_values.plain(found.engine, field_name, not on if flag.field[0] == "!" else on)
    _set(found, name, read, shown)


def _as_typed(name: str, value: object) -> str:
    """Return a flag and its value as typed in a shell; ``--no-...`` for a disabled switch."""
    if value is True:
        return name
    if value is False and name.startswith("--"):
        return f"--no-{name.removeprefix('--')}"
    return f"{name} {_short(value)}"


def _switched(name: str, value: object) -> bool:
    if str(value).lower() not in TRUTH:
        raise PinnError(f"{name} is a switch, got {value!r:.60}: use true or false")
    return TRUTH[str(value).lower()]


def _take_variable(found: Launch, name: str, value: str, gpu: GpuSpec | None) -> None:
    shown = f"{name}={_short(value)}"
    of_connector = launch_values.connector_variable(found.configuration, name, value)
    if of_connector is not None:
        _set(found, name, of_connector, shown)
        return
    own = name.startswith(_OWN[found.engine])
    read = launch_values.variable_read(name, value)
    if not own or read is None:
        (found.unmodelled if own else found.no_effect).append(shown)
        return
    if "precision" in read.fields and not _runs_mxfp4(found.configuration["model"], gpu):
        read = launch_values.NOTHING
    _set(found, name, read, shown)


def _runs_mxfp4(model: str, gpu: GpuSpec | None) -> bool:
    """Return whether a model's mxfp4 experts can run with both 16-bit and 8-bit activations.

    An environment variable selects between them. Both exist for mxfp4 checkpoints on compute
    capability 10.x (``vllm 0.15.1 quantization/mxfp4.py: get_mxfp4_backend``).
    """
    if gpu is not None and not 10 <= gpu.compute_capability < 11:
        return False
    moe = load_model(model)
    return moe.moe is not None and moe.precisions.experts.name == "mxfp4"


def _set(found: Launch, name: str, read: launch_values.Read, shown: str) -> None:
    found.configuration |= read.fields
    if read.fields:
        found.taken.append(shown)
    elif not read.assumed:
        found.no_effect.append(shown)
    if read.assumed:
        found.unmodelled.append(f"{name} ({read.assumed})")


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json_text(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

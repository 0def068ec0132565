"""A launch command in place of flags: what it sets, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from pinn.engines.launch_line import Launch, known_flags, read_arguments, read_launch
from pinn.engines.launch_values import plain, quantization_format, words_of
from pinn.errors import PinnError, printable
from pinn.specs.gpu import GpuSpec, load_gpu
from pinn.specs.serving import VLLM

#: Keys of a configuration beside flags.
_KEYS = frozenset({"model", "precision", "force"})


def launched(
    command: str | None,
    words: list[str],
    given: Mapping[str, Any],
    gpu: str | None,
    fields: Collection[str],
) -> tuple[dict[str, Any], list[str]]:
    """What a command, and further words of an engine, set.

    Args:
        command: As of ``--serve``; None for none.
        words: Flags of the engine that are no options here.
        given: Flags beside them; ``engine`` and ``engine_version`` say whose words they are, where
            there is no command or its image names none.
        gpu: Names of GPUs with commas between them; None where none is given.
        fields: Flags that have a meaning where this is asked.

    Returns:
        The configuration, and lines that say what was taken and what was not.

    Raises:
        PinnError: As :func:`read_launch`, or if the command starts another engine than is given.
    """
    if command is None and not words:
        return {}, []
    release = str(given.get("engine_version") or "")
    asked = str(given.get("engine") or "").split(",")[0]
    if command is None:
        found = Launch(asked or VLLM, release)
    else:
        found = read_launch(command, _strictest(gpu), release)
        if asked and asked != found.engine:
            raise PinnError(f"--serve starts {found.engine}, not --engine {asked}: leave one out")
    more = read_arguments(found.engine, words, found.release or release)
    found.configuration |= more.configuration
    for name in ("taken", "no_effect", "unmodelled"):
        getattr(found, name).extend(getattr(more, name))
    known = {k: v for k, v in found.configuration.items() if k in _KEYS or k in fields}
    idle = [printable(f"{k} {v}", 500) for k, v in found.configuration.items() if k not in known]
    lines = found.lines
    return known, lines + (
        [f"decides nothing that is asked here: {', '.join(idle)}"] if idle else []
    )


def _strictest(gpu: str | None) -> GpuSpec | None:
    """The GPU that takes least of what a command asks for: one that is no 10.x, if there is one."""
    gpus = [load_gpu(name.strip()) for name in (gpu or "").split(",") if name.strip()]
    return min(gpus, key=lambda g: 10 <= g.compute_capability < 11, default=None)


def _engine_of(arguments: list[str]) -> str:
    """The engine whose flags may be among a command's options."""
    for i, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        value = value if equals else "".join(arguments[i + 1 : i + 2])
        if name == "--engine":
            return value.split(",")[0]
        if name == "--serve":
            with suppress(PinnError):  # said where the command is read
                return words_of(value).engine
    return VLLM


def foreign_words(arguments: list[str], own: Collection[str]) -> tuple[list[str], list[str]]:
    """Arguments of a command here, and flags of an engine among them that it does not have.

    A flag with underscores that is an option with dashes becomes that option.
    """
    known = known_flags(_engine_of(arguments))
    kept: list[str] = []
    foreign: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        on = f"--{dashed.removeprefix('--no-')}"
        if not name.startswith("--") or name in own:
            kept.append(word)
        elif dashed in own:
            kept.append(dashed + equals + value)
        elif (flag := known.get(dashed) or known.get(on) or known.get(name.split(".")[0])) is None:
            kept.append(word)
        else:
            foreign.append(word)
            while rest and not equals and flag.takes != "switch" and not _is_flag(rest[0]):
                foreign.append(rest.pop(0))
                if flag.takes == "value":
                    break
    return kept, foreign


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit()


def in_own_words(engine: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Values of flags as typed, in an engine's spelling or here: ``bfloat16``, ``32k``, ``awq``."""
    found: dict[str, Any] = {}
    for name, value in flags.items():
        if name == "precision" and isinstance(value, str):
            read = quantization_format(value)
            found |= {} if read is None else {name: read}
        elif name in ("kv_cache_dtype", "max_model_len", "max_num_batched_tokens"):
            found[name] = plain(engine, name, value).fields.get(name, value)
        else:
            found[name] = value
    return found

"""A pool of servers as it is written: ``2x tp=4 ep``."""

from __future__ import annotations

import re
from typing import Any

from pinn.coefficients.configurations import canonical
from pinn.errors import PinnError
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec

_WORKERS = re.compile(r"(\d+)x")
_FLAGS = {flag.name: flag for flag in flags_of(ServingSpec)}
_SHORTS = {short.lstrip("-"): flag.name for flag in _FLAGS.values() for short in flag.shorts}
_LAYOUT = "write the number of servers and flags of each, such as '2x tp=4 ep'"


def parse_pool(text: str, option: str) -> tuple[int, dict[str, Any]]:
    """Read a pool.

    Args:
        text: The number of servers with an x, 1 where it is left out, and what each of them has:
            flags as ``name=value``, or ``name`` for a switch, in short (``tp``) or in full, and
            ``gpu`` and ``precision``.
        option: What errors name, such as ``--prefill``.

    Returns:
        Servers, and flags as :func:`pinn.coefficients.configurations.canonical` gives them.

    Raises:
        PinnError: If it cannot be read, names no server, or has an unknown flag or value.

    >>> parse_pool("2x tp=4 ep", "--prefill")
    (2, {'tensor_parallel_size': 4, 'enable_expert_parallel': True})
    """
    words = text.split()
    found = _WORKERS.fullmatch(words[0]) if words else None
    workers = int(found[1]) if found else 1
    if not words or workers == 0:
        raise PinnError(f"{option} {text!r} has no servers: {_LAYOUT}")
    flags: dict[str, Any] = {}
    for word in words[1:] if found else words:
        name, equals, value = word.partition("=")
        name = _SHORTS.get(name, name)
        switch = name.replace("-", "_") in _FLAGS and _FLAGS[name.replace("-", "_")].kind == "bool"
        if not name or (equals and not value) or not (equals or switch):
            raise PinnError(f"{option} {text!r}: cannot read {word!r}: {_LAYOUT}")
        if name == "model":
            raise PinnError(f"{option} {text!r}: both pools serve the model of --model")
        if name in flags:
            raise PinnError(f"{option} {text!r}: {word!r} is given twice: leave one out")
        flags[name] = value if equals else True
    return workers, canonical(flags, f"{option}: ")


def pool_text(workers: int, flags: dict[str, Any]) -> str:
    """The shortest text that :func:`parse_pool` reads so.

    >>> pool_text(2, {"tensor_parallel_size": 4, "enable_expert_parallel": True})
    '2x tp=4 ep'
    """
    shorts = {name: short for short, name in _SHORTS.items()}
    words = [f"{workers}x"]
    for name, value in flags.items():
        known = shorts.get(name, name)
        words.append(known if value is True else f"{known}={value}")
    return " ".join(words)

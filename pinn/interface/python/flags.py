"""Flags of an engine as keyword arguments of a function."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pinn.errors import PinnError
from pinn.simulator.workloads.load_flags import LoadFlags
from pinn.specs.flags import Flag, flags_of
from pinn.specs.serving import ServingSpec

#: Value of a flag; None stands for the engine's default.
FlagValue = int | float | str | bool | None

_Function = TypeVar("_Function", bound=Callable[..., Any])
_TYPES = {"int": int, "float": float, "bool": bool, "str": str}
_QUANTIZATION = Flag("Format to serve the model in, such as fp8.", shown="as its config says")


def with_flags(*specifications: type) -> Callable[[_Function], _Function]:
    """Give a function that takes ``**flags`` every flag in its signature and its help."""
    declared = {"quantization": _QUANTIZATION, **_declared(specifications)}

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.name != "flags"]
        options = [_parameter(name, flag) for name, flag in declared.items()]
        function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        lines = (f"    {name}: {flag.summary}" for name, flag in declared.items())
        listed = "\n".join(["Keyword Args:", *lines])
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{listed}\n"
        return function

    return decorate


def given_flags(flags: Mapping[str, FlagValue], *specifications: type) -> dict[str, Any]:
    """The flags that are given, each in its type; ``quantization`` is called ``precision``.

    Raises:
        PinnError: If a name is unknown, with the nearest one, or a value is not of its type.
    """
    declared = _declared(specifications)
    serving = {name for each in _declared((ServingSpec,)).values() for name in each.other_names}
    loads = {name: f.name for f in flags_of(LoadFlags) for name in f.other_names}
    flags = {loads.get(n, n) if LoadFlags in specifications else n: v for n, v in flags.items()}
    known = {*declared, *serving, "quantization", "precision"}
    found = {}
    for name, value in flags.items():
        if name not in known:
            raise PinnError(f"unknown flag {name!r}: {_nearest(name, known)}")
        if value is not None:
            spelled = "precision" if name == "quantization" else name
            found[spelled] = declared[name].read(value, name) if name in declared else value
    return found


def _declared(specifications: tuple[type, ...]) -> dict[str, Flag]:
    return {flag.name: flag for each in specifications for flag in flags_of(each)}


def _parameter(name: str, flag: Flag) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=flag.default,
        annotation=_TYPES[flag.kind] | None if flag.optional else _TYPES[flag.kind],
    )


def _nearest(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"use {', '.join(sorted(known))}"

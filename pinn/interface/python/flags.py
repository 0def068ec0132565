"""Flags of an engine as keyword arguments of a function."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pinn.errors import PinnError
from pinn.interface.launched import launched
from pinn.simulator.workloads.load_flags import LoadFlags
from pinn.specs.flags import FORCE, Flag, flags_of
from pinn.specs.serving import ServingSpec

#: Value of a flag; None stands for the engine's default.
FlagValue = int | float | str | bool | None

_Function = TypeVar("_Function", bound=Callable[..., Any])
_TYPES = {"int": int, "float": float, "bool": bool, "str": str}
#: Arguments beside the flags of the specifications.
_QUANTIZATION = {
    "quantization": Flag("Format to serve the model in, such as fp8.", shown="as its config says")
}
#: And where deployments are timed that nobody measured.
_BESIDE = {
    **_QUANTIZATION,
    "serve": Flag("Launch command to read model and flags from; flags beside it go first."),
    FORCE.name: FORCE,
}


def with_flags(*specifications: type, deploys: bool = False) -> Callable[[_Function], _Function]:
    """Give a function that takes ``**flags`` every flag in its signature and its help.

    Args:
        specifications: Dataclasses that declare flags.
        deploys: Whether it times deployments that nobody measured: it takes ``serve`` and
            ``force``, too.
    """
    declared = {**(_BESIDE if deploys else _QUANTIZATION), **_declared(specifications)}

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


def given_flags(
    flags: Mapping[str, FlagValue], *specifications: type, gpu: str | Path | None = None
) -> dict[str, Any]:
    """The flags that are given, each in its type; ``quantization`` is called ``precision``.

    ``serve`` stands for the model and the flags of its command; what is not modelled of them is
    said in a warning.

    Raises:
        PinnError: If a name is unknown, with the nearest one, or a value is not of its type.
    """
    declared = _declared(specifications) | {FORCE.name: FORCE}
    serving = {name for each in _declared((ServingSpec,)).values() for name in each.other_names}
    loads = {name: f.name for f in flags_of(LoadFlags) for name in f.other_names}
    flags = {loads.get(n, n) if LoadFlags in specifications else n: v for n, v in flags.items()}
    known = {*declared, *serving, *_BESIDE, "precision"}
    found = {}
    for name, value in flags.items():
        if name not in known:
            raise PinnError(f"unknown flag {name!r}: {_nearest(name, known)}")
        if value is not None and name != "serve":
            spelled = "precision" if name == "quantization" else name
            found[spelled] = declared[name].read(value, name) if name in declared else value
    if not flags.get("serve"):
        return found
    started, lines = launched(
        str(flags["serve"]), [], found, None if gpu is None else str(gpu), declared
    )
    for line in lines:
        if line.startswith("not modelled"):
            warnings.warn(line, stacklevel=3)
    return {k: declared[k].read(v, k) if k in declared else v for k, v in started.items()} | found


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

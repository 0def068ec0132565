"""Requests of commands, flags of engines and launch commands as arguments of a function."""

import difflib
import inspect
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pinn.api.flag_values import in_own_words, read_flag
from pinn.api.requests import OTHER_NAMES, explained, parameters_of
from pinn.common.documents import comma_separated
from pinn.engines import launch_line
from pinn.errors import PinnError, printable
from pinn.specs.flags import FORCE, Flag, flags_of
from pinn.specs.gpu import GpuSpec, load_gpu
from pinn.specs.serving import VLLM, ServingSpec

_Function = TypeVar("_Function", bound=Callable[..., object])
_Request = TypeVar("_Request")
_TYPES = {"int": int, "float": float, "bool": bool, "str": str}
#: Arguments beside the flags of the specifications.
_QUANTIZATION = {
    "quantization": Flag("Format to serve the model in, such as fp8.", shown="as its config says")
}
#: And where one server is asked about; and where deployments are timed that nobody measured.
_SERVED = {
    **_QUANTIZATION,
    "serve": Flag("Launch command to read model and flags from; flags beside it go first."),
}
_BESIDE = {**_SERVED, FORCE.name: FORCE}
#: An option's name in the help of a command.
_OPTION = re.compile(r"--([a-z][a-z-]*)")


def with_arguments(
    *specifications: type,
    request: type | tuple[type, ...] = (),
    deploys: bool = False,
    serves: bool = False,
) -> Callable[[_Function], _Function]:
    """Give a function that takes ``**given`` every argument in its signature and its help.

    Args:
        specifications: Dataclasses that declare flags.
        request: One or several of the command of the same name; what the function declares itself
            is left out.
        deploys: Whether it times deployments that nobody measured: it takes ``serve`` and
            ``force``, too.
        serves: Whether it is about one server: it takes ``serve``, too.
    """
    declared = _declared(specifications)
    if ServingSpec in specifications:
        beside = _BESIDE if deploys else _SERVED if serves else _QUANTIZATION
        declared = {**beside, **declared}

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        requests = request if isinstance(request, tuple) else (request,)
        helps = {n: t for each in requests for n, t in explained(each, "Attributes")[1].items()}
        asked = [p for each in requests for p in parameters_of(each)]
        asked = [p for p in asked if p.name not in signature.parameters]
        flags = {n: flag for n, flag in declared.items() if n not in signature.parameters}
        options = [_parameter(name, flag) for name, flag in flags.items()]
        parameters = [*own, *asked, *options]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        lines = [f"    {p.name}: {_OPTION.sub(_in_python, helps[p.name])}" for p in asked]
        lines += [f"    {name}: {flag.summary}" for name, flag in flags.items()]
        listed = "\n".join(["Keyword Args:", *lines])
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{listed}\n"
        return function

    return decorate


def _in_python(option: re.Match[str]) -> str:
    return option[1].replace("-", "_")


def read_request(
    request: type[_Request], given: Mapping[str, object], *specifications: type, **own: object
) -> tuple[_Request, dict[str, Any]]:
    """The request of a command, and the flags beside it, from arguments.

    Args:
        request: What is made.
        given: Arguments of the request and flags of the specifications; paths may be text.
        specifications: Dataclasses that declare flags.
        own: Fields of the request that the function declares itself.

    Raises:
        PinnError: If a name is unknown, with the nearest one, or a value is not of its type.
    """
    declared = get_type_hints(request)
    names = [name for name in declared if name not in own]
    renamed = {
        n: r for n, r in OTHER_NAMES.items() if r in names and n not in _declared(specifications)
    }
    given = {renamed.get(name, name): value for name, value in given.items()}
    found = {name: value for name, value in given.items() if name in names} | own
    values = {name: _typed(declared[name], value) for name, value in found.items()}
    flags = {name: value for name, value in given.items() if name not in names}
    gpu = values.get("gpu")
    gpus = None if gpu is None else str(gpu)
    return request(**values), given_flags(flags, *specifications, gpu=gpus, beside=names)


def _typed(annotation: object, value: object) -> object:
    """A path for text where a request has paths; text for a path, numbers or several of them."""
    kinds = get_args(annotation) or (annotation,)
    if value is None:
        return None
    of_list = [get_args(each)[0] for each in kinds if get_origin(each) is list]
    if of_list:
        several = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
        return [of_list[0](each) for each in several]
    if Path in kinds:
        return Path(str(value))
    if float in kinds and isinstance(value, int):
        return float(value)
    if str in kinds and isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(str, value))
    return str(value) if str in kinds and isinstance(value, Path | int | float) else value


def given_flags(
    flags: Mapping[str, object],
    *specifications: type,
    gpu: str | None = None,
    beside: Collection[str] = (),
) -> dict[str, object]:
    """The flags that are given, each in its type; ``quantization`` is called ``precision``.

    ``serve`` stands for the model and the flags of its command; what is not modelled of them is
    said in a warning.

    Args:
        flags: As given.
        specifications: Dataclasses that declare them.
        gpu: Names of GPUs with commas between them, for what a launch command asks of them.
        beside: Other arguments that an unknown one may be meant for.

    Raises:
        PinnError: If a name is unknown, with the nearest one, or a value is not of its type.
    """
    declared = _declared(specifications) | {FORCE.name: FORCE}
    served = ServingSpec in specifications
    serving = {name for each in _declared((ServingSpec,)).values() for name in each.other_names}
    from pinn.simulator.workloads.load import LoadFlags  # numpy, which --help does without

    loads = {name: f.name for f in flags_of(LoadFlags) for name in f.other_names}
    flags = {loads.get(n, n) if LoadFlags in specifications else n: v for n, v in flags.items()}
    known = set(declared) if specifications else set()
    known |= {*serving, *_BESIDE, "precision"} if served else set()
    found: dict[str, object] = {}
    for name, value in flags.items():
        if name not in known:
            what = "flag" if specifications else "argument"
            raise PinnError(f"unknown {what} {name!r}: {_nearest(name, {*known, *beside})}")
        if value is not None and name != "serve":
            found["precision" if name == "quantization" else name] = value
    found = in_own_words(str(found.get("engine", VLLM)), found)
    if flags.get("serve"):
        started, lines = launched(str(flags["serve"]), [], found, gpu, declared)
        for line in lines:
            if line.startswith("not modelled"):
                warnings.warn(line, stacklevel=4)
        found = started | found
    return {k: read_flag(declared[k], v, k) if k in declared else v for k, v in found.items()}


def _declared(specifications: tuple[type, ...]) -> dict[str, Flag]:
    return {flag.name: flag for each in specifications for flag in flags_of(each)}


def _parameter(name: str, flag: Flag) -> inspect.Parameter:
    kind, own = inspect.Parameter.KEYWORD_ONLY, _TYPES[flag.kind]
    hint = own | None if flag.optional else own
    return inspect.Parameter(name, kind, default=flag.default, annotation=hint)


def _nearest(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"use {', '.join(sorted(known))}"


#: Keys of a configuration beside flags.
_KEYS = frozenset({"model", "precision", "force"})


def launched(
    command: str | None,
    words: list[str],
    given: Mapping[str, object],
    gpu: str | None,
    fields: Collection[str],
) -> tuple[dict[str, object], list[str]]:
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
    release = str(given.get("engine_version") or "")
    asked = str(given.get("engine") or "").split(",")[0]
    if command is None:
        found = launch_line.Launch(asked or VLLM, release)
    else:
        found = launch_line.read_launch(command, _strictest(gpu), release)
        if asked and asked != found.engine:
            raise PinnError(f"--serve starts {found.engine}, not --engine {asked}: leave one out")
    more = launch_line.read_arguments(found.engine, words, found.release or release)
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
    gpus = map(load_gpu, comma_separated(gpu or ""))
    return min(gpus, key=lambda g: 10 <= g.compute_capability < 11, default=None)

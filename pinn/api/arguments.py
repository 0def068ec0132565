"""Conversion of an API function's keyword arguments to a request object and engine flags."""

import difflib
import inspect
import re
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import cache, wraps
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pinn.api.flag_values import checked_flag, several_values
from pinn.api.requests import OTHER_NAMES, explained, parameters_of
from pinn.common import old_names
from pinn.common.documents import comma_separated
from pinn.common.files import given_path
from pinn.engines import launch_line
from pinn.engines.configurations import is_missing
from pinn.errors import PinnError, printable, warn_user
from pinn.specs.flags import FORCE, Flag, flags_of
from pinn.specs.gpu import GpuSpec, load_gpu
from pinn.specs.serving import VLLM, ServingSpec

_Function = TypeVar("_Function", bound=Callable[..., object])
_Request = TypeVar("_Request")
_TYPES = {"int": int, "float": float, "bool": bool, "str": str}
#: Flag ``quantization``, the number format of the weights. It is not a field of ``ServingSpec``.
FORMAT = Flag(
    "Number format of the weights: bf16, fp16, fp8, fp8_static (static activation scales), "
    "fp8_block, mxfp8, int8, int4, mxfp4, mxfp4_mxfp8 (8-bit activations), nvfp4 (or fp4) or "
    "nvfp4_wo (16-bit activations); or vLLM's name of a method, such as compressed-tensors. nvfp4 "
    "means a checkpoint like NVIDIA's, whose KV cache is in fp8 unless --kv-cache-dtype is set.",
    shown="the checkpoint's",
    shorts=("-q",),
    spelled={"configurations": "precision"},
    name="quantization",
)
_SERVE = Flag(
    "Launch command with model and flags; other options override its flags.", name="serve"
)
#: Pattern of an option name in a command's help; quoted commands come first, without a group.
_OPTION = re.compile(r"'pinn [^']*'|--([a-z][a-z-]*)")
#: Pattern of an option in an error, with its value if one follows; quoted commands come first.
_TYPED = re.compile(
    r"'(?:pinn|python) [^']*'"
    r"|--(?P<name>[a-z][a-z0-9-]*)(?: (?P<value>'[^']*'|[A-Z]{4,}|\d(?:[^\s;:)]*[^\s;:),.?])?))?"
)


def declared_flags(specifications: Sequence[type], *requests: type) -> dict[str, Flag]:
    """Return all flags that dataclasses declare, by name.

    The flag ``quantization`` is added if ``ServingSpec`` is among the dataclasses.

    Args:
        specifications: Dataclasses whose fields are flags, such as ``ServingSpec``.
        requests: Request classes. The attribute ``SEVERAL`` of a class lists the flags that accept
            several values, with the default to show in the help.
    """
    listed = [FORMAT] * (ServingSpec in specifications)
    listed += [flag for each in specifications for flag in flags_of(each)]
    found = {flag.name: flag for flag in listed}
    for name, shown in [each for r in requests for each in getattr(r, "SEVERAL", {}).items()]:
        several = f"{found[name].help} Separate several values by commas."
        found[name] = replace(found[name], help=several, default=None, shown=shown, several=True)
    for name, own in [each for r in requests for each in getattr(r, "RESTATED", {}).items()]:
        if name in found:
            found[name] = replace(found[name], **own)
    return found


def with_arguments(
    *specifications: type,
    request: type | tuple[type, ...] = (),
    deploys: bool = False,
    serves: bool = False,
) -> Callable[[_Function], _Function]:
    """Return a decorator that adds arguments to a function's signature and docstring.

    Args:
        specifications: Dataclasses whose fields are flags, such as ``ServingSpec``.
        request: Request classes, whose fields become arguments unless the function declares them
            itself.
        deploys: Whether the function predicts deployments and therefore accepts ``serve`` (a launch
            command) and ``force``.
        serves: Whether the function is about one server and therefore accepts ``serve`` (a launch
            command).
    """
    requests = request if isinstance(request, tuple) else (request,)
    declared = declared_flags(specifications, *requests)
    beside = [_SERVE] * (serves or deploys) + [FORCE] * deploys
    declared = {flag.name: flag for flag in beside} | declared

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        helps: dict[str, str] = {}
        for each in requests:
            told = explained(each, "Attributes")[1]
            helps |= {p.name: told[p.name] for p in parameters_of(each)}
        asked = [p for each in requests for p in parameters_of(each)]
        asked = [p for p in asked if p.name not in signature.parameters]
        flags = {n: flag for n, flag in declared.items() if n not in signature.parameters}
        options = [_parameter(name, flag) for name, flag in flags.items()]
        parameters = [*own, *asked, *options]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        lines = [f"    {p.name}: {_OPTION.sub(_in_python, helps[p.name])}" for p in asked]
        lines += [f"    {name}: {flag.summary}" for name, flag in flags.items()]
        listed = "\n".join(["", "", "Keyword Args:", *lines] if lines else [])
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}{listed}\n"
        return function

    return decorate


def _in_python(option: re.Match[str]) -> str:
    return option[1].replace("-", "_") if option[1] else option[0]


def raising_in_python(function: _Function) -> _Function:
    """Return a function of ``import pinn`` whose errors name arguments instead of options."""

    @wraps(function)
    def called(*args: object, **given: object) -> object:
        try:
            return function(*args, **given)
        except PinnError as error:
            error.args = (python_names(str(error), function),)
            raise

    called.__module__ = "pinn"  # where pickle finds it
    return called  # type: ignore[return-value]


def python_names(text: str, function: Callable[..., object]) -> str:
    """Return an error's text with a function's arguments in place of the command's options.

    >>> def simulate(rate: float, force: bool, enable_prefix_caching: bool): ...
    >>> python_names("give --rate 8, or --force; see 'pinn plan --rate'", simulate)
    "give rate=8, or force=True; see 'pinn plan --rate'"
    >>> python_names("--rate must be positive: omit --no-enable-prefix-caching", simulate)
    'rate must be positive: omit enable_prefix_caching=False'
    """
    known = inspect.signature(function).parameters

    def spelled(option: re.Match[str]) -> str:
        name = (option["name"] or "").replace("-", "_")
        if (switch := name.removeprefix("no_")) != name and switch in known:
            return f"{switch}=False"
        if f"{name}s" in known:  # an option that may be repeated is a list in Python
            name = f"{name}s"
        if name not in known:
            return option[0]
        if option["value"]:
            return f"{name}={option['value']}"
        return f"{name}=True" if "bool" in str(known[name].annotation) else name

    return _TYPED.sub(spelled, text)


def read_request(
    request: type[_Request], given: Mapping[str, object], *specifications: type, **own: object
) -> tuple[_Request, dict[str, Any]]:
    """Return a command's request object and its other flags, read from keyword arguments.

    The launch command ``serve`` supplies the model and flags that are not given as arguments. A
    warning names flags of the launch command that pinn does not model. ``quantization`` is returned
    as ``precision``.

    Args:
        request: Class of the request.
        given: Keyword arguments: fields of the request and flags, without missing values. Paths may
            be strings.
        specifications: Dataclasses whose fields are flags, such as ``ServingSpec``.
        own: Arguments declared by the function itself, or belonging to other requests.

    Raises:
        PinnError: If a name is unknown (the message suggests the nearest name), or if a value has
            the wrong type.
    """
    hints = get_type_hints(request, include_extras=True)
    declared = declared_flags(specifications, request)
    if ServingSpec in specifications:
        declared |= {_SERVE.name: _SERVE, FORCE.name: FORCE}
    found = _by_name(given, own, hints, declared)
    values: dict[str, Any] = {n: _typed(n, hints[n], v) for n, v in found.items() if n in hints}
    flags = {n: v for n, v in found.items() if n not in hints and n in declared}
    flags, lines = read_flags(flags, declared, values.get("gpu"), by_name=True)
    for line in lines:
        if line.startswith("not modelled"):
            warn_user(line)
    if "model" in hints and (started := flags.pop("model", None)):
        values.setdefault("model", started)
    for each in fields(request):  # type: ignore[arg-type]
        if each.default is MISSING and each.name not in values:
            raise PinnError(f"{each.name} is missing: give a value for {each.name}")
    return request(**values), flags


def _by_name(
    given: Mapping[str, object],
    own: Mapping[str, object],
    hints: Mapping[str, object],
    declared: Mapping[str, Flag],
) -> dict[str, object]:
    """Return the arguments that are not missing, with aliases and deprecated names replaced.

    None, NaN and pandas' NA are missing, so that a row of a table can be given as arguments.

    Raises:
        PinnError: If a name is unknown (the message suggests the nearest name), or if an argument
            is given under two names.
    """
    old = old_names.old_arguments(hints)
    names = old | {other: name for other, name in OTHER_NAMES.items() if name in hints}
    names |= {other: flag.name for flag in declared.values() for other in flag.other_names}
    shorts = {short.removeprefix("-"): f.name for f in declared.values() for short in f.shorts}
    names |= shorts | {name: name for name in (*declared, *hints, *own)}
    found = {name: value for name, value in own.items() if not is_missing(value)}
    for other, value in given.items():
        if other not in names:
            what = "flag" if declared else "argument"
            raise PinnError(f"the {what} {other!r} is unknown: {_nearest(other, names)}")
        if is_missing(value):
            continue
        name = names[other]
        if old.get(other) == name:
            old_names.note(other, name)
        if name in found:
            raise PinnError(f"{name} is given twice, also as {other!r}: omit one of the two names")
        off = name in declared and other in declared[name].reversed_names
        found[name] = not declared[name].read(value, other) if off else value
    return found


def _typed(name: str, hint: Any, value: object) -> object:
    """Convert a value to the type of the request's field with the given name.

    Raises:
        PinnError: If the value has the wrong type, or is outside the field's limits.
    """
    hint, *limits = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    (kind,) = [each for each in get_args(hint) or (hint,) if each is not NoneType]
    if get_origin(kind) is list:
        several = [value] if isinstance(value, str) else several_values(value)
        return [_typed(name, get_args(kind)[0], each) for each in several]
    if kind is Path:
        if name == "coefficients" and hasattr(value, "save"):
            return _written(value)
        if hasattr(value, "save"):
            kind = type(value).__name__
            raise PinnError(
                f"{name} must be a path, got a {kind}: write it to a file with its method save, "
                "and give the path of the file"
            )
        if not isinstance(value, str | PathLike):
            raise PinnError(f"{name} must be a path, got {value!r:.60}: give the path as text")
        return given_path(Path(value))
    flag = replace(*(limits or [Flag()]), name=name, kind=kind.__name__)
    if kind is float and not limits:  # inf is allowed if the field has no limits
        return flag.read(value, name)
    return checked_flag(flag, value, name)


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is deleted when Python ends."""
    return tempfile.TemporaryDirectory(prefix="pinn-coefficients-")


def _written(result: Any) -> Path:
    """Write a prediction or a calibrated server to a temporary coefficient file."""
    folder = Path(_temporary_folder().name)
    path = folder / f"{len(list(folder.iterdir())) + 1}.json"
    result.save(path)
    return path


def read_flags(
    given: Mapping[str, object],
    declared: Mapping[str, Flag],
    gpu: str | None = None,
    words: Sequence[str] = (),
    *,
    by_name: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Return flags converted to their types; a launch command supplies flags that are not given.

    Args:
        given: Flags, and the launch command as ``serve``.
        declared: Flags by name.
        gpu: Comma-separated names of GPUs, which affect the meaning of a launch command.
        words: Engine flags that pinn does not declare, as command-line arguments.
        by_name: Whether error messages name a flag as a Python argument, instead of as an option.

    Returns:
        Flags as name -> value, with ``precision`` for ``quantization`` and the ``model`` of the
        command; and lines of text about which parts of the command were used.

    Raises:
        PinnError: If a flag has a bad value, or the command cannot be read.
    """
    given = dict(given)
    command = str(given.pop(_SERVE.name, "")) or None
    started, lines = dict[str, object](), list[str]()
    if command or words:
        started, lines = launched(command, [*words], given, gpu, declared)
    found = dict[str, Any]()
    for name, value in (started | given).items():
        flag = declared.get(name)
        read = checked_flag(flag, value, name if by_name else "") if flag else value
        if read is not None:
            found["precision" if name == FORMAT.name else name] = read
    return found, lines


def _parameter(name: str, flag: Flag) -> inspect.Parameter:
    kind, own = inspect.Parameter.KEYWORD_ONLY, _TYPES[flag.kind]
    hint: object = own | None if flag.optional else own
    if flag.several:
        hint = own | Sequence[own] | None  # type: ignore[valid-type]
    return inspect.Parameter(name, kind, default=flag.default, annotation=hint)


def _nearest(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"use {', '.join(sorted(known))}"


#: Keys of a deployment's configuration that are not engine flags.
_KEYS = frozenset({"model", "force"})


def launched(
    command: str | None,
    words: list[str],
    given: Mapping[str, object],
    gpu: str | None,
    fields: Collection[str],
) -> tuple[dict[str, object], list[str]]:
    """Return the flag values set by a launch command and by additional engine flags.

    Args:
        command: Launch command, as for ``--serve``; None if there is none.
        words: Engine flags that are not options of the command.
        given: Other flags; ``engine`` and ``engine_version`` apply to ``words`` if there is no
            launch command, or if the command's image does not specify a release.
        gpu: Comma-separated names of GPUs; None if not given.
        fields: Names of the flags that apply to the calling function.

    Returns:
        Model and flags as name -> value; and lines of text about which parts of the command were
        used.

    Raises:
        PinnError: If the command cannot be read, or starts a different engine than the given one.
    """
    release = str(given.get("engine_version") or "")
    asked = several_values(given.get("engine") or "")
    if command is None:
        found = launch_line.Launch(str(asked[0]) if asked else VLLM, release)
    else:
        found = launch_line.read_launch(command, _strictest(gpu), release)
        if asked and found.engine not in asked:
            named = ", ".join(map(str, asked))
            raise PinnError(
                f"--serve starts {found.engine}, but --engine is {named}: omit --engine, or "
                f"change the launch command"
            )
    more = launch_line.read_arguments(found.engine, words, found.release or release)
    found.configuration |= more.configuration
    if "precision" in found.configuration:
        found.configuration[FORMAT.name] = found.configuration.pop("precision")
    for name in ("taken", "no_effect", "unmodelled"):
        getattr(found, name).extend(getattr(more, name))
    known = {k: v for k, v in found.configuration.items() if k in _KEYS or k in fields}
    idle = [printable(f"{k} {v}", 500) for k, v in found.configuration.items() if k not in known]
    lines = found.lines
    return known, lines + (
        [f"ignored, because it does not affect the results of this command: {', '.join(idle)}"]
        if idle
        else []
    )


def _strictest(gpu: str | None) -> GpuSpec | None:
    """Return the first GPU in a list that lacks compute capability 10.x, or else the first GPU.

    A GPU without compute capability 10.x supports fewer features.
    """
    gpus = map(load_gpu, comma_separated(gpu or ""))
    return min(gpus, key=lambda g: 10 <= g.compute_capability < 11, default=None)

"""Options that commands share, and requests whose fields are options."""

import inspect
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import typer

from pinn.cli.outputs import check_suffix
from pinn.engines import launch_line, launch_values
from pinn.errors import PinnError, printable
from pinn.specs.flags import FORCE, Flag, flags_of
from pinn.specs.gpu import GpuSpec, load_gpu
from pinn.specs.serving import VLLM, ServingSpec

# Options that several commands have, each declared once, and the outputs that commands write.

Model = Annotated[
    str | None, typer.Option("--model", help="Name, or path of a config.json or its folder.")
]
Gpu = Annotated[str | None, typer.Option("--gpu", help="Name, or path of a datasheet's JSON file.")]
Gpus = Annotated[
    str | None, typer.Option("--gpu", help="Names, or paths of datasheets, separated by commas.")
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        help="Trained network. [default: PINN_CHECKPOINT, else checkpoints/pinn.safetensors]",
    ),
]
WorkloadSeed = Annotated[
    int | None, typer.Option("--seed", help="Of random draws. [default: the file's, else 0]")
]


def named(model: str | None, gpu: str | None) -> dict[str, str]:
    """Model and GPU as keys of a configuration, where they are given."""
    pairs = {"model": model, "gpu": gpu}
    return {name: value for name, value in pairs.items() if value is not None}


def output(*suffixes: str, names: Sequence[str] = (), help: str | None = None) -> Any:
    """An option that names a file to write, with the suffixes of the formats that it may have.

    With one suffix the name may have none; with none it names a folder.
    """

    def check(path: Path | None, parameter: typer.CallbackParam) -> Path | None:
        if path is not None and (len(suffixes) > 1 or (suffixes and path.suffix)):
            check_suffix(path, suffixes, max(parameter.opts, key=len))
        return path

    return typer.Option(*names, help=help, callback=check)


_JSON_HELP = "Also write it as JSON; - prints JSON in place of all else."
JsonPath = Annotated[Path | None, output(".json", names=("--json",), help=_JSON_HELP)]
Details = Annotated[
    bool, typer.Option("--details", help="Print all of it, in place of what fits one screen.")
]


# Arguments of a command that its docstring explains; some are requests: dataclasses whose fields
# are options, and a Python function's arguments.

_NAMED = inspect.Parameter.KEYWORD_ONLY
#: A name and its text in the Options or Attributes of a docstring.
_EXPLAINED = re.compile(r"^    (\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)


def asked(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command its arguments, and the fields of those that are requests, as options.

    The docstring's Options, at its end, and the requests' Attributes are their help, ``PANEL`` is
    the heading of a request's; each may be ``Annotated`` with what else Typer needs of an option.
    The command gets the request.
    """
    signature = inspect.signature(command, eval_str=True)
    requests: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }

    @wraps(command)
    def run(**arguments: Any) -> None:
        made = {
            name: request(**{f.name: arguments.pop(f.name) for f in fields(request)})
            for name, request in requests.items()
        }
        command(**made, **arguments)

    run.__doc__, helps = _explained(command, "Options")
    options: list[inspect.Parameter] = []
    for name, own in signature.parameters.items():
        if name in requests:
            options += request_parameters(requests[name])
        else:
            hint = _described(name, own.annotation, helps) if name in helps else own.annotation
            options.append(own.replace(kind=_NAMED, annotation=hint))
    run.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    return run


def _explained(what: Any, section: str) -> tuple[str, dict[str, str]]:
    """A docstring without its last section, and what that says of each name."""
    text, _, listed = inspect.cleandoc(what.__doc__ or "").partition(f"{section}:\n")
    return text.rstrip(), {n: " ".join(said.split()) for n, said in _EXPLAINED.findall(listed)}


def request_parameters(request: type) -> list[inspect.Parameter]:
    """The fields of a request, as parameters that are named."""
    hints = get_type_hints(request, include_extras=True)
    _, helps = _explained(request, "Attributes")
    panel = getattr(request, "PANEL", None)
    return [
        inspect.Parameter(
            field.name,
            _NAMED,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=_described(field.name, hints[field.name], helps, panel),
        )
        for field in fields(request)
    ]


def _described(name: str, hint: Any, helps: Mapping[str, str], panel: str | None = None) -> Any:
    """An argument's type with its option: the one it is annotated with, or one of its name."""
    if get_origin(hint) is Annotated:
        hint, option = get_args(hint)
        option = copy(option)
    else:
        option = typer.Option(f"--{name.replace('_', '-')}")  # a switch, too, has no --no-
    option.help = option.help or helps.get(name)
    option.rich_help_panel = option.rich_help_panel or panel
    return Annotated[hint, option]


# The engine's flags as command-line options; one that is not given keeps the engine's default.

_PANEL = "Engine, in its own spelling or vLLM's"


@dataclass(frozen=True, kw_only=True)
class _Format:
    """The number format of a model.

    Attributes:
        precision: Serve the model as bf16, fp16, fp8, fp8_static (activations scaled by the
            checkpoint's factors), fp8_block, int8, int4, mxfp4, mxfp4_mxfp8 (8-bit activations) or
            nvfp4 (fp4). [default: as its config says]
    """

    PANEL: ClassVar[str] = _PANEL

    precision: Annotated[
        str | None, typer.Option("--quantization", "--precision", "-q", show_default=False)
    ] = None


@dataclass(frozen=True, kw_only=True)
class _Started:
    """A launch command, and words of an engine among the options.

    Attributes:
        serve: A launch command to read model and flags from: 'vllm serve MODEL -tp 2', python -m
            sglang.launch_server, trtllm-serve, with variables or a container's image before it;
            flags beside it go first.
    """

    PANEL: ClassVar[str] = _PANEL

    serve: Annotated[str | None, typer.Option(metavar="COMMAND", show_default=False)] = None
    engine_words: Annotated[str | None, typer.Option(hidden=True)] = None


def engine_flags(
    *specifications: type, several: Sequence[str] = (), deploys: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command every flag of specifications as an option; of a server the format too.

    The command gets those that were given as its argument ``flags``: field (or ``precision``) to
    value. A specification's ``PANEL`` is their heading in the help.

    Args:
        specifications: Dataclasses that declare flags.
        several: Fields whose option takes values separated by commas; the command gets a list.
        deploys: Whether it times deployments that nobody measured: it gets ``--serve`` and
            ``--force``, and its arguments may hold any flag of an engine.

    Raises:
        PinnError: When the command runs, if a value is not one that its flag can have.
    """
    listed = [
        (f, getattr(each, "PANEL", _PANEL)) for each in specifications for f in flags_of(each)
    ]
    listed += [(FORCE, _PANEL)] * deploys
    declared = {flag.name: flag for flag, _ in listed}
    formats = ("precision",) if ServingSpec in specifications else ()

    def typed(values: Mapping[str, Any]) -> dict[str, Any]:
        return {n: _typed(declared.get(n), value, n in several) for n, value in values.items()}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        command = asked(command)
        signature = inspect.signature(command, eval_str=True)

        @wraps(command)
        def run(**arguments: Any) -> None:
            options = {name: arguments.pop(name) for name in (*formats, *declared)}
            given = {name: value for name, value in options.items() if value is not None}
            started = _started(arguments, given, declared) if deploys else {}
            given = in_own_words(given.get("engine", VLLM), given)
            command(**arguments, flags=typed(started) | typed(given))

        own = [p for p in signature.parameters.values() if p.name != "flags"]
        if formats:
            own += request_parameters(_Format)
        if deploys:
            own += request_parameters(_Started)
        own += [_parameter(flag, panel) for flag, panel in listed]
        run.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return run

    return decorate


def _typed(flag: Flag | None, value: Any, several: bool) -> Any:
    if flag is None:
        return value
    if several:
        return [checked_flag(flag, part) for part in str(value).split(",")]
    return checked_flag(flag, value)


def _started(
    arguments: dict[str, Any], given: Mapping[str, Any], declared: Mapping[str, Flag]
) -> dict[str, Any]:
    """What ``--serve`` and flags that are no options here set; says what of them was taken."""
    command, words = arguments.pop("serve"), arguments.pop("engine_words")
    if command is None and words is None:
        return {}
    gpu = arguments.get("gpu", arguments.get("gpus"))
    found, lines = launched(command, shlex.split(words or ""), given, gpu, declared)
    for line in lines:
        typer.echo(line, err=True)
    if "model" in found:
        arguments["model"] = arguments.get("model") or found["model"]
    return {name: value for name, value in found.items() if name != "model"}


def in_own_words(engine: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Values of flags as typed, in an engine's spelling or here: ``bfloat16``, ``32k``, ``awq``."""
    found: dict[str, Any] = {}
    for name, value in flags.items():
        if name == "precision" and isinstance(value, str):
            read = launch_values.quantization_format(value)
            found |= {} if read is None else {name: read}
        elif name in ("kv_cache_dtype", "max_model_len", "max_num_batched_tokens"):
            found[name] = launch_values.plain(engine, name, value).fields.get(name, value)
        else:
            found[name] = value
    return found


def _parameter(flag: Flag, panel: str) -> inspect.Parameter:
    """A flag as Typer takes options; the flag itself reads its text, so that errors are its own."""
    switch = flag.kind == "bool"
    wanted = "|".join(flag.allowed) or flag.kind
    others = [f"--{name.replace('_', '-')}" for name in flag.other_names]
    backwards = [f"--{name.replace('_', '-')}" for name in flag.reversed_names]
    names = [flag.option, *(o for o in others if o not in backwards)]
    option = typer.Option(
        *(f"{name}/--no-{name.removeprefix('--')}" if switch else name for name in names),
        *(f" /{name}" for name in backwards),
        *flag.shorts,
        help=flag.summary,
        metavar=None if switch else f"<{wanted}>",
        rich_help_panel=panel,
        show_default=False,
    )
    kind: Any = bool if switch else str
    return inspect.Parameter(
        flag.name, _NAMED, default=None, annotation=Annotated[kind | None, option]
    )


def checked_flag(flag: Flag, text: Any) -> Any:
    """A value of the command line in the flag's type; a metrics page stands for its acceptance.

    Raises:
        PinnError: If it is not one that the flag can have.
    """
    if flag.name == "speculative_acceptance" and Path(str(text)).is_file():
        from pinn.measurements.benchmarks.metrics_page import acceptance_text

        text = acceptance_text(Path(text))
    value = flag.read(text)
    flag.check(value)
    return value


# A launch command in place of flags: what it sets, and what is said of the rest.

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
    gpus = [load_gpu(name.strip()) for name in (gpu or "").split(",") if name.strip()]
    return min(gpus, key=lambda g: 10 <= g.compute_capability < 11, default=None)

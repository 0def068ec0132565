"""Options of commands: a docstring's, those of a request of the API, and flags of engines."""

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.models import ArgumentInfo, OptionInfo

from pinn.api.arguments import launched
from pinn.api.flag_values import checked_flag, in_own_words
from pinn.api.requests import explained, parameters_of
from pinn.cli.outputs import check_suffix
from pinn.specs.flags import FORCE, Flag, flags_of
from pinn.specs.serving import VLLM, ServingSpec


def output(*suffixes: str, names: Sequence[str] = (), help: str | None = None) -> OptionInfo:
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
#: Described by :data:`pinn.api.requests.SHARED`.
Checkpoint = Path | None

_TRACES = "Traces"
#: Spellings, limits and headings of arguments whose name and type do not give them.
_SPELLED: dict[str, OptionInfo | ArgumentInfo] = {
    "rate": typer.Option("--rate", "--request-rate"),
    "SimulationRequest.slo": typer.Option("--slo", "--goodput"),
    "percentiles": typer.Option("--percentiles", "--metric-percentiles"),
    "num_warmups": typer.Option(min=0),
    "warmup_s": typer.Option(min=0.0),
    "sensitivity": typer.Option(metavar="FIGURE"),
    "max_gpus": typer.Option(min=1),
    "top": typer.Option(min=1),
    "worst_error": typer.Option(min=0.0),
    "workloads": typer.Option("--workload"),
    "PoolsRequest.prefill": typer.Option(metavar="POOL"),
    "PoolsRequest.decode": typer.Option(metavar="POOL"),
    "CalibrationRequest.budget": typer.Option(min=0, rich_help_panel=_TRACES),
    "CalibrationRequest.intervals": typer.Option(rich_help_panel=_TRACES),
    "CalibrationRequest.seed": typer.Option(min=0, rich_help_panel=_TRACES),
    "NamesRequest.contains": typer.Argument(),
    "IngestRequest.out": output(names=("--out", "-o")),
    "CompareRequest.a": typer.Argument(),
    "CompareRequest.b": typer.Argument(),
    "ResultsRequest.path": typer.Argument(),
    "SuiteRequest.overrides": typer.Option("--set", metavar="KEY=VALUE"),
    "DecisionsRequest.path": typer.Argument(),
    "ServingRunsRequest.path": typer.Argument(),
    "ServingRunsRequest.seed": typer.Option(min=0),
    "FileScoresRequest.file": typer.Argument(),
    "PanelRequest.alone": typer.Option(metavar="GROUP"),
    "PanelRequest.judges": typer.Option(envvar="PINN_JUDGE_RUNS"),
    "PanelRequest.steps": typer.Option(envvar="PINN_WHOLE_STEPS"),
    "PanelRequest.public": typer.Option(envvar="PINN_PUBLIC_MEASUREMENTS"),
    "PanelRequest.ledger": typer.Option(metavar="WHAT"),
    "DraftsRequest.draft_tokens": typer.Option(min=1, max=8),
    "KernelErrorsRequest.path": typer.Argument(),
    "MeasureRequest.out": output(names=("--out", "-o")),
    "MeasureRequest.minutes": typer.Option(min=0.1),
    "MeasureRequest.script": output(".py"),
    "MeasureRequest.python": typer.Option(show_default="that of pinn"),
    "MeasureRequest.port": typer.Option(min=0, max=65535),
    "TableRequest.intervals": typer.Option("--intervals/--no-intervals"),
}


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
    def run(**arguments: object) -> None:
        made = {
            name: request(**{f.name: arguments.pop(f.name) for f in fields(request)})
            for name, request in requests.items()
        }
        command(**made, **arguments)

    run.__doc__, helps = explained(command, "Options")
    options: list[inspect.Parameter] = []
    for name, own in signature.parameters.items():
        if name in requests:
            options += _request_options(requests[name])
        else:
            hint = _described(name, own.annotation, helps) if name in helps else own.annotation
            options.append(own.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hint))
    run.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    return run


def _request_options(request: type) -> list[inspect.Parameter]:
    """Return an option for each field of a request."""
    _, helps = explained(request, "Attributes")
    panel = getattr(request, "PANEL", None)
    return [
        p.replace(annotation=_described(p.name, p.annotation, helps, request.__name__, panel))
        for p in parameters_of(request)
    ]


def _named(name: str, annotation: object) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _described(
    name: str, hint: Any, helps: Mapping[str, str], owner: str = "", panel: str | None = None
) -> object:
    """Return an argument's type with its option, which has a help and a heading."""
    spelled = _SPELLED.get(f"{owner}.{name}", _SPELLED.get(name)) if owner else None
    if get_origin(hint) is Annotated:
        hint, spelled = get_args(hint)
    # A switch, too, has no --no- unless it is spelled so.
    option = copy(spelled) if spelled else typer.Option(f"--{name.replace('_', '-')}")
    option.help = option.help or helps.get(name)
    option.rich_help_panel = option.rich_help_panel or panel
    return Annotated[hint, option]


# Flags of engines as options; one that is not given keeps the engine's default.

_PANEL = "Engine, in its own spelling or vLLM's"


def _text_option(name: str, *spellings: str, **settings: Any) -> inspect.Parameter:
    option = typer.Option(*spellings, rich_help_panel=_PANEL, show_default=False, **settings)
    return _named(name, Annotated[str | None, option])


_FORMAT = _text_option(
    "precision", "--quantization", "--precision", "-q",
    help="Serve the model as bf16, fp16, fp8, fp8_static (activations scaled by the checkpoint's "
    "factors), fp8_block, mxfp8, int8, int4, mxfp4, mxfp4_mxfp8 (8-bit activations), nvfp4 (fp4) "
    "or nvfp4_wo (16-bit activations), or vLLM's name of a method, such as compressed-tensors. "
    "[default: as its config says]",
)  # fmt: skip
#: A launch command, and words of an engine among the options.
_LAUNCH = (
    _text_option(
        "serve",
        metavar="COMMAND",
        help="A launch command to read model and flags from: 'vllm serve MODEL -tp 2', python -m "
        "sglang.launch_server, trtllm-serve, with variables or a container's image before it; a "
        "list of arguments, or YAML with command and args as Kubernetes has them; flags beside it "
        "go first.",
    ),
    _text_option("engine_words", hidden=True),
)


def engine_flags(
    *specifications: type,
    several: Sequence[str] = (),
    deploys: bool = False,
    serves: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command every flag of specifications as an option; of a server the format too.

    The command gets those that were given as its argument ``flags``: field (or ``precision``) to
    value. A specification's ``PANEL`` is their heading in the help.

    Args:
        specifications: Dataclasses that declare flags.
        several: Fields whose option takes values separated by commas; the command gets a list.
        deploys: Whether it times deployments that nobody measured: it gets ``--force``, and all
            that ``serves`` gives.
        serves: Whether it is about one server: it gets ``--serve``, and its arguments may hold any
            flag of an engine.

    Raises:
        PinnError: When the command runs, if a value is not one that its flag can have.
    """
    listed = [
        (f, getattr(each, "PANEL", _PANEL)) for each in specifications for f in flags_of(each)
    ]
    listed += [(FORCE, _PANEL)] * deploys
    declared = {flag.name: flag for flag, _ in listed}
    serves = serves or deploys
    beside = [_FORMAT] * (ServingSpec in specifications) + [*_LAUNCH] * serves
    names = [*declared, *([_FORMAT.name] if _FORMAT in beside else [])]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        command = asked(command)
        signature = inspect.signature(command, eval_str=True)

        @wraps(command)
        def run(**arguments: object) -> None:
            options = {name: arguments.pop(name) for name in names}
            given = {name: value for name, value in options.items() if value is not None}
            started = _started(arguments, given, declared) if serves else {}
            given = started | in_own_words(str(given.get("engine", VLLM)), given)
            flags = {n: checked_flag(declared.get(n), v, n in several) for n, v in given.items()}
            command(**arguments, flags=flags)

        own = [p for p in signature.parameters.values() if p.name != "flags"]
        options = [_flag_option(flag, panel) for flag, panel in listed]
        run.__signature__ = signature.replace(parameters=[*own, *beside, *options])  # type: ignore[attr-defined]
        return run

    return decorate


def _started(
    arguments: dict[str, Any], given: Mapping[str, object], declared: Mapping[str, Flag]
) -> dict[str, object]:
    """Return what ``--serve`` and flags that are no options here set; print what was taken."""
    command, words = arguments.pop("serve"), arguments.pop("engine_words")
    if command is None and words is None:
        return {}
    gpu = arguments.get("gpu")
    found, lines = launched(command, shlex.split(words or ""), given, gpu, declared)
    for line in lines:
        typer.echo(line, err=True)
    if "model" in found:
        arguments["model"] = arguments.get("model") or found["model"]
    return {name: value for name, value in found.items() if name != "model"}


def _flag_option(flag: Flag, panel: str) -> inspect.Parameter:
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
    kind = bool | None if switch else str | None
    return _named(flag.name, Annotated[kind, option])

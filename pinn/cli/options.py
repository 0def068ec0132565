"""Options of commands, built from docstrings, fields of API requests, and engine flags."""

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

from pinn.api.arguments import declared_flags, read_flags
from pinn.api.requests import explained, parameters_of
from pinn.common import old_names
from pinn.common.files import check_suffix
from pinn.specs.flags import FORCE, Flag, flags_of


def output(*suffixes: str, names: Sequence[str] = (), help: str | None = None) -> OptionInfo:
    """Return an option for an output file that checks the suffix of the file's name.

    If there is only one suffix, a name without a suffix is also accepted. If there are none, the
    option names a folder.
    """

    def check(path: Path | None, parameter: typer.CallbackParam) -> Path | None:
        if path is not None and (len(suffixes) > 1 or (suffixes and path.suffix)):
            check_suffix(path, suffixes, max(parameter.opts, key=len))
        return path

    return typer.Option(*names, help=help, callback=check)


_JSON_HELP = "Also write the result to this JSON file; use - to print only JSON."
JsonPath = Annotated[Path | None, output(".json", names=("--json",), help=_JSON_HELP)]
Details = Annotated[
    bool, typer.Option("--details", help="Print all details instead of one screen.")
]
#: Type of the option for a checkpoint; :data:`pinn.api.requests.SHARED` has its help text.
Checkpoint = Path | None

_TRACES = "Fit to traces"
#: Options whose names or help panels do not follow from the argument's name and type.
_SPELLED: dict[str, OptionInfo | ArgumentInfo] = {
    "rate": typer.Option("--rate", "--request-rate"),
    "SimulationRequest.slo": typer.Option("--slo", "--goodput"),
    "percentiles": typer.Option("--percentiles", "--metric-percentiles"),
    "sensitivity": typer.Option(metavar="METRIC"),
    "workloads": typer.Option("--workload"),
    "ServersRequest.prefill": typer.Option(metavar="POOL"),
    "ServersRequest.decode": typer.Option(metavar="POOL"),
    "CalibrationRequest.budget": typer.Option(rich_help_panel=_TRACES),
    "CalibrationRequest.intervals": typer.Option(rich_help_panel=_TRACES),
    "CalibrationRequest.seed": typer.Option(rich_help_panel=_TRACES),
    "NamesRequest.contains": typer.Argument(),
    "IngestRequest.out": output(names=("--out", "-o")),
    "CompareRequest.a": typer.Argument(),
    "CompareRequest.b": typer.Argument(),
    "ResultsRequest.path": typer.Argument(),
    "SuiteRequest.overrides": typer.Option("--set", metavar="KEY=VALUE"),
    "DecisionsRequest.path": typer.Argument(),
    "ServingRunsRequest.path": typer.Argument(),
    "FileScoresRequest.file": typer.Argument(),
    "PanelRequest.alone": typer.Option(metavar="GROUP"),
    "PanelRequest.held_out_runs": typer.Option(
        envvar=["PINN_HELD_OUT_RUNS", *old_names.old_variables("PINN_HELD_OUT_RUNS")]
    ),
    "PanelRequest.steps": typer.Option(envvar="PINN_WHOLE_STEPS"),
    "PanelRequest.public": typer.Option(envvar="PINN_PUBLIC_MEASUREMENTS"),
    "PanelRequest.ledger": typer.Option(metavar="WHAT"),
    "KernelErrorsRequest.path": typer.Argument(),
    "MeasureRequest.out": output(names=("--out", "-o")),
    "MeasureRequest.script": output(".py"),
    "MeasureRequest.python": typer.Option(show_default="that of pinn"),
    "TableRequest.intervals": typer.Option("--intervals/--no-intervals"),
}


def asked(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a function into a command with options for its arguments and its requests' fields.

    The help of options comes from the section Options of the docstring, and from the Attributes of
    the requests. The ``PANEL`` of a request is the heading of its options. An argument or field may
    be ``Annotated`` with additional settings for Typer. The function is called with request objects
    built from the given options.
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
    """Return a command-line option for each field of a class of API requests."""
    _, helps = explained(request, "Attributes")
    panel = getattr(request, "PANEL", None)
    return [
        p.replace(annotation=_described(p.name, p.annotation, helps, request.__name__, panel))
        for p in parameters_of(request, limits=True)
    ]


def _named(name: str, annotation: object) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _described(
    name: str, hint: Any, helps: Mapping[str, str], owner: str = "", panel: str | None = None
) -> object:
    """Return an argument's type, annotated with its Typer option: name, limits, help, heading."""
    spelled = _SPELLED.get(f"{owner}.{name}", _SPELLED.get(name)) if owner else None
    limits = Flag()
    if get_origin(hint) is Annotated:
        hint, own = get_args(hint)
        spelled, limits = (spelled, own) if isinstance(own, Flag) else (own, limits)
    # Boolean options have no --no- form unless _SPELLED declares one.
    option = copy(spelled) if spelled else typer.Option(f"--{name.replace('_', '-')}")
    option.min, option.max = limits.least, limits.most
    option.help = option.help or helps.get(name)
    option.rich_help_panel = option.rich_help_panel or panel
    return Annotated[hint, option]


# Engine flags as options; an omitted flag has the engine's default.

_PANEL = "Engine, with flags named as in vLLM or in the chosen engine"


def _text_option(name: str, *spellings: str, **settings: Any) -> inspect.Parameter:
    option = typer.Option(*spellings, rich_help_panel=_PANEL, show_default=False, **settings)
    return _named(name, Annotated[str | None, option])


#: Options for a launch command, and for arbitrary engine flags on the command line.
_LAUNCH = (
    _text_option(
        "serve",
        metavar="COMMAND",
        help="Launch command that specifies the model and flags: 'vllm serve MODEL -tp 2', 'python "
        "-m sglang.launch_server ...', 'trtllm-serve ...' or 'docker run ...', also with "
        "environment variables; or a list of arguments; or Kubernetes YAML with command and args. "
        "Other options override flags of the launch command.",
    ),
    _text_option("engine_words", hidden=True),
)


def engine_flags(
    *specifications: type, deploys: bool = False, serves: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add all flags of the specifications to a command as options.

    The command receives the given flags as its argument ``flags``: values by field (or
    ``precision``). A specification's ``PANEL`` is the heading of its flags in the help. If a
    request accepts several values of a flag, the value is a list.

    Args:
        specifications: Dataclasses that declare flags.
        deploys: Whether the command predicts deployments that may be unmeasured. If so, the command
            also gets the option ``--force`` and everything that ``serves`` adds.
        serves: Whether the command is about one server. If so, the command gets the option
            ``--serve`` and accepts any engine flag.

    Raises:
        PinnError: When the command runs, if a flag has an invalid value.
    """
    serves = serves or deploys
    beside = [*_LAUNCH] * serves
    panels = {
        f.name: getattr(each, "PANEL", _PANEL) for each in specifications for f in flags_of(each)
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = inspect.signature(command, eval_str=True).parameters.values()
        declared = declared_flags(specifications, *(hint.annotation for hint in hints))
        declared |= {FORCE.name: FORCE} if deploys else {}
        command = asked(command)
        signature = inspect.signature(command, eval_str=True)

        @wraps(command)
        def run(**arguments: Any) -> None:
            words = arguments.pop("engine_words") if serves else None
            names = [*declared, *["serve"] * serves]
            options = {name: arguments.pop(name) for name in names}
            given = {name: value for name, value in options.items() if value is not None}
            gpu = arguments.get("gpu")
            flags, lines = read_flags(given, declared, gpu, shlex.split(words or ""))
            for line in lines:
                typer.echo(line, err=True)
            if started := flags.pop("model", None):
                arguments["model"] = arguments.get("model") or started
            command(**arguments, flags=flags)

        own = [p for p in signature.parameters.values() if p.name != "flags"]
        options = [_flag_option(flag, panels.get(name, _PANEL)) for name, flag in declared.items()]
        run.__signature__ = signature.replace(parameters=[*own, *beside, *options])  # type: ignore[attr-defined]
        return run

    return decorate


#: Maximum length, in characters, of a list of values shown next to an option name.
_WIDEST = 50


def _flag_option(flag: Flag, panel: str) -> inspect.Parameter:
    """Return a flag as a Typer option; the flag itself parses the text and raises its errors."""
    switch = flag.kind == "bool"
    values = "|".join(filter(None, flag.allowed))
    wanted = values if 0 < len(values) <= _WIDEST else flag.kind
    others = [f"--{name.replace('_', '-')}" for name in flag.other_names if name != flag.name]
    backwards = [f"--{name.replace('_', '-')}" for name in flag.reversed_names]
    names = [flag.option, *(o for o in others if o not in backwards)]
    option = typer.Option(
        *(f"{name}/--no-{name.removeprefix('--')}" if switch else name for name in names),
        *(f" /{name}" for name in backwards),
        *flag.shorts,
        help=flag.summary,
        hidden=flag.hidden,
        metavar=None if switch else f"<{wanted}{',...' * flag.several}>",
        rich_help_panel=panel,
        show_default=False,
    )
    kind = bool | None if switch else str | None
    return _named(flag.name, Annotated[kind, option])

"""The engine's flags as command-line options; one that is not given keeps the engine's default."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from pinn.interface.launched import in_own_words, launched
from pinn.specs.flags import FORCE, Flag, flags_of
from pinn.specs.serving import VLLM, ServingSpec

_PANEL = "Engine, in its own spelling or vLLM's"

Precision = Annotated[
    str | None,
    typer.Option(
        "--quantization",
        "--precision",
        "-q",
        help="Serve the model as bf16, fp16, fp8, fp8_static (activations scaled by the "
        "checkpoint's factors), fp8_block, int8, int4, mxfp4, mxfp4_mxfp8 (8-bit activations) or "
        "nvfp4 (fp4). "
        "[default: as its config says]",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


Serve = Annotated[
    str | None,
    typer.Option(
        "--serve",
        metavar="COMMAND",
        help="A launch command to read model and flags from: 'vllm serve MODEL -tp 2', python -m "
        "sglang.launch_server, trtllm-serve, with variables or a container's image before it; "
        "flags beside it go first.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
_Words = Annotated[str | None, typer.Option("--engine-words", hidden=True)]


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
    declared = {flag.name: flag for each in specifications for flag in flags_of(each)}
    if deploys:
        declared[FORCE.name] = FORCE
    formats = ("precision",) if ServingSpec in specifications else ()
    panels = {
        flag.name: getattr(each, "PANEL", _PANEL)
        for each in specifications
        for flag in flags_of(each)
    } | {FORCE.name: _PANEL}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)

        @wraps(command)
        def run(**arguments: Any) -> None:
            options = {name: arguments.pop(name) for name in (*formats, *declared)}
            given = {name: value for name, value in options.items() if value is not None}
            started = _started(arguments, given, declared) if deploys else {}
            given = in_own_words(given.get("engine", VLLM), given)
            flags = {
                name: checked_flag(declared[name], value) if name in declared else value
                for name, value in given.items()
                if name not in several
            }
            flags |= {
                name: [checked_flag(declared[name], part) for part in given[name].split(",")]
                for name in several
                if name in given
            }
            started = {
                name: _in_type(declared.get(name), value, name in several)
                for name, value in started.items()
            }
            command(**arguments, flags=started | flags)

        own = [p for p in signature.parameters.values() if p.name != "flags"]
        options = [_parameter(name, Precision) for name in formats]
        if deploys:
            options += [_parameter("serve", Serve), _parameter("engine_words", _Words)]
        options += [_parameter(name, _option(f, panels[name])) for name, f in declared.items()]
        run.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return run

    return decorate


def _started(
    arguments: dict[str, Any], given: Mapping[str, Any], declared: Mapping[str, Flag]
) -> dict[str, Any]:
    """What ``--serve`` and flags that are no options here set; says what of them was taken."""
    command, words = arguments.pop("serve"), arguments.pop("engine_words")
    gpu = arguments.get("gpu")
    found, lines = launched(command, shlex.split(words or ""), given, gpu, declared)
    for line in lines:
        typer.echo(line, err=True)
    if "model" in found:
        arguments["model"] = arguments.get("model") or found["model"]
    return {name: value for name, value in found.items() if name != "model"}


def _in_type(flag: Flag | None, value: Any, several: bool) -> Any:
    checked = value if flag is None else checked_flag(flag, value)
    return [checked] if several else checked


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _option(flag: Flag, panel: str) -> Any:
    """A flag as Typer takes options; the flag itself reads its text, so that errors are its own."""
    switch = flag.kind == "bool"
    wanted = "|".join(flag.allowed) or flag.kind
    others = [f"--{name.replace('_', '-')}" for name in flag.other_names]
    straight = [o for o in others if o not in _reversed(flag)]
    option = typer.Option(
        *(_both_ways(name) if switch else name for name in (flag.option, *straight)),
        *(f" /{name}" for name in _reversed(flag)),
        *flag.shorts,
        help=flag.summary,
        metavar=None if switch else f"<{wanted}>",
        rich_help_panel=panel,
        show_default=False,
    )
    return Annotated[bool | None if switch else str | None, option]


def _both_ways(name: str) -> str:
    return f"{name}/--no-{name.removeprefix('--')}"


def _reversed(flag: Flag) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name in flag.reversed_names]


def checked_flag(flag: Flag, text: Any) -> Any:
    """A value of the command line in the flag's type; a metrics page stands for its acceptance.

    Raises:
        PinnError: If it is not one that the flag can have.
    """
    if flag.name == "speculative_acceptance" and Path(str(text)).is_file():
        from pinn.data.benchmarks.acceptance import acceptance_text

        text = acceptance_text(Path(text))
    value = flag.read(text)
    flag.check(value)
    return value

"""Command groups that import commands lazily, and print full help and one-line errors."""

import importlib
import inspect
import re
import shlex
import sys
import warnings
from collections import defaultdict
from collections.abc import Collection
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from pinn.cli import outputs
from pinn.common import old_names
from pinn.common.progress import shown
from pinn.engines import launch_line, launch_values
from pinn.errors import PinnError, printable
from pinn.specs.flags import flags_of
from pinn.specs.request_media import AUDIO, IMAGE, OPTIONS
from pinn.specs.serving import VLLM, ServingSpec

# Help of a command in plain text, because Typer's help truncates long option names at 80 columns.

#: Mark that makes click's help formatter keep the line breaks of a paragraph.
_VERBATIM = "\b\n"
#: ``_OPTION``: pattern of an option name. ``_UNBROKEN``: character that replaces the dashes of an
#: option name, so that line wrapping does not break the name.
_OPTION = re.compile(r"--?[a-z][\w-]+")
_UNBROKEN = "\u2011"
#: Maximum length, in characters, of a command's summary in the list of commands.
_SENTENCE = 300
#: Pattern of the value type that Typer prints for a repeatable option.
_EACH = re.compile(r"<list\[(.+)\]>")


class PlainHelpCommand(TyperCommand):
    """Command whose help shows every option in full, under the heading of the option's panel."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **(settings | {"rich_markup_mode": None}))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command's arguments, with an engine's own flags if it accepts ``--serve``."""
        parameters = self.get_params(ctx)
        own = {name for p in parameters for name in (*p.opts, *p.secondary_opts)}
        args = old_names.current_options(args, own)
        for parameter in parameters:
            if isinstance(parameter.envvar, list):  # a list also has outdated names
                old_names.variable(parameter.envvar[0])
        if any(parameter.name == "engine_words" for parameter in parameters):
            args, foreign = foreign_words(args, own)
            args = [*args, "--engine-words", shlex.join(foreign)] if foreign else args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> object:
        """Run the command after checking that every output has its own destination."""
        given = [
            (max(parameter.opts, key=len), ctx.params[parameter.name])
            for parameter in self.get_params(ctx)
            if parameter.name in ctx.params and _source(ctx, parameter) == "COMMANDLINE"
        ]
        if any(option in outputs.OUTPUTS for option, _ in given):
            outputs.check_outputs(given)
        json_path = dict(given).get("--json")
        alone = json_path is not None and outputs.is_standard_output(json_path)
        with outputs.only_json() if alone else nullcontext():
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without line breaks inside option names."""
        super().format_help(ctx, formatter)
        formatter.buffer[:] = [text.replace(_UNBROKEN, "-") for text in formatter.buffer]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring; line breaks are preserved in examples (indented paragraphs)."""
        text, self.help = self.help, _with_examples(self.help or "")
        super().format_help_text(ctx, formatter)
        self.help = text

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options, then the options of each panel."""
        panels: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name, text = _short(parameter, record)
                text = _OPTION.sub(lambda found: found[0].replace("-", _UNBROKEN), text)
                own = getattr(parameter, "rich_help_panel", None)
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panels[own or usual].append((name, text))
        for heading in sorted(panels, key=lambda name: name != "Arguments"):
            with formatter.section(heading):
                formatter.write_dl(panels[heading])


def _engine_of(arguments: list[str]) -> str:
    """Return the engine given on the command line, whose flags are accepted."""
    for i, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        value = value if equals else "".join(arguments[i + 1 : i + 2])
        if name == "--engine":
            return value.split(",")[0]
        if name == "--serve":
            with suppress(PinnError):  # the command itself reports an invalid --serve
                return launch_values.words_of(value).engine
    return VLLM


def foreign_words(arguments: list[str], own: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the command's own arguments, and engine flags that are not options of the command.

    Underscores become dashes if the command has that option with dashes: ``--max_num_seqs``.
    """
    if all(w.partition("=")[0] in own for w in arguments if w.startswith("--")):
        return arguments, []
    known = launch_line.known_flags(_engine_of(arguments))
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


class PlainHelpGroup(TyperGroup):
    """Command group whose help shows the summary sentence of each command in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the group's commands, each with its summary sentence."""
        listed = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(n, c.get_short_help_str(_SENTENCE)) for n, c in listed if c and not c.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _source(ctx: Any, parameter: Any) -> str:
    return getattr(ctx.get_parameter_source(parameter.name), "name", "")


def _short(parameter: Any, record: tuple[str, str]) -> tuple[str, str]:
    """Return an option's name, and its help with the option's other spellings at the end."""
    metavar = _EACH.sub(lambda found: f"<{found[1].lower()}>", record[0])
    record = (metavar.replace(" range>", ">"), record[1])
    long = [name for name in parameter.opts if name.startswith("--")]
    off = parameter.secondary_opts
    if len(long) < 2 and len(off) < 2:
        return record
    first, text = record
    metavar = first.rpartition(" ")[2] if first.endswith(">") else ""
    names = [name for name in parameter.opts if not name.startswith("--")] + long[:1]
    shown = " / ".join([", ".join(names), *off[:1]]) + (f" {metavar}" if metavar else "")
    others = [f"also {', '.join(long[1:])}"] * (len(long) > 1)
    others += [f"turn off with {', '.join(off[1:])}"] * (len(off) > 1)
    also = "; ".join(others)
    return shown, f"{text} {also[0].upper()}{also[1:]}."


def _with_examples(text: str) -> str:
    """Return help with examples on separate lines, and long commands continued as in a shell."""
    paragraphs = inspect.cleandoc(text).replace("Example: ", "Example:\n  ").split("\n\n")
    return "\n\n".join(_VERBATIM + _continued(p) if "\n  " in f"\n{p}" else p for p in paragraphs)


def _continued(paragraph: str) -> str:
    is_typed = re.search(r"^  pinn ", paragraph, re.MULTILINE) is not None
    return paragraph.replace("\n    ", " \\\n    ") if is_typed else paragraph


# Command group that imports a subcommand only when it runs, and prints errors in one line.

#: Maximum length of an error message in characters, including additions of the command line.
_ERROR_CHARACTERS = 3000


@dataclass(frozen=True)
class Subcommand:
    """Name and help of a subcommand, which is imported when it runs.

    Attributes:
        name: Name as typed, which is also the name of the module with the command's function, or
            with the ``app`` of several subcommands.
        help: Summary line for the list of commands, shown without importing the module.
    """

    name: str
    help: str

    def load(self) -> object:
        """Import the subcommand's module and return its click command."""
        module = importlib.import_module(f"pinn.cli.{self.name}")
        application = getattr(module, "app", None)
        if application is None:
            application = typer.Typer()
            application.command()(getattr(module, self.name))
        application._add_completion = False  # completion is installed once for the whole program
        application.rich_markup_mode = None
        application.info.cls = PlainHelpGroup
        for command in application.registered_commands:
            command.cls = PlainHelpCommand
        built = typer.main.get_command(application)
        built.name = self.name
        return built


class CommandGroup(PlainHelpGroup):
    """Group of subcommands whose help and completion import no subcommand's module."""

    subcommands: ClassVar[tuple[Subcommand, ...]] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._known = {command.name: command for command in self.subcommands}
        for name, command in self._known.items():
            self.add_command(TyperCommand(name, help=command.help))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the imported command for a current or deprecated name on the command line."""
        word, *more = args
        if (current := old_names.COMMANDS.get(word)) in self._known:
            old_names.note(word, str(current))
            word = str(current)
        name, listed, rest = super().resolve_command(ctx, [word, *more])
        return name, None if listed is None else self._known[str(listed.name)].load(), rest

    def main(self, *arguments: Any, standalone_mode: bool = True, **extra: Any) -> object:
        """Run the command, and print errors that the user can correct as one line on stderr."""
        warnings.showwarning = _show_warning
        try:
            with shown("pinn", sys.stderr):
                result = super().main(*arguments, **(extra | {"standalone_mode": False}))
        except PinnError as error:
            _fail(str(error), 1)
        except MemoryError:
            _fail("not enough memory: give a smaller input", 1)
        except OSError as error:
            _fail(f"{error.filename or 'output'}: {error.strerror or error}", 1)
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            if error.__class__.__name__ == "NoArgsIsHelpError":
                typer.echo(error.format_message(), err=True)
                sys.exit(2)
            _fail(_usage(error), getattr(error, "exit_code", 2))
        return sys.exit(result if isinstance(result, int) else 0) if standalone_mode else result


#: Command whose server flags come from a folder written by 'pinn ingest'.
_OF_INGESTED = "evaluate coefficients"


def _server_options() -> set[str]:
    return {flag.option for flag in flags_of(ServingSpec)}


def _usage(error: Any) -> str:
    """Return click's message on invalid arguments, with a reference to the command's help."""
    context = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split()).rstrip(".")
    option = getattr(error, "option_name", None)
    if option in {*OPTIONS[IMAGE], *OPTIONS[AUDIO]}:
        message += ": results of this command do not include encoders of images and audio"
    if context and context.command_path.endswith(_OF_INGESTED) and option in _server_options():
        message += ": flags of the measured server are given to 'pinn ingest'"
    return f"{message}; see '{context.command_path} --help'" if context else message


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {printable(message, _ERROR_CHARACTERS)}", err=True)
    sys.exit(code)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"warning: {printable(message, _ERROR_CHARACTERS)}", err=True)

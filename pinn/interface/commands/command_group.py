"""A command group that imports a subcommand only when it runs, and fails in one line."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from pinn.errors import PinnError, printable
from pinn.interface.commands.command_help import PlainHelpCommand, PlainHelpGroup
from pinn.specs.files.progress import shown

#: An error's message is as long as this at most, with what the command line adds.
_ERROR_CHARACTERS = 3000


@dataclass(frozen=True)
class Subcommand:
    """Where a subcommand is found.

    Attributes:
        name: As typed.
        module: Holds the Typer application ``app``.
        help: One line for the list of commands, shown without importing the module.
    """

    name: str
    module: str
    help: str

    def load(self) -> Any:
        """Import the module and build its command."""
        application = importlib.import_module(self.module).app
        application._add_completion = False  # the whole command has it once
        application.rich_markup_mode = None
        application.info.cls = PlainHelpGroup
        for command in application.registered_commands:
            command.cls = PlainHelpCommand
        built = typer.main.get_command(application)
        built.name = self.name
        return built


class CommandGroup(PlainHelpGroup):
    """Subclasses list their subcommands; the list alone answers ``--help`` and completion."""

    subcommands: ClassVar[tuple[Subcommand, ...]] = ()
    renamed: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._known = {c.name: c for c in self.subcommands if find_spec(c.module) is not None}
        for name, command in self._known.items():
            self.add_command(TyperCommand(name, help=command.help))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The real command in place of its line in the list; old spellings are understood."""
        if args:
            args = [self.renamed.get(args[0], args[0]), *args[1:]]
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if listed is None else self._known[str(listed.name)].load(), rest

    def main(self, *arguments: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run; what the user can correct is said in one line on stderr."""
        warnings.showwarning = _show_warning
        try:
            with shown("pinn", sys.stderr):
                result = super().main(*arguments, **(extra | {"standalone_mode": False}))
        except PinnError as error:
            _fail(str(error), 1)
        except MemoryError:
            _fail("there is not enough memory: give a smaller input", 1)
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


def _usage(error: Any) -> str:
    """What was wrong with the arguments, and where the right ones are explained."""
    context = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message}; see '{context.command_path} --help'" if context else message


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {printable(message, _ERROR_CHARACTERS)}", err=True)
    sys.exit(code)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"warning: {printable(message, _ERROR_CHARACTERS)}", err=True)

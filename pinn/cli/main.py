"""Entry point of the command ``pinn``."""

from pathlib import Path
from typing import Annotated

import typer

import pinn
from pinn.cli.command_group import CommandGroup, Subcommand
from pinn.common.files import read_rows

_FOLDER = Path(__file__).parent
_SUMMARY = "Predict the latency and throughput of LLM servers without measuring them."
HELP = f"""{_SUMMARY}

Engine flags have the same names as in vLLM, or as in the engine given with --engine.
"""

#: Output of ``pinn`` without a command: one runnable example of each task.
FIRST_STEPS = f"{_SUMMARY}\n\n" + (_FOLDER / "first_steps.txt").read_text("utf-8").rstrip()

#: Commands in the order of ``pinn --help``.
COMMANDS = tuple(Subcommand(**row) for row in read_rows(_FOLDER / "commands.csv"))


class _Commands(CommandGroup):
    subcommands = COMMANDS


app = typer.Typer(
    cls=_Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(help=HELP)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"pinn {pinn.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(FIRST_STEPS)


def main() -> None:
    """Run the command ``pinn`` with the arguments of this process."""
    app(prog_name="pinn")


if __name__ == "__main__":
    main()

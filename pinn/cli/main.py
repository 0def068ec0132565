"""The command ``pinn``."""

from importlib.resources import files
from typing import Annotated, ClassVar

import typer

import pinn
from pinn.cli.command_group import CommandGroup, Subcommand

_SUMMARY = "Latency of LLM serving engines on models and GPUs that nobody has measured."
HELP = f"""{_SUMMARY}

Every engine flag is spelled like vLLM's. Training has its own entry: python train.py.
"""

#: What ``pinn`` alone says: an example of each thing that one can do, a command that does it as it
#: stands; files are the user's own.
FIRST_STEPS = f"{_SUMMARY}\n\n{(files('pinn.cli') / 'first_steps.txt').read_text().rstrip()}"

#: What each command does.
_LISTED = {
    "coefficients": "Alpha and beta of a model on a GPU under a vLLM configuration, or of "
    "thousands.",
    "breakdown": "Where the time of a step goes, beside the measured kernels it rests on.",
    "simulate": "Serve a workload in simulated time.",
    "plan": "What to rent for a load, how to start it, and how sure that is.",
    "explore": "A page to play with: sliders move what a few servers do.",
    "export": "Write ONNX graphs, tables and files for the Go simulator.",
    "evaluate": "Score every method on every split, or predictions on measurements of your own.",
    "compare": "Two checkpoints, coefficient files or evaluations, metric by metric.",
    "measure": "Measure an engine's steps on this machine's GPU.",
    "ingest": "Read a server's traces into tables.",
    "calibrate": "Fit the coefficients to a server's own benchmarks, steps or traces.",
    "results": "Show the errors on held-out models and GPUs.",
    "kernels": "Measure and show the errors of the kernel surrogates.",
    "models": "List the models known by name.",
    "gpus": "List the GPUs known by name, with their datasheets.",
}
COMMANDS = tuple(Subcommand(name, text) for name, text in _LISTED.items())


class _Commands(CommandGroup):
    subcommands = COMMANDS
    #: Spellings of the last release.
    renamed: ClassVar = {"account": "breakdown"}


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
    """Run the command line."""
    app(prog_name="pinn")


if __name__ == "__main__":
    main()

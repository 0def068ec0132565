"""The command ``pinn``."""

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
FIRST_STEPS = rf"""{_SUMMARY}

The time of an engine step, and what it is made of:
  pinn coefficients --model Qwen/Qwen3-30B-A3B --gpu H100 -tp 2
  pinn breakdown --model Qwen/Qwen3-30B-A3B --gpu H100 -tp 2
The same of a table of configurations:
  pinn coefficients --model Llama-3.1-8B --grid 'gpu=H100,B200 tp=1,2' \
    --out g.csv
What clients see of a server under a load:
  pinn simulate --model ./config.json --gpu H100 --input-len 1024 \
    --output-len 256 --concurrency 64
What to rent for a load:
  pinn plan --model Llama-3.1-8B --gpu H100,L40S --input-len 1024 \
    --output-len 256 --rate 8 --slo 'p99 ttft<=2s'
Your own server: fit to its benchmarks, then simulate it:
  pinn calibrate --benchmarks results/*.json --gpu H100 -o server.json
The same of a GPU machine without any benchmark, in ten minutes:
  pinn measure --model Llama-3.1-8B --gpu H100 --script measure.py
What other programs read: ONNX, tables, files of the Go simulator:
  pinn export table --configs 'model=Llama-3.1-8B gpu=H100' --out t.json
How good it is; what names are known:
  pinn results; pinn models llama; pinn gpus h100

All commands: pinn --help. One of them: pinn COMMAND --help."""

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

"""The command ``pinn``."""

from __future__ import annotations

import typer

from pinn.cli.command_group import CommandGroup, Subcommand

HELP = """Predict the latency of LLM serving engines on models and GPUs nobody has measured.

Try: pinn coefficients --model meta-llama/Llama-3.1-8B --gpu H100 --tensor-parallel-size 2

Every engine flag is spelled like vLLM's. Training has its own entry: python train.py.
"""

COMMANDS = (
    Subcommand(
        "coefficients",
        "pinn.cli.coefficients",
        "Alpha and beta of a model on a GPU under a vLLM configuration, or of thousands.",
    ),
    Subcommand(
        "breakdown",
        "pinn.cli.breakdown",
        "Where the time of a step goes, beside the measured kernels it rests on.",
    ),
    Subcommand("simulate", "pinn.cli.simulate", "Serve a workload in simulated time."),
    Subcommand(
        "plan", "pinn.cli.plan", "What to rent for a load, how to start it, and how sure that is."
    ),
    Subcommand(
        "export", "pinn.cli.export", "Write ONNX graphs, tables and files for the Go simulator."
    ),
    Subcommand(
        "evaluate",
        "pinn.cli.evaluate",
        "Score every method on every split, or predictions on measurements of your own.",
    ),
    Subcommand(
        "compare",
        "pinn.cli.compare",
        "Two checkpoints, coefficient files or evaluations, metric by metric.",
    ),
    Subcommand("ingest", "pinn.cli.ingest", "Read a server's traces into tables."),
    Subcommand("calibrate", "pinn.cli.calibrate", "Fit the coefficients to a server's own traces."),
    Subcommand(
        "observations", "pinn.cli.observations", "Write measurements as tables to train on."
    ),
    Subcommand("results", "pinn.cli.results", "Show the errors on held-out models and GPUs."),
    Subcommand(
        "kernels", "pinn.cli.kernels", "Measure and show the errors of the kernel surrogates."
    ),
    Subcommand("models", "pinn.cli.models", "List the models known by name."),
    Subcommand("gpus", "pinn.cli.gpus", "List the GPUs known by name, with their datasheets."),
)


#: Spellings of the last release.
RENAMED = {"account": "breakdown"}


class _Commands(CommandGroup):
    subcommands = COMMANDS
    renamed = RENAMED


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
)


@app.callback(help=HELP)
def _root() -> None:
    """Nothing happens here: the subcommands do the work."""


def main() -> None:
    """Run the command line."""
    app(prog_name="pinn")


if __name__ == "__main__":
    main()

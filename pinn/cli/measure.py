"""Command ``pinn measure``: measurements of vLLM's steps on this machine's GPU."""

from typing import Annotated

import typer

from pinn.api.requests import MeasureRequest
from pinn.cli.options import engine_flags
from pinn.specs.serving import ServingSpec


@engine_flags(ServingSpec)
def measure(
    asked: MeasureRequest,
    more: Annotated[list[str] | None, typer.Argument(metavar="FLAGS")] = None,
    *,
    flags: dict[str, object],
) -> None:
    """Measure whole steps of vLLM on this machine's GPU.

    vLLM runs with random weights, and its steps are timed. A short list of batches comes first.
    Then come batches that, for their time, narrow the prediction intervals of the loads of --load
    most. For a GPU machine without pinn, --script writes the measuring program as one file that
    needs only vLLM; copy the folder that it writes back, and calibrate with it.

    Examples:
      pinn measure --model meta-llama/Llama-3.1-8B --gpu H100 --out steps

      pinn measure --model Qwen/Qwen3-32B --gpu H100 -tp 2
        --load 32x4000x300 --script measure.py

      pinn calibrate --steps steps -o server.json

    Options:
        more: Flags of vLLM that pinn does not know, after --.
    """
    from pinn.api import measuring

    found = measuring.measure(**(vars(asked) | flags), more=more or (), say=typer.echo)
    if found.is_program:
        typer.echo(str(found).splitlines()[-1])
    if found.exit_status:
        raise typer.Exit(found.exit_status)

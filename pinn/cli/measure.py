"""``pinn measure``."""

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

    The engine runs in the program's own process on weights of noise, and its steps are timed: a
    short list of batches first, then whichever narrows the asked loads' intervals most for its
    time. The program is one file that needs the engine alone: --script writes it for a machine
    without pinn, whose folder of steps is then calibrated on anywhere.

    Examples:
      pinn measure --model meta-llama/Llama-3.1-8B --gpu H100 --out steps

      pinn measure --model Qwen/Qwen3-32B --gpu H100 -tp 2
        --load 32x4000x300 --script measure.py

      pinn calibrate --steps steps -o server.json

    Options:
        more: After --: flags of vLLM that pinn does not know.
    """
    from pinn.api import measuring

    found = measuring.measure(**(vars(asked) | flags), more=more or (), say=typer.echo)
    if found.is_program:
        typer.echo(str(found).splitlines()[-1])
    if found.exit_status:
        raise typer.Exit(found.exit_status)

"""Command ``pinn breakdown``: the time of an engine step by part."""

from pathlib import Path
from typing import Annotated

from pinn.api.requests import BreakdownRequest
from pinn.cli.options import JsonPath, engine_flags, output
from pinn.cli.outputs import PICTURES, write_json
from pinn.specs.flags import FlagValue
from pinn.specs.serving import ServingSpec


@engine_flags(ServingSpec, deploys=True)
def breakdown(
    asked: BreakdownRequest,
    explain: bool = False,
    plot: Annotated[Path | None, output(*PICTURES)] = None,
    json_path: JsonPath = None,
    *,
    flags: dict[str, FlagValue],
) -> None:
    """Break the time of an engine step down by part, with the measured kernels behind it.

    The time of a part is its sum of beta x feature, with the coefficients beta that the network
    predicts. --explain adds the time of the step as a sum of measured kernels and overheads. It
    also lists the kernels: calls, time, and the ratio of each shape to the nearest measured shape
    (x 1.00 was measured).

    Examples:
      pinn breakdown --model Qwen/Qwen3-30B-A3B --gpu H200 -tp 2

      pinn breakdown --model Llama-3.1-70B --gpu B200 --tensor-parallel-size 4
        --batch '256 decode @ 4000' --plot step.png

    Options:
        explain: Also print what each part includes, and the step's time summed from measured
            kernels.
        plot: Also draw the breakdown, as .png, .svg or .pdf.
    """
    from pinn.api import breakdown as steps

    found = steps.breakdown(**(vars(asked) | flags))
    write_json(found.to_json(), json_path)
    if plot is not None:
        found.draw(plot)
    found.show(explain)

"""``pinn breakdown``."""

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
    """Where the time of an engine step goes, and the measured kernels behind it.

    The network's breakdown: beta x feature, by part. With --explain that of a step composed of
    measured kernels and overheads stands beside it. Then come the kernels: how often each runs, how
    long, and how far its sizes are off from the nearest measured one (x 1.00 is that very kernel).

    Examples:
      pinn breakdown --model Qwen/Qwen3-30B-A3B --gpu H200 -tp 2

      pinn breakdown --model Llama-3.1-70B --gpu B200 --tensor-parallel-size 4
        --batch '256 decode @ 4000' --plot step.png

    Options:
        explain: Show what parts hold, the composed step, and its kernels, too.
        plot: Also draw it: .png, .svg or .pdf.
    """
    from pinn.api import breakdown as steps

    found = steps.breakdown(**(vars(asked) | flags))
    write_json(found.to_json(), json_path)
    if plot is not None:
        found.draw(plot)
    found.show(explain)

"""``pinn explore``."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.api import requests
from pinn.cli import options
from pinn.specs.flags import FlagValue
from pinn.specs.serving import ServingSpec


@options.engine_flags(ServingSpec, deploys=True)
def explore(
    out: Annotated[Path, options.output(".html")],
    asked: requests.ExploreRequest,
    flags: dict[str, FlagValue],
) -> None:
    """A page to play with: sliders move time per token, TTFT and throughput of a few servers.

    One file that needs no other and no network. Its numbers are simulated when it is made, as by
    'pinn simulate', some seconds for each server. Menus hold the GPUs, --tensor-parallel-size
    (1,2,4,8 without it) and --quantization (the checkpoint's own and fp8 without it), each of
    which takes several separated by commas; what does not start is named in the page with the
    reason. Other flags hold for all servers.

    Example:
      pinn explore --model Qwen/Qwen3-30B-A3B --gpu H100,H200,B200
        --out explore.html

    Options:
        out: Page to write.
    """
    from pinn.api import plans

    servers = plans.explore(out, **(vars(asked) | flags))
    typer.echo(f"{servers:8} servers in {out}")

"""Command ``pinn explore``: an interactive page about the performance of a few servers."""

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
    """Write an interactive HTML page with TPOT, TTFT and throughput of a few servers.

    The page is one file that works offline. It has menus for the GPU, the tensor-parallel size and
    the weight format, and sliders for the load. --gpu, --tensor-parallel-size (default 1,2,4,8) and
    --quantization (default: the checkpoint's own format, and fp8) take several values, separated by
    commas; other options apply to all servers. Each server is simulated as by 'pinn simulate',
    which takes some seconds. Servers whose model does not fit are listed with the reason.

    Example:
      pinn explore --model Qwen/Qwen3-30B-A3B --gpu H100,H200,B200
        --out explore.html

    Options:
        out: HTML file to write.
    """
    from pinn.api import plans

    servers = plans.explore(out, **(vars(asked) | flags))
    typer.echo(f"{servers:8} servers written to {out}")

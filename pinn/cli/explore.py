"""``pinn explore``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pinn.api import requests
from pinn.cli import options
from pinn.common.files import file_sha256, find_checkpoint, write_whole
from pinn.engines.configurations import canonical
from pinn.errors import PinnError
from pinn.specs.serving import ServingSpec


@options.engine_flags(ServingSpec, several=("tensor_parallel_size",), deploys=True)
def explore(
    out: Annotated[Path, options.output(".html")],
    asked: requests.ExploreRequest,
    flags: dict[str, Any],
) -> None:
    """A page to play with: sliders move time per token, TTFT and throughput of a few servers.

    One file without any other, which works everything out in the browser and asks nobody. Menus
    hold the GPUs, --tensor-parallel-size (1,2,4,8 without it) and --quantization (the checkpoint's
    own and fp8 without it), each of which takes several separated by commas; what does not start
    is named in the page with the reason. Other flags hold for all servers.

    Example:
      pinn explore --model Qwen/Qwen3-30B-A3B --gpu H100,H200,B200
        --out explore.html

    Options:
        out: Page to write.
    """
    if asked.model is None or asked.gpus is None:
        raise PinnError("--model and --gpu are needed: 'pinn models' and 'pinn gpus' list them")
    found = write_explore_page(out, asked.model, asked.gpus.split(","), asked.checkpoint, flags)
    typer.echo(f"{found:8} servers in {out}")


def write_explore_page(
    out: Path, model: str, gpus: list[str], checkpoint: Path | None, flags: dict[str, Any]
) -> int:
    """Write the page; how many servers it holds. Arguments are the command's options."""
    from pinn.planning.explore.page import FORMATS, SIZES, find_servers, render

    used = find_checkpoint(checkpoint)
    sizes = flags.pop("tensor_parallel_size", None) or SIZES
    formats = [part.strip() for part in flags.pop("precision", "").split(",") if part.strip()]
    names = list(dict.fromkeys(name.strip() for name in gpus if name.strip()))
    if not model.strip():
        raise PinnError("--model names none: 'pinn models' lists them")
    if not names:
        raise PinnError("--gpu names none: give names separated by commas, such as H100,H200")
    shared = canonical({"model": model} | flags)
    found = find_servers(shared, names, sizes, formats or FORMATS, used)
    source = f"Coefficients of {used.name} (SHA-256 {file_sha256(used)[:12]})."
    write_whole(out, render(found, source))
    return len(found.found)

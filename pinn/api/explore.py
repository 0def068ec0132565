"""A page with sliders of a few servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinn.api import requests
from pinn.api.arguments import read_request, with_arguments
from pinn.api.requests import named
from pinn.errors import PinnError
from pinn.planning.explore.page import explore_page
from pinn.planning.explore.servers import SIZES
from pinn.specs.serving import ServingSpec


@with_arguments(ServingSpec, request=requests.ExploreRequest, deploys=True)
def explore(
    out: str | Path,
    model: str | Path | None = None,
    gpus: Sequence[str | Path] = (),
    *,
    tensor_parallel_sizes: Sequence[int] = SIZES,
    formats: Sequence[str] = (),
    **given: object,
) -> int:
    """Write a page with sliders of a few servers, which needs no other file: ``pinn explore``.

    Args:
        out: Page to write.
        model: Name, or path of a config.json or its folder.
        gpus: Names, or paths of datasheets, to choose from.
        tensor_parallel_sizes: To choose from; not with ``tensor_parallel_size``.
        formats: Number formats to choose from. [default: the checkpoint's own and fp8]
        **given: All else; the engine's flags are for all servers.

    Returns:
        How many servers the page has; those that do not start are named in it.

    Raises:
        PinnError: If something is unknown, no server starts, or the page cannot show one.
    """
    own = {"model": model, "gpus": None}
    asked, flags = read_request(requests.ExploreRequest, given, ServingSpec, **own)
    flags |= named(asked.model, None)
    if "model" not in flags or not gpus:
        raise PinnError("a page needs a model and gpus, such as 'Llama-3.1-8B', ['H100', 'H200']")
    one = flags.get("tensor_parallel_size")
    flags["tensor_parallel_size"] = list(tensor_parallel_sizes) if one is None else [one]
    if formats:
        flags["precision"] = ",".join(formats)
    page = explore_page(
        str(flags.pop("model")), [str(gpu) for gpu in gpus], flags, asked.checkpoint
    )
    page.write(Path(out))
    return len(page.servers)

"""A page of simulated servers, as one file that needs no other and no network."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from pinn.common import JsonObject
from pinn.common.files import file_sha256, find_checkpoint, json_text, write_whole
from pinn.common.pages import template
from pinn.common.progress import counted
from pinn.engines.configurations import canonical
from pinn.errors import PinnError
from pinn.planning.explore.grid import (
    PARTS,
    RANGE_RATIO,
    REQUESTS_PER_CLIENT,
    STOPS,
    Column,
    Stops,
    simulate_grid,
)
from pinn.planning.explore.servers import FORMATS, SIZES, Server, Servers, find_servers
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec
from pinn.units import MICROSECOND

_PACKAGE = "pinn.planning.explore"
_SCRIPTS = ("interpolate.js", "chart.js", "explore.js")
#: Initial values of the sliders; the nearest stop if a page lacks one.
_LOAD = {"inFlight": 32, "context": 0, "prompt": 1024, "output": 256}


@dataclass(frozen=True)
class ExploreRequest:
    """The servers to show.

    Attributes:
        model: Name, or path of a config.json or its folder.
        gpus: Names or datasheet paths.
        sizes: Tensor-parallel sizes.
        formats: Number formats; None is the checkpoint's own.
        flags: Engine flags of all servers.
        checkpoint: Of the network; None for the released one.
        stops: Values of the sliders.
    """

    model: str
    gpus: Sequence[str]
    sizes: Sequence[int] = SIZES
    formats: Sequence[str | None] = FORMATS
    flags: Mapping[str, object] | None = None
    checkpoint: Path | None = None
    stops: Stops = STOPS


@dataclass(frozen=True)
class ExplorePage:
    """Simulations of the servers of a page.

    Attributes:
        servers: That start, and combinations that do not.
        grids: Simulations of each server that starts.
        checkpoint: Of the network.
        source: Sentence on the origin of the coefficients.
        given_checkpoint: Whether the printed command names the checkpoint.
    """

    servers: Servers
    grids: tuple[list[Column], ...]
    checkpoint: Path
    source: str
    given_checkpoint: bool = False

    def write(self, out: Path) -> None:
        """Write the page."""
        write_whole(out, self.render())

    def render(self) -> str:
        """Return the page's HTML."""
        servers = self.servers
        intervals = all(server.half_widths is not None for server in servers.found)
        return template(_PACKAGE, "explore.html.j2").render(
            model=servers.model,
            engine="vLLM",
            flags=", ".join(f"{name} {value}" for name, value in servers.flags.items()),
            intervals=intervals,
            bands="Bands are 90 % intervals." if intervals else "",
            source=self.source,
            style=Markup(_text("explore.css")),
            script=Markup("\n".join(map(_text, _SCRIPTS))),
            # No text in it can end the script element that contains it.
            data=Markup(json_text(self.data(), allow_nan=False).replace("<", "\\u003c")),
        )

    def data(self) -> JsonObject:
        """Return what the page's script reads: SI units, numbers to four digits."""
        return {
            "servers": [
                _server_data(server, grid)
                for server, grid in zip(self.servers.found, self.grids, strict=True)
            ],
            "left_out": [asdict(each.asked) | {"reason": each.reason}
                         for each in self.servers.left_out],
            "load": dict(_LOAD),
            "parts": list(PARTS),
            "range_ratio": RANGE_RATIO,
            "requests_per_client": REQUESTS_PER_CLIENT,
            "arguments": self._arguments(),
        }  # fmt: skip

    def _arguments(self) -> str:
        """Return model, flags and checkpoint as a command line has them."""
        options = {flag.name: flag.option for flag in flags_of(ServingSpec)}
        words = ["--model", self.servers.model]
        for name, value in self.servers.flags.items():
            option = options.get(name, f"--{name.replace('_', '-')}")
            if isinstance(value, bool):
                words.append(option if value else option.replace("--", "--no-", 1))
            else:
                words += [option, str(value)]
        if self.given_checkpoint:
            words += ["--checkpoint", str(self.checkpoint)]
        return shlex.join(words)


def explore_page(request: ExploreRequest) -> ExplorePage:
    """Find the servers and simulate each of them over the sliders.

    Raises:
        PinnError: If something is unknown, no server starts, or the page does not support one.
    """
    names = list(dict.fromkeys(name.strip() for name in request.gpus if name.strip()))
    if not request.model.strip():
        raise PinnError("--model names none: 'pinn models' lists them")
    if not names:
        raise PinnError("--gpu names none: give names separated by commas, such as H100,H200")
    used = find_checkpoint(request.checkpoint)
    shared = canonical({"model": request.model} | dict(request.flags or {}))
    servers = find_servers(shared, names, request.sizes, request.formats, used)
    grids = tuple(
        simulate_grid(server, request.stops) for server in counted(servers.found, "server")
    )
    source = f"Coefficients of {used.name} (SHA-256 {file_sha256(used)[:12]})."
    return ExplorePage(servers, grids, used, source, request.checkpoint is not None)


def explore_request(
    model: str, gpus: Sequence[str], flags: Mapping[str, object], checkpoint: Path | None = None
) -> ExploreRequest:
    """Build a request from the command's options.

    Args:
        model: Name, or path of a config.json or its folder.
        gpus: Names or datasheet paths.
        flags: Engine flags. ``tensor_parallel_size`` may be a list, ``precision`` several formats
            separated by commas.
        checkpoint: Of the network; None for the released one.
    """
    shared = dict(flags)
    sizes, formats = shared.pop("tensor_parallel_size", None), shared.pop("precision", "")
    named = [part.strip() for part in str(formats).split(",") if part.strip()]
    return ExploreRequest(
        model,
        gpus,
        sizes if isinstance(sizes, Sequence) and sizes else SIZES,
        named or FORMATS,
        shared,
        checkpoint,
    )


def _server_data(server: Server, grid: Sequence[Column]) -> JsonObject:
    half = server.half_widths
    return {
        **asdict(server.asked),
        "format": server.format,
        "max_requests": server.max_requests,
        "max_model_len": server.max_model_len,
        "kv_tokens": server.kv_tokens,
        "half_widths": None if half is None else asdict(half),
        "columns": [_column_data(column) for column in grid],
    }


def _column_data(column: Column) -> JsonObject:
    clients = column.clients()
    nodes = [column.nodes[each] for each in clients]
    return {
        "prompt": column.lengths.prompt,
        "output": column.lengths.output,
        "context": column.lengths.prefix,
        "most": column.most_clients,
        "further_requests": column.lengths.further_requests,
        "clients": clients,
        "ttft": _rounded(node.ttft_s for node in nodes),
        "tpot": _rounded(node.itl_s for node in nodes),
        "tokens": _rounded(node.tokens_per_s for node in nodes),
        "decode_us": [_whole_us(node.decode_parts_s) for node in nodes],
        "mixed_us": [_whole_us(node.mixed_parts_s) for node in nodes],
    }


def _whole_us(seconds: Iterable[float]) -> list[int]:
    """Round to whole microseconds, which keeps the page small."""
    return [round(value / MICROSECOND) for value in seconds]


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _text(name: str) -> str:
    return (files(_PACKAGE) / name).read_text(encoding="utf-8")

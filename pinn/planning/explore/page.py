"""Interactive page of simulated servers, in one self-contained HTML file."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from pinn.common import JsonObject
from pinn.common.documents import comma_separated
from pinn.common.files import file_sha256, find_checkpoint, json_text, write_whole
from pinn.common.numbers import exact
from pinn.common.pages import template
from pinn.common.progress import counted
from pinn.engines.assumptions import assumption_lines
from pinn.engines.configurations import canonical
from pinn.errors import PinnError
from pinn.planning.explore.grid import (
    FORMATS,
    PARTS,
    RANGE_RATIO,
    REQUESTS_PER_CLIENT,
    SIZES,
    STOPS,
    Asked,
    Column,
    Server,
    Stops,
    find_servers,
    simulate_grid,
)
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec
from pinn.units import MICROSECOND

_PACKAGE = "pinn.planning.explore"
_SCRIPTS = ("interpolate.js", "chart.js", "explore.js")
#: Initial values of the sliders. A slider without this value starts at the nearest one.
_LOAD = {"inFlight": 32, "context": 0, "prompt": 1024, "output": 256}


@dataclass(frozen=True)
class ExplorePage:
    """Interactive page: its servers and their simulations.

    Attributes:
        model: Name or path of the model, as given.
        flags: Engine flags shared by all servers, as given.
        servers: Servers that start.
        left_out: Combinations that do not start, each with its reason.
        grids: Simulations of each server that starts.
        source: Sentence that names the source of the latency coefficients: the network or a file.
        checkpoint: Checkpoint that the user specified, for the printed command; None for the
            shipped one.
    """

    model: str
    flags: Mapping[str, object]
    servers: Sequence[Server]
    left_out: Sequence[tuple[Asked, str]]
    grids: Sequence[list[Column]]
    source: str
    checkpoint: Path | None

    def write(self, out: Path) -> None:
        """Write the page to a file."""
        write_whole(out, self.render())

    def render(self) -> str:
        """Return the page as HTML."""
        intervals = all(server.half_widths is not None for server in self.servers)
        return template(_PACKAGE, "explore.html.j2").render(
            model=self.model,
            engine="vLLM",
            flags=", ".join(f"{name} {value}" for name, value in self.flags.items()),
            intervals=intervals,
            bands="Bands are 90 % intervals." if intervals else "",
            source=self.source,
            style=Markup(_text("explore.css")),
            script=Markup("\n".join(map(_text, _SCRIPTS))),
            # The escape keeps text in the data from closing the script element that contains it.
            data=Markup(json_text(self.data(), allow_nan=False).replace("<", "\\u003c")),
        )

    def data(self) -> JsonObject:
        """Return the data for the page's script in SI units, rounded; parts of a step in us."""
        return {
            "servers": [
                _server_data(server, grid)
                for server, grid in zip(self.servers, self.grids, strict=True)
            ],
            "left_out": [asdict(asked) | {"reason": reason} for asked, reason in self.left_out],
            "load": dict(_LOAD),
            "parts": list(PARTS),
            "range_ratio": RANGE_RATIO,
            "requests_per_client": REQUESTS_PER_CLIENT,
            "arguments": self._arguments(),
        }

    def _arguments(self) -> str:
        """Return model, flags and checkpoint as command-line arguments."""
        options = {flag.name: flag.option for flag in flags_of(ServingSpec)}
        words = ["--model", self.model]
        for name, value in self.flags.items():
            option = options.get(name, f"--{name.replace('_', '-')}")
            if isinstance(value, bool):
                words.append(option if value else option.replace("--", "--no-", 1))
            else:
                words += [option, exact(value)]
        if self.checkpoint is not None:
            words += ["--checkpoint", str(self.checkpoint)]
        return shlex.join(words)


def explore_page(
    model: str,
    gpus: Sequence[str],
    flags: Mapping[str, object],
    checkpoint: Path | None = None,
    stops: Stops = STOPS,
) -> ExplorePage:
    """Find the servers that start, and simulate each server at all slider positions.

    Args:
        model: Name of the model, or path of a config.json or its folder.
        gpus: GPU names or datasheet paths.
        flags: Engine flags of all servers. ``tensor_parallel_size`` may be a list;
            ``precision`` is a list of formats, or text with commas between them. None in the list
            means the checkpoint's own format.
        checkpoint: Checkpoint of the network; None for the shipped checkpoint.
        stops: Slider positions.

    Raises:
        PinnError: If a name is unknown, no server starts, or the page does not support one.
    """
    names = list(dict.fromkeys(filter(None, map(str.strip, gpus))))
    if not model.strip():
        raise PinnError("--model is missing: give a name that 'pinn models' lists, or a path")
    if not names:
        raise PinnError("--gpu is missing: give names separated by commas, such as H100,H200")
    used, of_all = find_checkpoint(checkpoint), dict(flags)
    sizes, formats = of_all.pop("tensor_parallel_size", None), of_all.pop("precision", None)
    if isinstance(formats, str):
        formats = comma_separated(formats)
    shared = canonical({"model": model} | of_all)
    servers, left_out = find_servers(
        shared,
        names,
        sizes if isinstance(sizes, Sequence) and sizes else SIZES,
        formats if isinstance(formats, Sequence) and formats else FORMATS,
        used,
    )
    grids = [simulate_grid(server, stops) for server in counted(servers, "server")]
    source = f"Coefficients of {used.name} (SHA-256 {file_sha256(used)[:12]})."
    if servers:
        source = " ".join([source, *assumption_lines(servers[0].deployment)])
    name = str(shared.pop("model"))
    return ExplorePage(name, shared, servers, left_out, grids, source, checkpoint)


def _server_data(server: Server, grid: Sequence[Column]) -> JsonObject:
    return {
        **asdict(server.asked),
        "format": server.format,
        "max_requests": server.deployment.recipe.max_requests,
        "max_model_len": server.max_model_len,
        "kv_tokens": server.kv_tokens,
        "half_widths": server.half_widths,
        "columns": [_column_data(column) for column in grid],
    }


def _column_data(column: Column) -> JsonObject:
    clients = sorted(column.nodes)
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
    """Round seconds to whole microseconds, which keeps the page small."""
    return [round(value / MICROSECOND) for value in seconds]


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _text(name: str) -> str:
    return (files(_PACKAGE) / name).read_text(encoding="utf-8")

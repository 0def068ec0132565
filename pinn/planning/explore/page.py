"""The page of a few servers, as one file that asks nobody."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from pinn.common.files import json_text, write_whole
from pinn.common.pages import template
from pinn.planning.explore.servers import Servers
from pinn.specs import flags, serving

#: Read in this order: formulas, what is made of them, drawing, the page itself.
_SCRIPTS = ("step_formulas.js", "predict.js", "chart.js", "explore.js")
_PACKAGE = "pinn.planning.explore"
#: Where the sliders stand at first.
LOAD = {"inFlight": 32, "context": 0, "prompt": 1024, "output": 256}


def write_explore(servers: Servers, path: Path, source: str) -> None:
    """Write the page.

    Args:
        servers: Of :func:`pinn.planning.explore.servers.find_servers`.
        path: Of the file, which appears whole or not at all.
        source: A sentence on where the coefficients are from.
    """
    write_whole(path, render(servers, source))


def render(servers: Servers, source: str) -> str:
    """The page's text."""
    intervals = all(server["half_widths"] is not None for server in servers.found)
    data = {
        "servers": servers.found,
        "left_out": servers.left_out,
        "load": LOAD,
        "arguments": _arguments(servers),
    }
    return template(_PACKAGE, "explore.html.j2").render(
        model=servers.model,
        engine="vLLM",
        flags=", ".join(f"{name} {value}" for name, value in servers.flags.items()),
        intervals=intervals,
        bands="Bands are 90 % intervals." if intervals else "",
        source=source,
        style=Markup(_text("explore.css")),
        script=Markup("\n".join(map(_text, _SCRIPTS))),
        # No text in it can end the script that it stands in.
        data=Markup(json_text(data, allow_nan=False).replace("<", "\\u003c")),
    )


def _arguments(servers: Servers) -> str:
    """Model and flags as a command line has them."""
    options = {flag.name: flag.option for flag in flags.flags_of(serving.ServingSpec)}
    words = ["--model", servers.model]
    for name, value in servers.flags.items():
        option = options.get(name, f"--{name.replace('_', '-')}")
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [option, str(value)]
    return shlex.join(words)


def _text(name: str) -> str:
    return (files(_PACKAGE) / name).read_text(encoding="utf-8")

"""Write the page of commands and the interactive page when the docs are built."""

import os
from pathlib import Path

from typer.testing import CliRunner

from pinn.cli.main import COMMANDS, app
from pinn.planning.explore.page import explore_page

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH = "96"


def commands() -> str:
    """Return a Markdown page with the ``--help`` text of every command."""
    os.environ.update(COLUMNS=WIDTH, TERMINAL_WIDTH=WIDTH, NO_COLOR="1")
    parts = ["# Commands\n\nWhat `pinn COMMAND --help` prints."]
    for command in COMMANDS:
        parts.append(f"## pinn {command.name}\n\n{_help(command.name)}")
        for name in getattr(command.load(), "commands", {}):
            parts.append(f"### pinn {command.name} {name}\n\n{_help(command.name, name)}")
    return "\n\n".join(parts) + "\n"


def _help(*words: str) -> str:
    printed = CliRunner().invoke(app, [*words, "--help"], prog_name="pinn").output
    return "```\n" + "\n".join(line.rstrip() for line in printed.strip().splitlines()) + "\n```"


def main() -> None:
    gpus = ["H100", "H200", "B200"]
    explore_page("Qwen/Qwen3-30B-A3B", gpus, {"tensor_parallel_size": (1, 2)}).write(
        DOCS / "made/play.html"
    )
    (DOCS / "reference/commands.md").write_text(commands())


if __name__ == "__main__":
    main()

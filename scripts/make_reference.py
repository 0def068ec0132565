"""Write the page of commands from their ``--help``; building the docs runs it."""

from __future__ import annotations

import os
from pathlib import Path

from typer.testing import CliRunner

from pinn.interface.commands.main import COMMANDS, app

ROOT = Path(__file__).resolve().parents[1]
WIDTH = "96"


def commands() -> str:
    """What every command's ``--help`` says."""
    os.environ.update(COLUMNS=WIDTH, TERMINAL_WIDTH=WIDTH, NO_COLOR="1")
    parts = ["# Commands\n\nWhat `pinn COMMAND --help` prints."]
    for command in COMMANDS:
        parts.append(f"## pinn {command.name}\n\n{_help(command.name)}")
        inner = getattr(command.load(), "commands", {})
        parts += [
            f"### pinn {command.name} {name}\n\n{_help(command.name, name)}" for name in inner
        ]
    return "\n\n".join(parts) + "\n"


def _help(*words: str) -> str:
    printed = CliRunner().invoke(app, [*words, "--help"], prog_name="pinn").output
    return "```\n" + "\n".join(line.rstrip() for line in printed.strip().splitlines()) + "\n```"


def main() -> None:
    (ROOT / "docs/reference/commands.md").write_text(commands())


if __name__ == "__main__":
    main()

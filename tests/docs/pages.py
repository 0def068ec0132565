"""Commands that README and the pages of docs tell a reader to type, and their output."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
#: Programs whose lines are commands where no ``$`` says so.
PROGRAMS = ("pinn", "python", "python3.11", "pytest", "make", "pip", "git", "cd", "go")

_BLOCK = re.compile(
    r"(?:<!-- (?:run by (?P<tests>[^\n]*?)|in small(?P<few>, other rows)?: (?P<small>[^\n]*?)"
    r"|(?P<rows>other rows)|begin (?P<part>[\w-]+)) -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: Name of its page.
        language: Language as written behind the fence.
        typed: Its lines as they stand on the page.
        text: The same in small: NEW in place of OLD for a marker ``in small: OLD -> NEW``.
        part: Of ``scripts/update_docs.py``, which writes it; None for none.
        tests: Files whose tests run it in place of those of this folder, which say how small.
        other_rows: Whether tables have other rows and labels other values where a test runs it.
    """

    page: str
    language: str
    typed: str
    text: str
    part: str | None
    tests: tuple[str, ...]
    other_rows: bool

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command with what is shown below it."""
        text = self.text.replace("\\\n", " ")
        if self.language not in ("", "bash") or not text.strip():
            return []
        if text.startswith("$ "):
            each = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
            return [(part.split("\n", 1)[0], part.split("\n", 1)[1]) for part in each]
        lines = [line for line in text.splitlines() if line.split(" ", 1)[0] in PROGRAMS]
        return [(line.split("  #")[0].strip(), "") for line in lines]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    for match in _BLOCK.finditer(page.read_text()):
        text = match["text"]
        for change in filter(None, (match["small"] or "").split("; ")):
            old, new = change.split(" -> ")
            assert old in text, f"{page.name}: no {old!r} to run in small"
            text = text.replace(old, new)
        tests = tuple(re.findall(r"tests/[\w/]+\.py", match["tests"] or ""))
        rows = bool(match["few"] or match["rows"])
        yield Block(page.name, match["language"], match["text"], text, match["part"], tests, rows)


def command_on(page: str, program: str) -> tuple[list[str], str]:
    """Words of the one command of a page that tests elsewhere run, and what is shown below it."""
    (path,) = (each for each in PAGES if each.name == page)
    typed = [each for block in blocks(path) if block.tests for each in block.commands]
    ((command, shown),) = ((c, s) for c, s in typed if program in c)
    return shlex.split(command), shown


def run_script(page: str, script: str, *more: str) -> str:
    """Return a script's output, typed as a page has it, with more arguments that make it small."""
    (program, path, *arguments), shown = command_on(page, script)
    assert program == "python"
    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [path, *arguments, *more]),
        contextlib.redirect_stdout(printed),
    ):
        try:
            runpy.run_path(str(ROOT / path), run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
    gone = missing(shown, printed.getvalue())
    assert not gone, f"{page}: {script} does not print '{gone}' but\n{printed.getvalue()}"
    return printed.getvalue()


def quoted_commands(page: Path) -> Iterator[list[str]]:
    """Words of every ``pinn`` command, in blocks and within the text, that names a command."""
    text = page.read_text()
    spans = re.findall(r"`(pinn [a-z][^`]*)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    typed = [command for block in blocks(page) for command, _ in block.commands]
    for command in (*spans, *typed):
        words = shlex.split(" ".join(command.split()), comments=True)
        if words and words[0] == "pinn":
            yield words[1:]


def loosely(text: str) -> str:
    """A text whose numbers, frames and spaces do not count."""
    return " ".join(_NUMBER.sub("#", re.sub(r"[━─│┃┏┓┗┛┡┩╇┳┴┬┼┌┐└┘├┤╞╡┻╋]", " ", text)).split())


def shape(text: str) -> str:
    """A text with the columns of each row of its tables, and labels without their values.

    An indented line is a row of a table without frames, or a value of the label above it.
    """
    lines = (re.match(r"│|[^:]+: |", line) for line in text.splitlines() if line[:1] != " ")
    kept = [
        " cell" * line.string.count("│") if line[0] == "│" else loosely(line[0] or line.string)
        for line in lines
        if line is not None
    ]
    return "\n".join(line for line, _ in itertools.groupby(kept))


def missing(shown: str, printed: str) -> str:
    """Where a page shows words that were not printed, in that order; ``...`` stands for any.

    Shown lines may skip some of the output's, and be wrapped elsewhere.
    """
    left = iter(loosely(printed).split())
    words = loosely(shown.replace("...", " ")).split()
    first = next((place for place, word in enumerate(words) if word not in left), None)
    return "" if first is None else " ".join(words[max(first - 5, 0) : first + 1])

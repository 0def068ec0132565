"""What README and the pages of docs tell a reader to type, and what they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
#: Programs whose lines are commands where no ``$`` says so.
PROGRAMS = ("pinn", "python", "python3.11", "pytest", "make", "pip", "git", "cd", "go")

_BLOCK = re.compile(
    r"(?:<!-- (?:not run: (?P<reason>[^\n]*?)|in small: (?P<small>[^\n]*?)"
    r"|begin (?P<part>[\w-]+)) -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: Name of its page.
        language: As written behind the fence.
        text: Its lines, in small: NEW in place of OLD for a marker ``in small: OLD -> NEW``.
        part: Of ``scripts/update_docs.py``, which writes it; None for none.
        reason: Why the tests do not run it; None where they do.
    """

    page: str
    language: str
    text: str
    part: str | None
    reason: str | None

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
        yield Block(page.name, match["language"], text, match["part"], match["reason"])


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


def missing(shown: str, printed: str) -> str:
    """Where a page shows words that were not printed, in that order; ``...`` stands for any.

    Lines may be left out of what is shown, and wrapped elsewhere.
    """
    left = iter(loosely(printed).split())
    words = loosely(shown.replace("...", " ")).split()
    first = next((place for place, word in enumerate(words) if word not in left), None)
    return "" if first is None else " ".join(words[max(first - 5, 0) : first + 1])

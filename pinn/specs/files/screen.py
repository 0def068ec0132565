"""What people read in a terminal: lines of 80 columns, wherever they go."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

#: Columns of a page, and of tables of details that would be unreadable in so few.
WIDTH, WIDEST = 80, 100


def page(width: int = WIDTH) -> Console:
    """Where tables and sentences are printed; names of models and paths are taken as they are."""
    from rich.console import Console

    return Console(width=width, highlight=False, markup=False)


def say(text: str) -> None:
    """Print lines, the long ones folded between words.

    >>> say("  8 left out: " + "of another engine, " * 5)
      8 left out: of another engine, of another engine, of another engine, of
        another engine, of another engine,
    """
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        further = f"{indent}  " if indent else ""
        folded = textwrap.wrap(
            line, WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
        )
        print("\n".join(folded))


def as_typed(command: str, indent: str = "  ") -> str:
    r"""A command indented, and continued as a shell reads it where a line is full.

    A comment behind it has a line of its own where it would be cut.

    >>> print(as_typed("pinn plan --model " + "x" * 60 + " --gpu H100"))
      pinn plan \
        --model xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx \
        --gpu H100
    >>> print(as_typed("vllm serve --model " + "x" * 50 + "  # 2 of them, prefill"))
      vllm serve --model xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
        # 2 of them, prefill
    """
    command, mark, comment = command.partition("  # ")
    lines, rest = [], f"{indent}{command}"
    while len(rest) > WIDTH:
        cut = rest.rfind(" --", len(indent) + 2, WIDTH - 1)
        cut = rest.find(" --", WIDTH) if cut < 0 else cut
        if cut < 0:
            break
        lines.append(f"{rest[:cut]} \\")
        rest = f"{indent}  {rest[cut + 1 :]}"
    if mark and len(rest) + len(mark) + len(comment) <= WIDTH:
        rest, mark = f"{rest}{mark}{comment}", ""
    return "\n".join([*lines, rest, *([f"{indent}  # {comment}"] if mark else [])])

"""Sample pieces of prose for fresh readers to grade by the rubric in CONTRIBUTING.md.

python scripts/draw_prose.py --seed 1

The seeds 1 and 2 together sample 80 pieces. An odd and an even seed never sample the same piece.
"""

from __future__ import annotations

import random
from typing import Annotated

import typer
from prose_pieces import Piece, pieces

#: Number of pieces of each kind in the sample of an odd seed, and of an even seed.
COUNTS = {
    "docstring": (10, 10),
    "comment": (5, 5),
    "sentence": (12, 13),
    "help": (4, 4),
    "error": (4, 4),
    "output": (5, 4),
}


def draw(seed: int, drawn_from: list[Piece]) -> list[Piece]:
    """Return the pieces that a seed samples; they depend only on the seed and ``drawn_from``."""
    even = seed % 2 == 0
    drawn: list[Piece] = []
    for kind, counts in COUNTS.items():
        known = [piece for piece in drawn_from if piece.kind == kind][even::2]
        drawn += random.Random(seed).sample(known, counts[even])
    return drawn


def main(seed: Annotated[int, typer.Option(help="Which draw to print.", min=0)]) -> None:
    """Print the pieces of one sample, numbered, with the place and the context of each piece."""
    for number, piece in enumerate(draw(seed, list(pieces())), 1):
        typer.echo(f"=== {number}. {piece.kind} | {piece.place}")
        if piece.before:
            typer.echo(f"[context] {piece.before}")
        typer.echo(piece.text)
        if piece.after:
            typer.echo(f"[context] {piece.after}")


if __name__ == "__main__":
    typer.run(main)

"""Lines of a big file, by stretches of bytes that can be read independently."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

#: Bytes per stretch; long enough to hide the fixed cost of one, short enough for memory.
STRETCH_BYTES = 8 * 2**20

#: Longer lines are refused, so that one broken line cannot fill the memory.
MAX_LINE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Stretch:
    """Lines that begin in a stretch of a file.

    Attributes:
        lines: With their line ends.
        too_long: Lines left out for their length.
        last_is_cut: Whether the last line is the file's last and lacks its line end.
    """

    lines: list[bytes]
    too_long: int = 0
    last_is_cut: bool = False


def stretches(size: int, length: int = STRETCH_BYTES) -> list[tuple[int, int]]:
    """Cut a file of a size into (start, end) stretches.

    >>> stretches(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + length, size)) for start in range(0, size, length)]


def read_stretch(path: Path, start: int, end: int, max_line: int = MAX_LINE_BYTES) -> Stretch:
    """Read the lines whose first byte lies in ``[start, end)``, with their line ends."""
    lines: list[bytes] = []
    too_long = 0
    is_cut = False
    with path.open("rb", buffering=2**20) as file:
        if start:
            file.seek(start - 1)
            _skip_line(file)
        position = file.tell()
        while position < end and (line := file.readline(max_line + 1)):
            position += len(line)
            is_cut = not line.endswith(b"\n")
            if is_cut and len(line) > max_line:
                too_long, is_cut = too_long + 1, False
                position += _skip_line(file)
            else:
                lines.append(line)
    return Stretch(lines, too_long, is_cut)


def _skip_line(file: BinaryIO) -> int:
    """Pass over the rest of a line; its bytes."""
    skipped = 0
    while piece := file.readline(2**20):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped

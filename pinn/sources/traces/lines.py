"""Lines of a big file, by stretches of bytes that can be read independently."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

#: Bytes per stretch; long enough to hide the fixed cost of one, short enough for memory.
STRETCH_BYTES = 16 * 2**20

#: Longer lines are refused, so that one broken line cannot fill the memory.
MAX_LINE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Stretch:
    """Lines that begin in a stretch of a file.

    Attributes:
        lines: Without their line ends.
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
    """Read the lines whose first byte lies in ``[start, end)``."""
    with path.open("rb") as file:
        if start:
            file.seek(start - 1)
            _skip_line(file)
        begin = file.tell()
        if begin >= end:
            return Stretch([])
        data = file.read(end - begin)
        if not data:
            return Stretch([])
        ended = data.endswith(b"\n")
        rest = b"" if ended else file.readline(max_line)
        cut = not ended and not rest.endswith(b"\n") and file.read(1) == b""
        lines = (data + rest).split(b"\n")
        if not lines[-1] and not cut:
            lines.pop()
    kept = [line for line in lines if len(line) <= max_line]
    # What was read of a longer line counts as that line; the next stretch skips the rest of it.
    if not ended and not cut and not rest.endswith(b"\n") and len(kept) == len(lines):
        kept.pop()
    return Stretch(kept, len(lines) - len(kept), cut and len(lines[-1]) <= max_line)


def _skip_line(file: BinaryIO) -> None:
    while (piece := file.readline(2**20)) and not piece.endswith(b"\n"):
        pass

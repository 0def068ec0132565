"""Lines of a big file, by stretches of bytes that can be read independently."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pinn.common.documents import MOST_LINE_BYTES
from pinn.errors import PinnError

#: Bytes per stretch; long enough to hide the fixed cost of one, short enough for memory.
STRETCH_BYTES = 8 * 2**20


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


def check_file(path: Path, remedy: str) -> None:
    """Refuse what is no file of lines, before any of it is read.

    A sparse file shows terabytes that nobody wrote; reading its zeros would take hours.

    Args:
        path: To check.
        remedy: What to give instead where there is no such file.

    Raises:
        PinnError: If it is missing, or has a hole that is longer than the longest line.
    """
    if not path.is_file():
        raise PinnError(f"{path}: no such file: {remedy}")
    with path.open("rb") as file:
        size, data = os.fstat(file.fileno()).st_size, 0
        # Beyond the end of a file, which an empty one is all, there is nothing to seek.
        while data < size and (hole := os.lseek(file.fileno(), data, os.SEEK_HOLE)) < size:
            try:
                data = os.lseek(file.fileno(), hole, os.SEEK_DATA)
            except OSError:  # nothing but the hole follows
                data = size
            if data - hole > MOST_LINE_BYTES:
                rest = f"tail -c +{data + 1}" if data < size else f"head -c {hole}"
                raise PinnError(
                    f"{path}: {data - hole:,} bytes from byte {hole:,} on were never written, a "
                    f"line has at most {MOST_LINE_BYTES:,}: give what was written, with '{rest}'"
                )


def read_stretch(path: Path, start: int, end: int, max_line: int = MOST_LINE_BYTES) -> Stretch:
    """Read the lines whose first byte lies in ``[start, end)``, with their line ends."""
    lines: list[bytes] = []
    too_long = 0
    is_cut = False
    with path.open("rb", buffering=2**20) as file:
        if start:
            file.seek(start - 1)
            _skip_line(file, end)
        position = file.tell()
        while position < end and (line := file.readline(max_line + 1)):
            position += len(line)
            is_cut = not line.endswith(b"\n")
            if is_cut and len(line) > max_line:
                too_long, is_cut = too_long + 1, False
                position += _skip_line(file, end)
            else:
                lines.append(line)
    return Stretch(lines, too_long, is_cut)


def _skip_line(file: BinaryIO, end: int) -> int:
    """Pass over the rest of a line, or to where no line is looked for any more; bytes passed."""
    skipped = 0
    while file.tell() < end and (piece := file.readline(2**20)):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped

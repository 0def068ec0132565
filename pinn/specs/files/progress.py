"""What a long command is doing, for a line on standard error while it does it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO, TypeVar

Item = TypeVar("Item")

#: Commands that take less say nothing.
FIRST_S = 5.0
#: Each further line comes when twice the time has passed, and at least once a minute.
_LONGEST_S = 60.0


@dataclass
class _Work:
    text: str = ""


_WORK = _Work()


def doing(text: str) -> None:
    """Say what is being done from now on; shown only if it takes long."""
    _WORK.text = text


def counted(items: Iterable[Item], what: str) -> Iterator[Item]:
    """The items, with how many are done so far as what is being done."""
    total = f" of {len(items):,}" if isinstance(items, Sized) else ""
    for number, item in enumerate(items, 1):
        doing(f"{what} {number:,}{total}")
        yield item
    doing("")


@contextmanager
def shown(command: str, stream: TextIO, first_s: float = FIRST_S) -> Iterator[None]:
    """Write a line now and then while the body runs.

    Args:
        command: Named at the start of the line.
        stream: Written to, terminal or not: whole lines, which a log keeps as they are.
        first_s: When the first line comes, in seconds.
    """
    doing("")
    done = threading.Event()
    thread = threading.Thread(target=_write, args=(command, stream, first_s, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _write(command: str, stream: TextIO, wait_s: float, done: threading.Event) -> None:
    start = time.monotonic()
    while not done.wait(wait_s):
        passed_s = time.monotonic() - start
        what = f"{_WORK.text}, " if _WORK.text else ""
        stream.write(f"{command}: {what}{passed_s:.0f} s so far\n")
        stream.flush()
        wait_s = min(passed_s, _LONGEST_S)

"""Progress of long work on standard error: log records, and what a command is doing.

Modules log to children of the logger ``pinn``; in Python nothing is written unless the caller sets
up :mod:`logging`. Commands run inside :func:`shown`.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TextIO, TypeVar

Item = TypeVar("Item")

#: Commands that take less say nothing.
FIRST_S = 5.0
#: Each further line comes when twice the time has passed, and at least once a minute.
_LONGEST_S = 60.0

_LOG = logging.getLogger("pinn")
_WORK = SimpleNamespace(text="", part="", is_shown=False)


def note(text: str) -> None:
    """Log how the work goes."""
    _LOG.info("%s", text)


def doing(text: str) -> None:
    """Set what is being done from now on; shown only if it takes long."""
    _WORK.text = text


def still(done: int, total: int, since_s: float) -> str:
    """Return how long work in equal parts goes on, in words.

    Args:
        done: Parts that are done.
        total: All of them.
        since_s: Moment of ``time.monotonic`` at which the first one began.

    >>> still(3, 3, time.monotonic())
    'the last one'
    """
    if done >= total:
        return "the last one"
    left_s = (time.monotonic() - since_s) * (total - done) / max(done, 1)
    return f"about {left_s / 60:.0f} min still" if left_s > 90 else f"about {left_s:.0f} s still"


def counted(items: Iterable[Item], what: str) -> Iterator[Item]:
    """Yield the items, with how many are done so far as what is being done."""
    total = f" of {len(items):,}" if isinstance(items, Sized) else ""
    for number, item in enumerate(items, 1):
        doing(f"{what} {number:,}{total}")
        yield item
    doing("")


@contextmanager
def shown(command: str, stream: TextIO, first_s: float = FIRST_S) -> Iterator[None]:
    """Write log records while the body runs, and on a terminal what is being done now and then.

    Inside another such body, the command is a part of what that one shows.

    Args:
        command: Named at the start of a line.
        stream: Standard error.
        first_s: When the first line about what is being done comes, in seconds.
    """
    doing("")
    if _WORK.is_shown:
        before, _WORK.part = _WORK.part, f"{command}, "
        try:
            yield
        finally:
            _WORK.part = before
        return
    handler, done = logging.StreamHandler(stream), threading.Event()
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _WORK.is_shown = True
    thread = threading.Thread(target=_write, args=(command, stream, first_s, done), daemon=True)
    if stream.isatty():
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.is_alive():
            thread.join()
        _LOG.removeHandler(handler)
        _WORK.is_shown = False


def _write(command: str, stream: TextIO, wait_s: float, done: threading.Event) -> None:
    start = time.monotonic()
    while not done.wait(wait_s):
        passed_s = time.monotonic() - start
        what = _WORK.part + (f"{_WORK.text}, " if _WORK.text else "")
        stream.write(f"{command}: {what}{passed_s:.0f} s so far\n")
        stream.flush()
        wait_s = min(passed_s, _LONGEST_S)

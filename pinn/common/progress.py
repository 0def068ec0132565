"""Progress reports on standard error: log records, and the current task of a command.

Modules log to child loggers of ``pinn``. When pinn is used as a library, nothing is written unless
the caller configures :mod:`logging`. Commands run inside :func:`shown`.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TextIO, TypeVar

Item = TypeVar("Item")

#: Time in seconds until a command first reports its progress.
FIRST_S = 5.0
#: Maximum interval in seconds between progress lines. A line follows once the elapsed time has
#: doubled, at the latest after this interval.
_LONGEST_S = 60.0

_LOG = logging.getLogger("pinn")
#: Interval in seconds between updates of a status line.
_STATUS_S = 1.0
#: Terminal code that moves the cursor to the start of the line and clears the line.
_CLEARED = "\r\x1b[K"

#: Current task of the command. ``stream`` is None unless progress is shown in a terminal.
_WORK = SimpleNamespace(text="", part="", command="", stream=None, is_shown=False, has_status=False)


def note(text: str) -> None:
    """Log a one-line message about the work in progress."""
    _LOG.info("%s", text)


def doing(text: str) -> None:
    """Set the description of the current task, which is shown only if the task takes long."""
    _WORK.text = text


@contextmanager
def doing_meanwhile(text: str) -> Iterator[None]:
    """Describe the current task by ``text`` while the body runs, then as before."""
    before = _WORK.text
    doing(text)
    try:
        yield
    finally:
        doing(before)


@contextmanager
def status(text: Callable[[], str]) -> Iterator[None]:
    """Update one line on the terminal while the body runs, instead of other progress messages.

    Args:
        text: Function that returns the line; another thread calls it every second.
    """
    stream = _WORK.stream
    if stream is None:
        yield
        return
    done = threading.Event()

    def show() -> None:
        while not done.wait(_STATUS_S):
            line = f"{_WORK.command}: {text()}"
            stream.write(_CLEARED + line[: shutil.get_terminal_size().columns - 1])
            stream.flush()

    thread = threading.Thread(target=show, daemon=True)
    _WORK.has_status = True
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        _WORK.has_status = False
        stream.write(_CLEARED)
        stream.flush()


def still(done: int, total: int, since_s: float) -> str:
    """Return the estimated time until all parts of a task are finished, as text.

    Args:
        done: Number of finished parts.
        total: Number of parts.
        since_s: Value of ``time.monotonic`` at which the first part began.

    >>> still(3, 3, time.monotonic())
    'the last one'
    """
    if done >= total:
        return "the last one"
    left_s = (time.monotonic() - since_s) * (total - done) / max(done, 1)
    return f"about {left_s / 60:.0f} min left" if left_s > 90 else f"about {left_s:.0f} s left"


def counted(items: Iterable[Item], what: str) -> Iterator[Item]:
    """Yield items and report the number of the current item as the current task."""
    total = f" of {len(items):,}" if isinstance(items, Sized) else ""
    for number, item in enumerate(items, 1):
        doing(f"{what} {number:,}{total}")
        yield item
    doing("")


@contextmanager
def shown(command: str, stream: TextIO, first_s: float = FIRST_S) -> Iterator[None]:
    """Show progress while the body runs: log records and, on a terminal, the current task.

    In a nested call, the command is shown as a part of the outer command.

    Args:
        command: Name of the command, at the start of each line.
        stream: Stream to write to, normally standard error.
        first_s: Time in seconds after which the current task is first shown.
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
    _WORK.is_shown, _WORK.command = True, command
    _WORK.stream = stream if stream.isatty() else None
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
        _WORK.is_shown, _WORK.stream = False, None


def _write(command: str, stream: TextIO, wait_s: float, done: threading.Event) -> None:
    start = time.monotonic()
    while not done.wait(wait_s):
        passed_s = time.monotonic() - start
        wait_s = min(passed_s, _LONGEST_S)
        if _WORK.has_status:
            continue
        what = _WORK.part + (f"{_WORK.text}, " if _WORK.text else "")
        stream.write(f"{command}: {what}{passed_s:.0f} s so far\n")
        stream.flush()

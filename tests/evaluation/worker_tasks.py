"""Tasks that processes of a pool can import."""

import os
import signal
import time
from pathlib import Path

from pinn.errors import PinnError

#: Seconds that are far more than starting a process takes on a busy machine.
PATIENCE_S = 60.0


def square_where(number):
    """Return the square, the process and its folder."""
    return number**2, os.getpid(), Path.cwd()


def square_together(task):
    """Return the square and the process, once another process is at work as well."""
    number, folder = task
    (folder / str(os.getpid())).touch()
    until = time.monotonic() + PATIENCE_S
    while len(list(folder.iterdir())) < 2:
        if time.monotonic() > until:
            raise TimeoutError("no other process started a task")
        time.sleep(0.01)
    return number**2, os.getpid()


def refuse(number):
    """Fail as pinn does on bad input."""
    raise PinnError(f"task {number} is bad: give another one")


def interrupt(_config):
    """Raise the interrupt of a long command."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PATIENCE_S)


def sleep_on(folder):
    """Record the id of this process, and sleep for longer than any test."""
    (folder / str(os.getpid())).touch()
    time.sleep(10 * PATIENCE_S)

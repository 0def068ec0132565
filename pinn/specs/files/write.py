"""Where results are remembered, and how a file is written so that nobody reads half of it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from platformdirs import user_cache_path

#: Names the folder of remembered results instead of the user's cache.
ENVIRONMENT_VARIABLE = "PINN_CACHE"


def cache_folder() -> Path:
    """``PINN_CACHE``, else ``pinn`` in the user's cache: ``XDG_CACHE_HOME``, or the system's own.

    What lies in it may be deleted at any time: it is only slower then.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(named).expanduser() if named else user_cache_path("pinn")


def replace_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it over ``path``.

    A device such as ``/dev/stdout`` is written to as it is.

    Raises:
        OSError: If it cannot be written, with the path; what was there before is still there.
    """
    if path.is_dir():  # such as ".", beside which no file of that name can lie
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        write(path)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file by :func:`replace_atomically`; text as UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    replace_atomically(path, lambda target: target.write_bytes(data))

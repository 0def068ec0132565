"""Paths as people type them."""

from __future__ import annotations

from pathlib import Path

from pinn.errors import PinnError


def given_path(text: str | Path) -> Path:
    """A path with its ``~`` written out; nothing needs to be there.

    Raises:
        PinnError: If no file can have that name, or may not be looked at.

    >>> given_path("models/config.json").name
    'config.json'
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PinnError(f"{str(text)!r:.80}: {reason}: give a known name or a path") from error
    return path

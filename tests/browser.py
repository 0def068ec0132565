"""A headless Chromium that asks nobody outside."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

_SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def browse(page: Path, folder: Path, *switches: str) -> str:
    """Open a page, with a profile in a folder; returns what Chromium prints."""
    assert CHROMIUM is not None
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [CHROMIUM, *_SWITCHES, profile, *switches, page.as_uri()]
    found = subprocess.run(command, check=True, capture_output=True, timeout=240, text=True)
    return found.stdout

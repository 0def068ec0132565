"""What a result depends on, as digests that caches and checkpoints carry."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pinn

#: Sub-packages that decide what a fit gives; evaluation and printing do not.
_LEARNING = (
    "specs", "physics", "sources", "kernels", "observations", "features", "embedding", "network",
    "teacher", "training",
)  # fmt: skip


def source_digest(parts: tuple[str, ...] = _LEARNING) -> str:
    """SHA-256 of the code that learns, so that no cache outlives a change of it."""
    root = Path(pinn.__file__).parent
    files = sorted(path for part in parts for path in (root / part).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def fingerprint(*parts: Any) -> str:
    """SHA-256 of JSON-ready values and of the code that learns."""
    text = json.dumps([*parts, source_digest()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()

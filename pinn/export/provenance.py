"""Where exported numbers come from: what every exported file says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pinn
from pinn.specs.files.read_report import file_sha256


def checkpoint_provenance(path: Path, metadata: dict[str, Any]) -> dict[str, Any]:
    """Facts of a checkpoint and of the program that exports from it.

    Args:
        path: The checkpoint file.
        metadata: That of the checkpoint.
    """
    return {
        "source": "network",
        "checkpoint_sha256": file_sha256(path),
        "checkpoint_date": str(metadata.get("date", "")),
        "exporter": f"pinn {pinn.__version__}",
    }

"""What a result depends on, as digests that checkpoints and tables carry."""

from __future__ import annotations

import hashlib
from typing import Any

from pinn.common.files import sorted_json
from pinn.common.store import code_digest


def json_sha256(*parts: Any) -> str:
    """SHA-256 of JSON-ready values."""
    text = sorted_json(parts)
    return hashlib.sha256(text.encode()).hexdigest()


def code_sha256() -> str:
    """SHA-256 of the code that learns and predicts."""
    return code_digest("pinn.training.kernel_learner", "pinn.training.learner")

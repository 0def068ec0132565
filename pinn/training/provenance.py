"""What a result depends on, as digests that checkpoints and tables carry."""

import hashlib
from typing import Any

from pinn.common import files, store


def json_sha256(*parts: Any) -> str:
    """SHA-256 of JSON-ready values."""
    text = files.sorted_json(parts)
    return hashlib.sha256(text.encode()).hexdigest()


def code_sha256() -> str:
    """SHA-256 of the code that learns and predicts."""
    return store.code_digest("pinn.training.kernel_learner", "pinn.training.learner")

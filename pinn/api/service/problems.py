"""Conversion of errors to problem details documents (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus

from pinn.common.files import json_text
from pinn.errors import printable

MEDIA_TYPE = "application/problem+json"

#: OpenAPI schema of a problem document.
SCHEMA = {
    "type": "object",
    "title": "Problem",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "Always about:blank; see status and title."},
        "title": {"type": "string", "description": "Name of the status."},
        "status": {"type": "integer"},
        "detail": {
            "type": "string",
            "description": "One line with the argument, the received value, the expected value "
            "and the remedy.",
        },
    },
}


def problem(status: int, detail: object) -> bytes:
    """Return a problem details document (RFC 9457) as JSON.

    Args:
        status: HTTP status.
        detail: Description of the error: received value, expected value, and remedy.
    """
    document = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": printable(detail, 3000),
    }
    return f"{json_text(document)}\n".encode()

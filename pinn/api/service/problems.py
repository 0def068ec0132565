"""Errors as problem details (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus

from pinn.common.files import json_text
from pinn.errors import printable

MEDIA_TYPE = "application/problem+json"

#: Schema of a problem, for OpenAPI.
SCHEMA = {
    "type": "object",
    "title": "Problem",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "about:blank: the status says what it is."},
        "title": {"type": "string", "description": "Name of the status."},
        "status": {"type": "integer"},
        "detail": {
            "type": "string",
            "description": "Argument, value, what was expected, and the remedy, in one line.",
        },
    },
}


def problem(status: int, detail: object) -> bytes:
    """Return a problem's JSON.

    Args:
        status: HTTP status.
        detail: What was got, what was expected and the remedy.
    """
    document = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": printable(detail, 3000),
    }
    return f"{json_text(document)}\n".encode()

"""OpenAPI description of an endpoint, from the declarations of its arguments."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import TypeAdapter

from pinn.api.requests import explained
from pinn.api.service import problems
from pinn.api.service.endpoints import Endpoint

#: Descriptions of error responses, by HTTP status.
REFUSALS = {
    413: "The body is too large.",
    415: "The Content-Type of the body is not application/json.",
    422: "An argument is missing, unknown or invalid, or no result satisfies the request.",
    500: "Internal error of the service.",
    503: "Too many requests are waiting; retry after the number of seconds in the Retry-After "
    "header.",
    504: "Computing the answer takes longer than the service's timeout.",
}


def operation(endpoint: Endpoint) -> dict[str, Any]:
    """Return an endpoint's OpenAPI description, except for parts that FastAPI derives itself."""
    content = {"application/json": {"schema": _arguments(endpoint)}}
    problem = {problems.MEDIA_TYPE: {"schema": problems.SCHEMA}}
    answer = {"application/json": {"schema": {"type": "object"}}}
    refusals = {
        str(status): {"description": text, "content": problem} for status, text in REFUSALS.items()
    }
    return {
        "requestBody": {"required": True, "content": content},
        "responses": {"200": {"description": "The result.", "content": answer}, **refusals},
    }


def summary(endpoint: Endpoint) -> str:
    """Return the first line of the docstring of an endpoint's function."""
    return inspect.cleandoc(endpoint.function.__doc__ or "").partition("\n")[0]


def _arguments(endpoint: Endpoint) -> dict[str, Any]:
    """Return the JSON schema of a request's body."""
    _, helps = explained(endpoint.function, "Args")
    arguments = endpoint.arguments.values()
    properties = {p.name: {"description": helps[p.name], **_type(p)} for p in arguments}
    required = [p.name for p in arguments if p.default is p.empty]
    return {
        "type": "object",
        "title": endpoint.name,
        "properties": properties,
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _type(argument: inspect.Parameter) -> dict[str, Any]:
    """Return the JSON type and default of an argument; string arguments accept any JSON value."""
    if isinstance(argument.annotation, str) or argument.annotation is argument.empty:
        return {}
    found: dict[str, Any] = TypeAdapter(argument.annotation).json_schema()
    if argument.default not in (argument.empty, None):
        found["default"] = argument.default
    return found

"""Reading of YAML files into checked models, with errors that name file, place and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from pinn.errors import PinnError

Model = TypeVar("Model", bound=BaseModel)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML (or JSON) file that holds a mapping.

    Raises:
        PinnError: If it cannot be read, is malformed or no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it is no YAML"
        raise PinnError(f"{path}{where}: malformed YAML ({problem}): correct the file") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise PinnError(f"{path}: cannot be read ({reason}): give a readable YAML file") from error
    if not isinstance(values, dict):
        raise PinnError(f"{path}: expected a YAML mapping, got {type(values).__name__}")
    return values


def check(model: type[Model], values: Any, path: Path, remedy: str) -> Model:
    """Validate values.

    Raises:
        PinnError: If they do not fit, with the first place, what was expected there and a remedy.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        message = first["msg"].removeprefix("Value error, ")
        raise PinnError(f"{path}: {place}: {message}{more}: {remedy}") from error

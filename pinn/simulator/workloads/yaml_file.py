"""Reading of YAML files into checked models, with errors that name file, place and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from pinn.errors import PinnError
from pinn.specs.documents import read_yaml
from pinn.specs.schema_faults import first_fault

Model = TypeVar("Model", bound=BaseModel)


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {str(value).lower()}")
    return value


#: Numbers of a file; ``true`` is none, though it counts as 1 in Python.
Whole = Annotated[int, BeforeValidator(_no_truth_value)]
Number = Annotated[float, BeforeValidator(_no_truth_value)]


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML (or JSON) file that holds a mapping.

    Raises:
        PinnError: If it cannot be read, is malformed or no mapping.
    """
    values = read_yaml(path)
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
        place, words = first_fault(error)
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        where = f"{path}: {place}" if place else f"{path}"
        raise PinnError(f"{where}: {words}{more}: {remedy}") from error

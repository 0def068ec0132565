"""Files, tables, cached results, workers and plots that every package uses."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

#: Value of a JSON or YAML document. Checks by ``isinstance(value, Mapping)`` or ``isinstance(value,
#: str)`` narrow the type and keep the types of items.
Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None

#: JSON object that is read or built; a ``Mapping[str, Json]`` that can be changed.
JsonObject: TypeAlias = "dict[str, Json]"

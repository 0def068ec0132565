"""Files, tables, cached results, workers and plots, which every package uses."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

#: Value of a JSON or YAML document. ``isinstance(value, Mapping)`` and ``isinstance(value, str)``
#: narrow it and keep the types of its items.
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

#: JSON object that is read or put together; it is a ``Mapping[str, Json]``.
JsonObject: TypeAlias = "dict[str, Json]"

"""Files, tables, remembered results, workers and plots, which every package uses."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

#: A value of a JSON or YAML document, read or to be written. ``isinstance(value, Mapping)`` and
#: ``isinstance(value, str)`` narrow it with its items' types kept.
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

#: A JSON object while it is read or put together; it is a ``Mapping[str, Json]``.
JsonObject: TypeAlias = "dict[str, Json]"

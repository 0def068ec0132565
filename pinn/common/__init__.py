"""Files, tables, cached results, workers and plots that every package uses."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

#: Value of a JSON or YAML document. ``isinstance`` checks for ``Mapping`` or ``str`` narrow the
#: type and keep the types of items.
Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None

#: JSON object as a mutable mapping; ``Mapping[str, Json]`` is its read-only type.
JsonObject: TypeAlias = "dict[str, Json]"

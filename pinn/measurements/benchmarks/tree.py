"""Mappings of foreign files, with typed access by key."""

from __future__ import annotations

from collections.abc import Mapping

from pinn.common import Json


class Tree:
    """A mapping of a foreign file with typed access by key; missing values are empty."""

    def __init__(self, values: object = None) -> None:
        self.values: Mapping[str, Json] = values if isinstance(values, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self.values)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def at(self, *path: str) -> Tree:
        """Return the mapping at the end of a path; an empty one if it is missing.

        >>> Tree({"a": {"b": {"c": 1}}}).at("a", "b").number("c"), bool(Tree({"a": None}).at("a"))
        (1.0, False)

        Raises:
            TypeError: If something else than a mapping stands there.
        """
        found = self
        for key in path:
            value = found.values.get(key)
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"{key} is no mapping: {value!r:.40}")
            found = Tree(value)
        return found

    def find(self, key: str) -> Tree:
        """Return the mapping under a key; an empty one for other values."""
        return Tree(self.values.get(key))

    def number(self, *names: str) -> float | None:
        """Return the first of some keys that has a value, as a number.

        Raises:
            TypeError: If the value is a list or a mapping.
            ValueError: If the value is text that is no number.
        """
        found = next((v for v in map(self.values.get, names) if v is not None), None)
        return None if found is None else float(found)  # type: ignore[arg-type]

    def count(self, *names: str) -> int:
        """Return the first of some keys that has a value, as a whole number; 0 without one."""
        return int(self.number(*names) or 0)

    def text(self, *names: str) -> str:
        """Return the first of some keys that has a value, as text."""
        found = next((v for v in map(self.values.get, names) if v not in (None, "")), "")
        return str(found)

    def is_true(self, name: str) -> bool:
        """Return whether a value is true, also as text."""
        return self.text(name).lower() == "true"

    def texts(self, name: str) -> list[str]:
        """Return the entries of a list as texts."""
        found = self.values.get(name)
        return [str(each) for each in found] if isinstance(found, list | tuple) else []

    def trees(self, name: str) -> list[Tree]:
        """Return the mappings of a list."""
        found = self.values.get(name)
        return [Tree(each) for each in found] if isinstance(found, list | tuple) else []

"""Mappings in benchmark files, with typed access by key."""

from __future__ import annotations

from collections.abc import Mapping

from pinn.common import Json


class Tree:
    """Mapping in a benchmark file with typed access by key; missing values are empty."""

    def __init__(self, values: object = None) -> None:
        self.values: Mapping[str, Json] = values if isinstance(values, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self.values)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def at(self, *path: str) -> Tree:
        """Return the mapping under a path of keys; an empty mapping if there is none.

        >>> Tree({"a": {"b": {"c": 1}}}).at("a", "b").number("c"), bool(Tree({"a": None}).at("a"))
        (1.0, False)

        Raises:
            TypeError: If a value on the path is not a mapping.
        """
        found = self
        for key in path:
            value = found.values.get(key)
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"{key} must be a mapping, got {value!r:.40}")
            found = Tree(value)
        return found

    def find(self, key: str) -> Tree:
        """Return the mapping under a key; an empty mapping if the value is not a mapping."""
        return Tree(self.values.get(key))

    def number(self, *names: str) -> float | None:
        """Return the value of the first key that has one, as a number; None if no key has one.

        Raises:
            TypeError: If the value is a list or a mapping.
            ValueError: If the value is a string that is not a number.
        """
        found = next((v for v in map(self.values.get, names) if v is not None), None)
        return None if found is None else float(found)  # type: ignore[arg-type]

    def count(self, *names: str) -> int:
        """Return the value of the first key that has one, as an integer; 0 if no key has one."""
        return int(self.number(*names) or 0)

    def text(self, *names: str) -> str:
        """Return the value of the first key that has one, as a string; empty if no key has one."""
        found = next((v for v in map(self.values.get, names) if v not in (None, "")), "")
        return str(found)

    def is_true(self, name: str) -> bool:
        """Return whether a key's value is true, as a boolean or a string."""
        return self.text(name).lower() == "true"

    def texts(self, name: str) -> list[str]:
        """Return the entries of the list under a key as strings."""
        found = self.values.get(name)
        return [str(each) for each in found] if isinstance(found, list | tuple) else []

    def trees(self, name: str) -> list[Tree]:
        """Return the mappings in the list under a key."""
        found = self.values.get(name)
        return [Tree(each) for each in found] if isinstance(found, list | tuple) else []

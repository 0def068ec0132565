"""A checkpoint's quantization config, with typed values and errors that name the key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pinn.common.documents import misfit
from pinn.errors import PinnError
from pinn.specs.config_fields import models_file
from pinn.specs.precision import PRECISIONS


def quantization_words(kind: str) -> Any:
    """Return one table of ``data/models/quantization.json``, by its key."""
    return models_file("quantization.json")[kind]


@dataclass(frozen=True)
class Block:
    """The ``quantization_config`` of a checkpoint, or an object inside it.

    Attributes:
        values: The JSON object.
        source: Name of the file with this object, for error messages.
    """

    values: Mapping[str, object]
    source: str

    @property
    def method(self) -> str:
        """Return the quantization method in vLLM's spelling; ``quant_algo`` alone is ModelOpt's."""
        method = str(self.values.get("quant_method") or "").lower().replace("_tensors", "-tensors")
        return "modelopt" if not method and self.values.get("quant_algo") else method

    def unknown(self, key: str, value: object, known: object = ()) -> NoReturn:
        """Raise the error for an unknown value of a key in the quantization config.

        Raises:
            PinnError: Always; the message states the key, its known values and the flag that
                overrides the file.
        """
        listed = known
        if isinstance(known, list | tuple | dict):
            listed = f"one of {', '.join(map(str, known))}"
        where = f" of {self.method}" if self.method and key != "quant_method" else ""
        raise PinnError(
            f"{self.source}: the quantization is unknown ({key}{where} is {value!r:.80}), "
            f"expected {listed}: correct the file, or give --quantization, one of "
            f"{', '.join(PRECISIONS)}"
        )

    def named(self, key: str, value: object, table: Mapping[str, str]) -> str:
        """Return the meaning of a key's value, according to a table of known values.

        Raises:
            PinnError: If the table lacks the value.
        """
        if str(value) not in table:
            self.unknown(key, value, [*table])
        return table[str(value)]

    def part(self, key: str) -> Mapping[str, Any]:
        """Return the JSON object under a key; empty if the key is absent or null.

        Raises:
            PinnError: If the value is not a JSON object.
        """
        return dict(self._checked(key, Mapping, "be a JSON object"))

    def objects(self, key: str) -> dict[str, Mapping[str, Any]]:
        """Return the JSON objects inside the object under a key, by their names.

        Raises:
            PinnError: If the value is not an object of JSON objects.
        """
        rule = "map names to JSON objects"
        found = dict(self._checked(key, Mapping, rule))
        if not all(isinstance(each, Mapping) for each in found.values()):
            raise misfit(f"{self.source}: {key} must {rule}", found)
        return found

    def texts(self, key: str) -> list[str]:
        """Return the list of names under a key; empty if the key is absent or null.

        Raises:
            PinnError: If the value is not a list.
        """
        return [str(entry) for entry in self._checked(key, list, "be a list of module names")]

    def _checked(self, key: str, kind: type, rule: str) -> Any:
        value = self.values.get(key)
        if value and not isinstance(value, kind):
            raise misfit(f"{self.source}: {key} must {rule}", value)
        return value or []

"""Conversion of flag values from strings, an engine's notation, or a metrics page."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pinn.common.documents import comma_separated
from pinn.engines import launch_values
from pinn.engines.configurations import SPELLED
from pinn.errors import PinnError
from pinn.specs.flags import Flag
from pinn.specs.model_variants import format_of
from pinn.specs.serving import VLLM


def several_values(value: object) -> list[Any]:
    """Convert a list, or comma-separated text, to a list of values."""
    if isinstance(value, str):
        return comma_separated(value)
    return list(value) if isinstance(value, Iterable) else [value]


def checked_flag(flag: Flag, value: object, name: str = "") -> Any:
    """Convert a value to its flag's type; several values give a list.

    Args:
        flag: Flag of the value.
        value: Value as given, possibly in an engine's notation such as ``32k``. For the acceptance
            rate of draft tokens, also the path of a /metrics page with counts of accepted tokens.
        name: Name of the flag in error messages; the name of its option if empty.

    Raises:
        PinnError: If the flag does not allow the value.
    """
    if flag.several:
        one, values = replace(flag, several=False), several_values(value)
        if not values:
            option = name or flag.option
            raise PinnError(f"{option} has no value: give one or more values, or omit the flag")
        return list(dict.fromkeys(checked_flag(one, each, name) for each in values))
    if flag.kind == "str" and not isinstance(value, str | Mapping) and isinstance(value, Iterable):
        value = ",".join(map(str, value))
    if flag.name == "quantization":
        return format_of("none" if value is None else str(value))
    if flag.name in SPELLED:
        value = launch_values.plain(VLLM, flag.name, value).fields.get(flag.name, value)
    if flag.name == "speculative_acceptance" and Path(str(value)).is_file():
        from pinn.measurements.benchmarks.metrics_page import acceptance_text

        value = acceptance_text(Path(str(value)))
    read = flag.read(value, name)
    flag.check(read)
    return read

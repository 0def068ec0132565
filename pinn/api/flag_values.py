"""Values of flags as people write them: in an engine's spelling, as text, as a metrics page."""

from collections.abc import Mapping
from pathlib import Path

from pinn.engines import launch_values
from pinn.specs.flags import Flag, FlagValue
from pinn.specs.model_variants import label_of


def in_own_words(engine: str, flags: Mapping[str, object]) -> dict[str, object]:
    """Return values of flags as typed, in an engine's spelling or here: ``none``, ``32k``."""
    found: dict[str, object] = {}
    for name, value in flags.items():
        if name == "precision" and isinstance(value, str):
            found |= {} if value == "none" else {name: label_of(value)}
        elif name in ("kv_cache_dtype", "max_model_len", "max_num_batched_tokens"):
            found[name] = launch_values.plain(engine, name, value).fields.get(name, value)
        else:
            found[name] = value
    return found


def checked_flag(flag: Flag | None, text: object, several: bool = False) -> object:
    """Return a value of the command line in its flag's type.

    Args:
        flag: Whose value it is; what belongs to none stays as it is.
        text: The value.
        several: Whether it is a list with commas between its values.

    Raises:
        PinnError: If it is not one that the flag can have.
    """
    if flag is None:
        return text
    if several:
        return [checked_flag(flag, part) for part in str(text).split(",")]
    value = read_flag(flag, text)
    flag.check(value)
    return value


def read_flag(flag: Flag, value: object, name: str = "") -> FlagValue | list[FlagValue]:
    """Return a value in its flag's type; a metrics page stands for the acceptance it counts.

    Args:
        flag: Whose value it is.
        value: As given; a list of candidates' values is read one by one.
        name: What an error calls the flag; its option if empty.

    Raises:
        PinnError: If it is not of the type.
    """
    if isinstance(value, list | tuple):
        return [flag.read(each, name) for each in value]
    if flag.name == "speculative_acceptance" and Path(str(value)).is_file():
        from pinn.measurements.benchmarks.metrics_page import acceptance_text

        value = acceptance_text(Path(str(value)))
    return flag.read(value, name)

"""Declarations of engine flags, one per field of a specification.

The name of a field is the key of the flag in lists, grids, JSON and tables. The declaration defines
the option of every command with its help, the checks of its value with their error messages, and
the field of the Go client's struct. The engines' own flag names are in ``data/engines/flags.csv``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, SupportsFloat, TypeVar

from pinn.common.documents import MOST_FLAG, written
from pinn.common.files import data_folder, json_text, read_rows
from pinn.errors import PinnError

#: Value of a flag; None means the engine's default.
FlagValue = int | float | str | bool | None

Made = TypeVar("Made")

_KEY = "flag"
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
#: Truth values of words in text, YAML files and JSON.
TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Flag:
    """Declaration of an engine flag.

    Attributes:
        help: Sentence that describes the setting, for help texts.
        default: Value if the flag is not given.
        shown: Description of the default in help texts, if the value is not self-explanatory.
        unit: Unit of the number; empty for a number without a unit.
        least: Minimum of a number.
        above: Exclusive lower bound of a number, in place of ``least``.
        most: Maximum of a number.
        allowed: Accepted strings; empty for any string.
        shorts: Short forms, such as ``-tp``.
        spelled: Other engines' names of the flag, with underscores; a name that begins with
            ``no_disable`` is an inverted switch.
        engines: Engines that have the flag; empty if all engines have it.
        remedy: Advice in the error message for an invalid value; by default, to omit the flag.
        decides_cost: Whether the step-time coefficients depend on the flag. Other flags change the
            features of a step or the schedule.
        several: Whether commands that compare configurations accept a list of values.
        hidden: Whether a command's help omits the flag.
        name: Name of the field; :func:`flags_of` fills in ``name``, ``kind`` and ``optional``.
        kind: Type of the value: ``int``, ``float``, ``bool`` or ``str``.
        optional: Whether the value may be None.
    """

    help: str = ""
    default: FlagValue = None
    shown: str = ""
    unit: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    allowed: tuple[str, ...] = ()
    shorts: tuple[str, ...] = ()
    spelled: Mapping[str, str] = field(default_factory=dict)
    engines: tuple[str, ...] = ()
    remedy: str = ""
    decides_cost: bool = False
    several: bool = False
    hidden: bool = False
    name: str = ""
    kind: str = "str"
    optional: bool = False

    @property
    def option(self) -> str:
        """Return the flag as typed, such as ``--tensor-parallel-size``."""
        return "--" + self.name.replace("_", "-")

    def written(self, value: FlagValue) -> str:
        """Return the flag with a value as typed, such as ``--no-enable-prefix-caching``."""
        if isinstance(value, bool):
            return self.option if value else f"--no-{self.option.removeprefix('--')}"
        return f"{self.option} {value}"

    @property
    def other_names(self) -> tuple[str, ...]:
        """Return the other engines' names of the flag, with underscores."""
        return tuple(name.removeprefix("no_") for name in self.spelled.values())

    @property
    def reversed_names(self) -> tuple[str, ...]:
        """Return the spellings that set the flag to the opposite value."""
        return tuple(n.removeprefix("no_") for n in self.spelled.values() if n.startswith("no_"))

    def spelled_for(self, engine: str) -> str:
        """Return the spelling of the flag on an engine's own command line."""
        name = self.spelled.get(engine)
        return "--" + name.removeprefix("no_").replace("_", "-") if name else self.option

    @property
    def default_text(self) -> str:
        """Return the default as text; empty for a default that is not shown."""
        if self.shown or self.default in (None, ""):
            return self.shown
        if self.kind == "bool":
            return "yes" if self.default else "no"
        return f"{self.default:g}" if self.kind == "float" else str(self.default)

    @property
    def summary(self) -> str:
        """Help text of the flag: sentence, unit, default, and the engines if not all have it."""
        unit = "" if self.unit in self.help.lower().split() else self.unit
        default = f"default: {self.default_text}" if self.default_text else ""
        engines = f"{' and '.join(self.engines)} only" if self.engines else ""
        facts = "; ".join(filter(None, (engines, unit, default)))
        return f"{self.help} [{facts}]" if facts else self.help

    def read(self, value: object, name: str = "") -> FlagValue:
        """Convert a value from a list, a file or the command line to the flag's type.

        A fraction given for a whole number remains a fraction, so that :meth:`check` rejects it.

        Args:
            value: String from the command line, or a value from YAML or JSON.
            name: Name of the flag in error messages; its option if empty.

        Raises:
            PinnError: If the value does not have the flag's type.
        """
        try:
            return self._typed(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise self._refusal(_KINDS[self.kind], value, name) from None

    def _typed(self, value: object) -> FlagValue:
        if self.kind == "bool":
            return TRUTH[str(value).strip().lower()]
        if self.kind == "str":
            return json_text(value) if isinstance(value, Mapping) else str(value).strip()
        if isinstance(value, bool) or not isinstance(value, str | SupportsFloat):
            raise TypeError
        number = float(value)
        return int(number) if self.kind == "int" and number.is_integer() else number

    def check(self, value: Any) -> None:
        """Raise an error if a value has the wrong type or is outside the flag's limits.

        Raises:
            PinnError: If the value is invalid; the message states what is expected and the remedy.
        """
        if value is None and self.optional:
            return
        if not _is_kind(value, self.kind):
            positive = self.kind == "int" and self.least == 1
            raise self._refusal(self._range() if positive else _KINDS[self.kind], value)
        if not isinstance(value, str | bool) and not abs(value) <= MOST_FLAG:
            raise self._refusal(f"at most {MOST_FLAG:,}", value)
        if self.allowed and value not in (*self.allowed, self.default):
            remedy = self.remedy or f"use one of {', '.join(self.allowed)}"
            raise PinnError(f"{self.option} {value!r} is unknown: {remedy}")
        is_within = (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )
        if not is_within:
            raise self._refusal(self._range(), value)

    def _range(self) -> str:
        """Return the limits of the flag's value as text, such as ``from 1 to 8``."""
        low = self.least if self.above is None else self.above
        if self.most is not None:
            if low is None:
                return f"at most {self.most:,.10g}"
            return f"in {'[' if self.above is None else '('}{low:.10g}, {self.most:.10g}]"
        if self.kind == "int" and self.least == 1:
            return "a positive whole number"
        if low == 0:
            return "0 or more" if self.above is None else "positive"
        return f"{'at least' if self.above is None else 'above'} {low:,.10g}"

    def _refusal(self, expected: str, value: object, name: str = "") -> PinnError:
        remedy = self.remedy
        if not remedy and self.default_text:
            remedy = f"omit the flag to use the default, {self.default_text}"
        remedy = remedy or "give a value, or omit the flag"
        got = written(value) if isinstance(value, int) and abs(value) > MOST_FLAG else repr(value)
        return PinnError(f"{name or self.option} must be {expected}, got {got}: {remedy}")


#: Flag of this project, for every engine, that disables the compatibility checks.
FORCE = Flag(
    "Predict a configuration even if the engine would refuse it.", False, name="force", kind="bool"
)


def flag(default: FlagValue, help: str = "", **declaration: Any) -> Any:
    """Declare a flag as a field of a dataclass; see :class:`Flag` for the keywords.

    A flag without ``help`` belongs to an engine. Its row of ``data/engines/flags.csv`` provides
    ``help``, ``shown``, ``unit``, ``remedy`` and ``spelled``.
    """
    return field(default=default, metadata={_KEY: Flag(help, default, **declaration)})


@cache
def flags_of(specification: type) -> tuple[Flag, ...]:
    """Return the flags that a dataclass declares, in order."""
    declared = [each for each in fields(specification) if _KEY in each.metadata]
    return tuple(_named(each.name, str(each.type), each.metadata[_KEY]) for each in declared)


def _named(name: str, annotation: str, found: Flag) -> Flag:
    kind, optional, _ = annotation.partition(" | None")
    words = {} if found.help else _words()[name]
    return replace(found, name=name, kind=kind, optional=bool(optional), **words)


@cache
def _words() -> dict[str, dict[str, Any]]:
    """Return the rows of ``flags.csv`` as keywords of :class:`Flag`, by flag name."""
    found: dict[str, dict[str, Any]] = {}
    for row in read_rows(data_folder("engines") / "flags.csv"):
        spelled = {engine: row[engine] for engine in ("sglang", "trtllm") if row[engine]}
        words = {name: row[name] for name in ("help", "shown", "unit", "remedy")}
        found[row["flag"]] = words | {"spelled": spelled}
    return found


def flags_apart(
    specification: type, values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split values by name into those for a dataclass's flags, and all others."""
    names = {flag.name for flag in flags_of(specification)}
    own = {name: value for name, value in values.items() if name in names}
    return own, {name: value for name, value in values.items() if name not in names}


def given_flags(specification: type, values: Mapping[str, object], where: str) -> dict[str, Any]:
    """Return the values of flags in another tool's file, converted to their types.

    Raises:
        PinnError: If a value does not have its flag's type; the message begins with ``where``.
    """
    return {
        flag.name: flag.read(values[flag.name], f"{where}: {flag.name}")
        for flag in flags_of(specification)
        if values.get(flag.name) is not None
    }


def specified(make: Callable[..., Made], values: Mapping[str, object]) -> Made:
    """Build a specification from values of flags by name, which checks the values."""
    return make(**values)


def check_flags(specification: Any) -> None:
    """Check the values of all flags of a specification, such as ``ServingSpec``.

    Raises:
        PinnError: If a flag has an invalid value; the message describes the first such flag.
    """
    for each in flags_of(specification.__class__):
        each.check(getattr(specification, each.name))


def _is_kind(value: Any, kind: str) -> bool:
    """Return whether a value has the type ``kind``; NumPy's number types count as Python's."""
    if kind == "str":
        return isinstance(value, str)
    if isinstance(value, str):
        return False
    try:
        if kind == "bool":
            return value in (True, False)
        return not isinstance(value, bool) and value == (int if kind == "int" else float)(value)
    except (TypeError, ValueError, OverflowError):
        return False

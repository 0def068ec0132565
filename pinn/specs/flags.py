"""Flags of an engine, each declared once, at the field of a specification that holds it.

The field's name is the key of lists, grids, JSON and tables. Its declaration gives the option of
every command with its help, the checks with their errors, and the field of the Go struct. The
words of an engine's own flags stand in ``data/engines/flags.csv``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, SupportsFloat, TypeVar

from pinn.common.documents import MOST_FLAG, written
from pinn.common.files import data_folder, json_text, read_rows
from pinn.errors import PinnError

#: Value of a flag; None stands for the engine's default.
FlagValue = int | float | str | bool | None

Made = TypeVar("Made")

_KEY = "flag"
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
#: What text, a YAML file or a key of JSON says of a switch.
TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Flag:
    """Declaration of a flag.

    Attributes:
        help: What it sets, in a sentence.
        default: Value where it is not given.
        shown: The default in words, where the value does not say it.
        unit: Unit of the number; empty where there is none.
        least: Smallest number.
        above: Number that the value has to exceed, in place of ``least``.
        most: Largest number.
        allowed: Texts that it may be; empty for any.
        shorts: Short spellings, such as ``-tp``.
        spelled: Other engines' names of it, with underscores; one that begins with ``no_disable``
            is a switch the other way round.
        engines: Those that have it; empty for all.
        remedy: What to do about a bad value; leaving the flag out, where none is given.
        decides_cost: Whether coefficients depend on it; other flags change features of steps, or
            which steps there are.
        several: Whether a list of values is read, which a command tries one by one.
        name: The field's name; :func:`flags_of` fills it in, like the next two.
        kind: ``int``, ``float``, ``bool`` or ``str``.
        optional: Whether None is a value.
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
    name: str = ""
    kind: str = "str"
    optional: bool = False

    @property
    def option(self) -> str:
        """The flag as typed: ``--tensor-parallel-size``."""
        return "--" + self.name.replace("_", "-")

    @property
    def other_names(self) -> tuple[str, ...]:
        """Return the other engines' names of the flag, with underscores."""
        return tuple(name.removeprefix("no_") for name in self.spelled.values())

    @property
    def reversed_names(self) -> tuple[str, ...]:
        """Spellings that mean the opposite."""
        return tuple(n.removeprefix("no_") for n in self.spelled.values() if n.startswith("no_"))

    def spelled_for(self, engine: str) -> str:
        """The flag as an engine's users type it."""
        name = self.spelled.get(engine)
        return "--" + name.removeprefix("no_").replace("_", "-") if name else self.option

    @property
    def default_text(self) -> str:
        """The default in words; empty where there is nothing to say."""
        if self.shown or self.default in (None, ""):
            return self.shown
        if self.kind == "bool":
            return "yes" if self.default else "no"
        return f"{self.default:g}" if self.kind == "float" else str(self.default)

    @property
    def summary(self) -> str:
        """The flag's sentence with its engines, unless all have it, its unit and its default."""
        unit = "" if self.unit in self.help.lower().split() else self.unit
        default = f"default: {self.default_text}" if self.default_text else ""
        engines = f"{' and '.join(self.engines)} only" if self.engines else ""
        facts = "; ".join(filter(None, (engines, unit, default)))
        return f"{self.help} [{facts}]" if facts else self.help

    def read(self, value: object, name: str = "") -> FlagValue:
        """A value of a list, a file or the command line in the flag's type.

        A fraction where a whole number is wanted stays one, for :meth:`check` to refuse.

        Args:
            value: Text, or a value of YAML or JSON.
            name: What an error calls the flag; its option if empty.

        Raises:
            PinnError: If the value is not of the type.
        """
        try:
            return self._typed(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise self._refusal(f"be {_KINDS[self.kind]}", value, name) from None

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
        """Refuse a value that the flag cannot have.

        Raises:
            PinnError: With the value, what is expected, and the remedy.
        """
        if value is None and self.optional:
            return
        if not _is_kind(value, self.kind):
            positive = self.kind == "int" and self.least == 1
            raise self._refusal(self._range() if positive else f"be {_KINDS[self.kind]}", value)
        if not isinstance(value, str | bool) and not abs(value) <= MOST_FLAG:
            raise self._refusal(f"be at most {MOST_FLAG:,}", value)
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
        """Return the limits of a number in words."""
        low = self.least if self.above is None else self.above
        if self.most is not None:
            if low is None:
                return f"be at most {self.most:g}"
            return f"be in {'[' if self.above is None else '('}{low:g}, {self.most:g}]"
        if self.kind == "int" and self.least == 1:
            return "be a positive whole number"
        if low == 0:
            return "not be negative" if self.above is None else "be positive"
        return f"be {'at least' if self.above is None else 'above'} {low:g}"

    def _refusal(self, rule: str, value: object, name: str = "") -> PinnError:
        remedy = self.remedy
        if not remedy and self.default_text:
            remedy = f"leave it out for the default, {self.default_text}"
        remedy = remedy or "give one, or leave it out"
        got = written(value) if isinstance(value, int) and abs(value) > MOST_FLAG else repr(value)
        return PinnError(f"{name or self.option} must {rule}, got {got}: {remedy}")


#: Beside an engine's own flags: what its engine refuses is timed all the same.
FORCE = Flag(
    "Predict a configuration even if the engine would refuse it.", False, name="force", kind="bool"
)


def flag(default: FlagValue, help: str = "", **declaration: Any) -> Any:
    """Declare a flag as a field of a dataclass; see :class:`Flag` for the keywords.

    Without ``help`` it is an engine's own flag, whose line of ``data/engines/flags.csv`` has the
    words: ``help``, ``shown``, ``unit``, ``remedy`` and ``spelled``.
    """
    return field(default=default, metadata={_KEY: Flag(help, default, **declaration)})


@cache
def flags_of(specification: type) -> tuple[Flag, ...]:
    """The flags that a dataclass declares, in their order."""
    declared = [each for each in fields(specification) if _KEY in each.metadata]
    return tuple(_named(each.name, str(each.type), each.metadata[_KEY]) for each in declared)


def _named(name: str, annotation: str, found: Flag) -> Flag:
    kind, optional, _ = annotation.partition(" | None")
    words = {} if found.help else _words()[name]
    return replace(found, name=name, kind=kind, optional=bool(optional), **words)


@cache
def _words() -> dict[str, dict[str, Any]]:
    """Fields of :class:`Flag` by the name of an engine's own flag."""
    found: dict[str, dict[str, Any]] = {}
    for row in read_rows(data_folder("engines") / "flags.csv"):
        spelled = {engine: row[engine] for engine in ("sglang", "trtllm") if row[engine]}
        words = {name: row[name] for name in ("help", "shown", "unit", "remedy")}
        found[row["flag"]] = words | {"spelled": spelled}
    return found


def flags_apart(
    specification: type, values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flags that a dataclass declares, and the others."""
    names = {flag.name for flag in flags_of(specification)}
    own = {name: value for name, value in values.items() if name in names}
    return own, {name: value for name, value in values.items() if name not in names}


def given_flags(specification: type, values: Mapping[str, object], where: str) -> dict[str, Any]:
    """The flags that a foreign file names, each in its type; its other keys are left alone.

    Raises:
        PinnError: If a value is not of its flag's type; names the place.
    """
    return {
        flag.name: flag.read(values[flag.name], f"{where}: {flag.name}")
        for flag in flags_of(specification)
        if values.get(flag.name) is not None
    }


def specified(make: Callable[..., Made], values: Mapping[str, object]) -> Made:
    """Return what a specification's class makes of flags by name; it checks their values."""
    return make(**values)


def check_flags(specification: Any) -> None:
    """Refuse a specification one of whose flags has a bad value.

    Raises:
        PinnError: On the first such flag.
    """
    for each in flags_of(specification.__class__):
        each.check(getattr(specification, each.name))


def _is_kind(value: Any, kind: str) -> bool:
    """Whether a value is of a kind; NumPy's numbers and truth values are too."""
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

"""Declarations of flags constrain their values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from pinn.errors import PinnError
from pinn.specs.flags import check_flags, flag, flags_of, given_flags


@dataclass(frozen=True)
class Spec:
    count: int = flag(1, "How many.", unit="items", least=1, shorts=("-c",))
    limit: int | None = flag(None, "At most.", least=2, shown="no limit", remedy="one is too few")
    share: float = flag(0.5, "Part.", above=0, most=1)
    angle: float = flag(0.0, "Turn.", unit="degrees", least=-90, most=90)
    rate: float = flag(1.0, "How fast.", above=0)
    delay: float = flag(0.0, "How late.", unit="s", least=0)
    parts: int = flag(2, "Pieces.", most=8)
    eager: bool = flag(True, "Whether.")
    kind: str = flag("a", "Which.", allowed=("a", "b"))

    def __post_init__(self) -> None:
        check_flags(self)


FLAGS = {f.name: f for f in flags_of(Spec)}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", 0, "--count must be a positive whole number, got 0: omit the flag to use the d"),
        ("count", 100.5, "--count must be a positive whole number, got 100.5"),
        ("count", True, "--count must be a positive whole number, got True"),
        ("count", "2", "--count must be a positive whole number, got '2'"),
        ("count", None, "--count must be a positive whole number, got None"),
        ("count", float("inf"), "--count must be a positive whole number, got inf"),
        ("limit", 1, "--limit must be at least 2, got 1: one is too few"),
        ("limit", 2.5, "--limit must be a whole number, got 2.5: one is too few"),
        (
            "share",
            0.0,
            r"--share must be in \(0, 1\], got 0.0: omit the flag to use the default, 0.5",
        ),
        ("share", float("nan"), "--share must be a number, got nan"),
        ("angle", 91.0, r"--angle must be in \[-90, 90\], got 91.0"),
        ("rate", 0, "--rate must be positive, got 0"),
        ("delay", -1, "--delay must be 0 or more, got -1"),
        ("parts", 9, "--parts must be at most 8, got 9"),
        ("eager", 2, "--eager must be true or false, got 2: omit the flag to use the default, yes"),
        ("eager", "yes", "--eager must be true or false, got 'yes'"),
        ("kind", "c", "--kind 'c' is unknown: use one of a, b"),
        ("kind", 3, "--kind must be text, got 3"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_expected_and_the_remedy(name, value, message):
    with pytest.raises(PinnError, match=f"^{message}"):
        Spec(**{name: value})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"count": np.int64(3), "share": np.float32(0.25), "eager": np.bool_(False)},
        {"count": 8192.0, "limit": None, "delay": 0, "share": 1},
    ],
)
def test_good_values_pass_whatever_numbers_they_are(values):
    Spec(**values)


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("count", "8192.0", 8192), ("count", "1.5", 1.5), ("share", "0.25", 0.25),
        ("share", 1, 1.0), ("eager", "No", False), ("eager", 1, True), ("kind", " b ", "b"),
        ("kind", {"top_k": 1}, '{"top_k": 1}'),
    ],
)  # fmt: skip
def test_text_is_read_in_the_flags_type(name, given, read):
    found = FLAGS[name].read(given)
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("count", True, "a whole number, got True"),
        ("count", "two", "a whole number, got 'two'"),
        ("share", False, "a number, got False"),
        ("eager", "maybe", "true or false, got 'maybe'"),
    ],
)
def test_text_of_another_type_is_refused_under_the_given_name(name, given, wanted):
    with pytest.raises(PinnError, match=f"^list.csv: {name} must be {wanted}"):
        FLAGS[name].read(given, f"list.csv: {name}")


def test_a_file_gives_the_flags_that_it_names():
    values = {"count": "4", "eager": "false", "share": None, "other": 1}
    assert given_flags(Spec, values, "x.yaml") == {"count": 4, "eager": False}
    with pytest.raises(PinnError, match=r"^x.yaml: delay must be a number"):
        given_flags(Spec, {"delay": "late"}, "x.yaml")


def test_a_summary_names_unit_and_default():
    assert FLAGS["count"].summary == "How many. [items; default: 1]"
    assert FLAGS["limit"].summary == "At most. [default: no limit]"
    assert FLAGS["eager"].summary == "Whether. [default: yes]"

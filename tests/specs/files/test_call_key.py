"""Keys: everything that decides a result is in them, and nothing else."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pinn.common.store import call_key
from pinn.errors import PinnError
from pinn.specs.model import GREEDY


def compute(*_):
    """Function with cached results."""


def other(*_):
    """Another one."""


@dataclass(frozen=True)
class Settings:
    rate: float
    name: str = ""


class Digested:
    def __init__(self, text):
        self.text = text

    def digest(self):
        return self.text


def key(*arguments, function=compute):
    return call_key(function, arguments).digest


TABLE = pd.DataFrame({"a": [1, 2], "b": ["x", None]})
VALUES = (
    None, True, 1, 1.0, "1", "", [1], [1, 2], [2, 1], {"a": 1}, {"a": 2}, {1: "a"}, {1, 2},
    Settings(1.0), Settings(2.0), Settings(1.0, "x"), [Settings(1.0), Settings(1.0, "x")],
    np.array([1, 2]), np.array([1.0, 2.0]), np.array([[1, 2]]), np.float64(0.1), 0.2,
    TABLE, TABLE.rename(columns={"a": "c"}), TABLE.assign(a=[1, 3]), TABLE.astype({"a": float}),
    Digested("x"), Digested("y"), compute, other, Settings, partial(compute, 1),
    partial(compute, 2), partial(compute, x=2), "x" * 300, "x" * 301, GREEDY,
)  # fmt: skip


def test_different_arguments_have_different_keys():
    keys = [key(value) for value in VALUES]
    assert len(set(keys)) == len(keys)


def test_equal_arguments_have_equal_keys():
    assert key(Settings(1.0)) == key(replace(Settings(2.0), rate=1.0))
    assert key((1, 2)) == key([1, 2])
    assert key({"b", "a"}) == key({"a", "b"})
    assert key(TABLE) == key(TABLE.copy())
    assert key(np.float64(0.1), np.int64(3)) == key(0.1, 3)


def test_functions_have_keys_of_their_own_and_arguments_are_in_order():
    assert key(1) != key(1, function=other)
    assert key(1, 2) != key(2, 1)
    assert key([1], 2) != key([1, 2])


def test_a_path_is_what_it_holds(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("a/one", "two"):
        (tmp_path / name).write_text("same")
    assert key(tmp_path / "a/one") == key(tmp_path / "two")
    folder = key(tmp_path / "a")
    (tmp_path / "a/one").write_text("changed")
    assert key(tmp_path / "a/one") != key(tmp_path / "two")
    assert key(tmp_path / "a") != folder
    with pytest.raises(PinnError, match="nothing: cannot be read"):
        key(tmp_path / "nothing")


def test_the_code_of_arguments_counts(monkeypatch):
    """A class may come from a module that the function does not import."""
    asked = []
    monkeypatch.setattr("pinn.common.store.code_digest", lambda *of: asked.append(of) or "")
    from pinn.kernels.exclusion import Exclusion
    from pinn.physics.costs import step_costs

    key([Exclusion()], {"f": partial(step_costs, 1)})
    assert {"pinn.kernels.exclusion", "pinn.physics.costs"} <= set(asked[0])


@pytest.mark.parametrize("argument", [object(), b"bytes", np.array([object()]), lambda: 0])
def test_what_cannot_be_part_of_a_key_is_refused(argument):
    with pytest.raises(PinnError, match="cannot be part of a cache key"):
        key(argument)


def test_functions_that_see_more_than_their_arguments_are_refused():
    seen = Path()
    for hidden in (lambda: seen, Digested("x").digest, partial(compute, 1)):
        with pytest.raises(PinnError, match="give a function of a module"):
            key(function=hidden)

"""Results on disk: computed once, and again wherever what is there cannot be trusted."""

import json
from pathlib import Path

import pandas as pd
import pytest

from pinn.common.files import cache_folder
from pinn.common.store import (
    call_key,
    find_value,
    keep_value,
    remembered_folder,
    remembered_table,
    remembered_value,
)

calls = []


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()


def value(x, y=0, *, aside=None):
    calls.append(aside)
    return {"sum": x + y, "parts": (x, y)}


def table(rows):
    calls.append(rows)
    frame = pd.DataFrame({"a": range(rows), "b": "text", "c": pd.Categorical(["z"] * rows)})
    return frame[frame["a"] > 0]


def folder(at, parts, *, fail_at=None):
    for i in range(parts):
        if i == fail_at:
            raise RuntimeError("power cut")
        if not (at / f"part-{i}").is_file():
            calls.append(i)
            (at / f"part-{i}").write_text(f"part {i}")


def test_a_value_is_computed_once_for_each_of_its_arguments(tmp_path):
    for _ in range(2):
        assert remembered_value(value, 1, 2, root=tmp_path) == {"sum": 3, "parts": [1, 2]}
    assert len(calls) == 1
    assert remembered_value(value, 1, 3, root=tmp_path)["sum"] == 4
    assert remembered_value(value, 1, root=tmp_path / "other")["sum"] == 1
    assert len(calls) == 3


def test_what_stands_aside_decides_nothing(tmp_path):
    for aside in ("a", "b"):
        remembered_value(value, 1, root=tmp_path, aside={"aside": aside})
    assert calls == ["a"]


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", '{"function": "value"}'])
def test_a_file_that_holds_something_else_is_written_anew(tmp_path, text):
    before = remembered_value(value, 1, root=tmp_path)
    (path,) = tmp_path.rglob("*.json")
    good = path.read_text()
    assert json.loads(good)["function"].endswith(".value")
    path.write_text(text)
    assert remembered_value(value, 1, root=tmp_path) == before
    assert path.read_text() == good


def test_a_value_that_a_worker_computed_is_found_again(tmp_path):
    key = call_key(value, (1,))
    assert find_value(key, tmp_path) is None
    keep_value(key, {"sum": 5}, tmp_path)
    assert find_value(key, tmp_path) == {"sum": 5}
    assert remembered_value(value, 1, root=tmp_path) == {"sum": 5}
    assert not calls
    (path,) = tmp_path.rglob("*.json")
    path.write_text("{")
    assert find_value(key, tmp_path) is None
    (tmp_path / "file").touch()
    keep_value(key, {}, tmp_path / "file" / "cache")  # nowhere to write to


def test_a_table_is_the_same_from_disk(tmp_path):
    first, again = (remembered_table(table, 4, root=tmp_path) for _ in range(2))
    pd.testing.assert_frame_equal(first, again)
    assert calls == [4]
    (path,) = tmp_path.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:50])
    pd.testing.assert_frame_equal(remembered_table(table, 4, root=tmp_path), first)
    assert calls == [4, 4]


def test_a_folder_goes_on_after_an_interruption_and_mends(tmp_path):
    with pytest.raises(RuntimeError, match="power cut"):
        remembered_folder(folder, 3, root=tmp_path, aside={"fail_at": 2})
    assert calls == [0, 1]
    made = remembered_folder(folder, 3, root=tmp_path)
    assert remembered_folder(folder, 3, root=tmp_path) == made
    assert calls == [0, 1, 2]
    (made / "part-0").unlink()
    remembered_folder(folder, 3, root=tmp_path)
    assert calls == [0, 1, 2, 0]
    (made / "made.json").write_text("{")
    remembered_folder(folder, 3, root=tmp_path)
    assert len(calls) == 4
    assert sorted(path.name for path in made.iterdir()) == [
        "made.json", "part-0", "part-1", "part-2",
    ]  # fmt: skip


def test_without_a_place_to_write_everything_is_computed_again(tmp_path):
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "cache"
    for _ in range(2):
        assert remembered_value(value, 1, 2, root=nowhere)["sum"] == 3
        assert len(remembered_table(table, 4, root=nowhere)) == 3
        assert (remembered_folder(folder, 1, root=nowhere) / "part-0").is_file()
    assert len(calls) == 6


def test_the_cache_is_where_it_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("PINN_CACHE", raising=False)
    assert cache_folder() == tmp_path / "xdg" / "pinn"
    monkeypatch.setenv("PINN_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("PINN_CACHE", "~/own")
    assert cache_folder() == Path.home() / "own"
    monkeypatch.setenv("PINN_CACHE", str(tmp_path / "own"))
    remembered_value(value, 1)
    assert list((tmp_path / "own").glob("*/*.json"))

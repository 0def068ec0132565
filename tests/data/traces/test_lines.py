"""Files of lines: read by stretches, however long a line is, and refused where nobody wrote."""

import os

import pytest

from pinn.common.documents import MOST_LINE_BYTES
from pinn.errors import PinnError
from pinn.measurements.benchmarks.vllm_log import read_iteration_log
from pinn.measurements.readers.vllm import check_file, read_stretch, read_vllm, stretches

TERABYTE = 2**40


@pytest.fixture
def sparse(tmp_path):
    """A log that shows a terabyte and holds two lines."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(b"first\n")
        file.seek(TERABYTE)
        file.write(b"\nlast\n")
    return path


@pytest.mark.parametrize(
    "read",
    [read_iteration_log, lambda path: read_vllm(path, path.parent / "spool")],
    ids=["log", "traces"],
)
def test_a_sparse_file_is_refused_before_it_is_read(sparse, read):
    with pytest.raises(PinnError, match=r"bytes from byte [\d,]+ on, more.*tail -c"):
        read(sparse)
    os.truncate(sparse, TERABYTE)
    with pytest.raises(PinnError, match=r"head -c"):
        read(sparse)


def test_a_hole_no_longer_than_a_line_is_read(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"first\n")
    os.truncate(path, MOST_LINE_BYTES)
    check_file(path, "")


def test_an_empty_file_has_no_hole(tmp_path):
    path = tmp_path / "log"
    path.touch()
    check_file(path, "")


def test_a_stretch_within_a_line_ends_where_it_ends(sparse):
    middle = TERABYTE // 2
    assert read_stretch(sparse, middle, middle + 2**20).lines == []
    assert read_stretch(sparse, TERABYTE - 10, TERABYTE + 6).lines == [b"last\n"]
    first = read_stretch(sparse, 0, 2**20, max_line=2**19)
    assert (first.lines, first.too_long) == ([b"first\n"], 1)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 100])
def test_every_line_is_read_once_whatever_the_stretches(tmp_path, length):
    text = b"a\n\nlonger line\nx" * 5
    path = tmp_path / "log"
    path.write_bytes(text)
    found = [read_stretch(path, *s, max_line=8) for s in stretches(len(text), length)]
    lines = text.splitlines(keepends=True)
    assert [line for part in found for line in part.lines] == [x for x in lines if len(x) <= 9]
    assert sum(part.too_long for part in found) == sum(len(x) > 9 for x in lines)
    assert [part.last_is_cut for part in found if part.lines][-1]

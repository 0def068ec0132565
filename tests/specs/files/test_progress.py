"""Progress: log records wherever they go, lines about long work on a terminal alone."""

import io
import logging
import time

import pytest

from pinn.common import progress
from pinn.common.progress import counted, doing, note, shown, still


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def wait_for(stream, text):
    for _ in range(200):
        if text in stream.getvalue():
            return
        time.sleep(0.01)
    raise AssertionError(stream.getvalue())


def test_the_reader_is_told_what_is_done_and_how_far():
    stream = Terminal()
    with shown("pinn", stream, first_s=0.01):
        doing("reading")
        wait_for(stream, "pinn: reading, 0 s so far\n")
        for _ in counted([1, 2], "row"):
            pass
        for row in counted(range(3), "row"):
            if row == 1:
                wait_for(stream, "pinn: row 2 of 3, ")
    written = stream.getvalue()
    time.sleep(0.03)
    assert stream.getvalue() == written
    assert all(line.endswith(" s so far") for line in written.splitlines())
    assert "\r" not in written


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_records_are_written_while_a_command_runs(stream):
    with shown("pinn", stream):
        note("fold 1 of 2")
        logging.getLogger("pinn.planning").info("%d candidates", 48)
    note("after it")
    assert stream.getvalue().splitlines() == ["fold 1 of 2", "48 candidates"]


def test_a_file_has_no_lines_about_long_work():
    stream = io.StringIO()
    with shown("pinn", stream, first_s=0.01):
        time.sleep(0.05)
    assert stream.getvalue() == ""


def test_lines_come_ever_more_rarely(monkeypatch):
    waits = []

    class Clock:
        now_s = 0.0

        def wait(self, seconds):
            waits.append(seconds)
            Clock.now_s += seconds
            return len(waits) == 7

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now_s)
    progress._write("pinn", io.StringIO(), progress.FIRST_S, Clock())
    assert waits == [5, 5, 10, 20, 40, 60, 60]


def test_short_work_says_nothing():
    stream = Terminal()
    with shown("pinn", stream):
        pass
    assert stream.getvalue() == ""


def test_work_within_work_is_named_as_its_part():
    stream = Terminal()
    with shown("train", stream, first_s=0.01):
        with shown("fold without llama", io.StringIO()):
            doing("learning, epoch 3 of 10")
            wait_for(stream, "train: fold without llama, learning, epoch 3 of 10, ")
        doing("scoring")
        wait_for(stream, "train: scoring, ")


def test_how_long_work_goes_on(monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", lambda: 100.0)
    assert still(1, 4, 80.0) == "about 60 s left"
    assert still(1, 4, -100.0) == "about 10 min left"
    assert still(4, 4, 0.0) == "the last one"


def test_a_status_is_one_line_that_changes(monkeypatch):
    monkeypatch.setattr(progress, "_STATUS_S", 0.01)
    stream, seen = Terminal(), iter(range(10**6))
    with shown("pinn", stream, first_s=0.02):
        with progress.status(lambda: f"screened {next(seen)} of 9, 50 s left"):
            wait_for(stream, "\r\x1b[Kpinn: screened 3 of 9, 50 s left")
        assert stream.getvalue().endswith("\r\x1b[K")
        assert "so far" not in stream.getvalue()
        doing("writing")
        wait_for(stream, "pinn: writing, ")
    assert "\n" not in stream.getvalue().partition("pinn: writing")[0]


def test_a_file_has_no_status():
    stream = io.StringIO()
    with shown("pinn", stream), progress.status(lambda: 1 / 0):
        pass
    assert stream.getvalue() == ""

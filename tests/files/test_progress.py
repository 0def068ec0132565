"""Lines about long work: to a terminal alone, and only if it takes long."""

import io
import time

from pinn.files.progress import counted, doing, shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


def wait_for(stream, text):
    for _ in range(200):
        if text in stream.getvalue():
            return
        time.sleep(0.01)
    raise AssertionError(stream.getvalue())


def test_a_terminal_is_told_what_is_done_and_how_far():
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


def test_short_work_and_pipes_say_nothing():
    stream, pipe = Terminal(), io.StringIO()
    with shown("pinn", stream):
        pass
    with shown("pinn", pipe, first_s=0.0):
        time.sleep(0.03)
    assert stream.getvalue() == pipe.getvalue() == ""

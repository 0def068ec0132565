"""Default output of a command: 24 lines of 80 columns at most."""

from pinn.common.screen import WIDTH

LINES = 24


def assert_one_screen(text, more=0):
    """Whether a text fits a terminal, with ``more`` lines where it was asked for more.

    The path of a file that was written stays whole, however long it is.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    assert len(lines) <= LINES + more, text
    assert all(len(line) <= WIDTH for line in lines if not line.startswith("wrote ")), text

"""The error type that users see as one line, warnings, and text that is safe to show."""

import sys
import warnings

#: Longest error message and longest name of a file that are shown whole.
_MESSAGE_CHARACTERS = 2000
NAME_CHARACTERS = 200


class PinnError(ValueError):
    """Bad input or a broken file.

    The message names what was got, what was expected and the remedy, in one line: the command
    line prints it as it is and exits with a code other than 0. What input may have put into it
    cannot move the cursor or break the line.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message, _MESSAGE_CHARACTERS))


class RefusedError(PinnError):
    """A deployment that its engine refuses, with the reason and where the engine says so."""


class UnknownLayersError(PinnError):
    """A config.json whose layers its keys do not tell, or tell to be of an unknown kind."""


class TooLargeError(PinnError):
    """A size beyond a limit of ``pinn.common.documents``."""


def warn_user(text: str) -> None:
    """Warn at the line outside this package that called it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and f"{frame.f_globals.get('__name__')}.".startswith("pinn."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def printable(text: object, most: int = NAME_CHARACTERS) -> str:
    r"""Return text for a terminal or a page: control characters escaped, its length limited.

    Args:
        text: Object to print, such as a name from a file.
        most: Characters kept; the middle of a longer text becomes ``...``.

    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    """
    shown = str(text)
    if len(shown) > most:
        shown = f"{shown[: most // 2]} ... {shown[-most // 4 :]}"
    if shown.isprintable():
        return shown
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in shown
    )

"""Errors that users see as one line, warnings, and text that is safe to print."""

import sys
import warnings

#: Maximum length, in characters, of an error message, and of a file name in a message.
_MESSAGE_CHARACTERS = 2000
NAME_CHARACTERS = 200


class PinnError(ValueError):
    """Error in the user's input or in a damaged file.

    The message states in one line what was given, what was expected, and the remedy. The command
    line prints the message and exits with a status other than 0. Control characters from input
    are escaped.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message, _MESSAGE_CHARACTERS))


class RefusedError(PinnError):
    """Error for a deployment that the engine would refuse to start, with the reason and source."""


class UnknownLayersError(PinnError):
    """Error for a config.json that does not determine the layers, or has unsupported layers."""


class TooLargeError(PinnError):
    """Error for an input whose size exceeds a limit in ``pinn.common.documents``."""


def warn_user(text: str) -> None:
    """Issue a warning that is attributed to the calling line outside this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and f"{frame.f_globals.get('__name__')}.".startswith("pinn."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def printable(text: object, most: int = NAME_CHARACTERS) -> str:
    r"""Return text for a terminal or a page, with control characters escaped and limited length.

    Args:
        text: Object to print, such as a name from a file.
        most: Maximum number of characters; ``...`` replaces the middle of a longer text.

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

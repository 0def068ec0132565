"""The error type that users see as one line."""


class PinnError(ValueError):
    """Bad input or a broken file.

    The message names what was got, what was expected and the remedy, in one line: the command
    line prints it as it is and exits with a code other than 0.
    """

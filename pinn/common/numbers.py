"""Formatting of numbers for display."""

import math

#: Numbers with at least this absolute value are written with an exponent.
_EXPONENT_FROM = 1e9


def number(value: float | None, digits: int = 3) -> str:
    """Format a number, rounded to significant digits and with thousands separators.

    Numbers below 10^9 have no exponent.

    >>> [number(each) for each in (1234.5, 31049, 0.012345, 20.0, 9.996, 0, 2.5e9)]
    ['1,230', '31,000', '0.0123', '20.0', '10.0', '0', '2.50e+09']
    >>> number(None), number(float("nan")), number(12345.678, 4)
    ('-', '-', '12,350')

    Args:
        value: Number; None and NaN give ``-``.
        digits: Number of significant digits.
    """
    if value is None or math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    if math.isinf(value):
        return f"{value}"
    rounded = float(f"{value:.{digits - 1}e}")
    if abs(rounded) >= _EXPONENT_FROM:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(decimals, 0)}f}"


def amount(count: int, one: str, more: str = "") -> str:
    """Return a count with its noun; the plural adds an "s" unless ``more`` is given.

    >>> amount(1, "row"), amount(2500, "row"), amount(2, "row has", "rows have")
    ('1 row', '2,500 rows', '2 rows have')
    """
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def fixed(value: float) -> str:
    """Format a number for a table column, with all integer digits and at most two decimals.

    >>> [fixed(each) for each in (12345.6, 123.45, 6.948, 0.0123, float("nan"))]
    ['12,346', '123.5', '6.95', '0.01', '-']
    """
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def exact(value: object) -> str:
    """Format a value as a person would type it: every digit of a number, but no trailing zeros.

    >>> exact(20.0), exact(0.1), exact(1e6), exact(7), exact("auto")
    ('20', '0.1', '1000000', '7', 'auto')
    """
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)

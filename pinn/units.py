"""Factors that convert input to SI units; all other code uses seconds, bytes and FLOP.

>>> 250 * MICROSECOND
0.00025
"""

NANOSECOND = 1e-9
MICROSECOND = 1e-6
MILLISECOND = 1e-3
GIGA = 1e9
TERA = 1e12
MIB = 2**20
GIB = 2**30

"""Reproducible pseudo-random numbers that depend on the request, but not on the deployment."""

from pinn.simulator.compiler import compiled_inside

#: Constants of an integer hash with little bias (github.com/skeeto/hash-prospector): a 31-bit
#: mask, two odd multipliers (the second one truncated to 31 bits), and the factor of the request
#: number. Integers are limited to 31 bits so that their products fit in 64 bits.
_MASK, _FIRST, _SECOND, _STRIDE = 0x7FFFFFFF, 0x21F0AAAD, 0x735A2D97, 0x1E3779B1


def uniform_number(r: int, place: int) -> float:
    """Return a pseudo-random number from 0 to 1.

    The number depends only on the request and on the position in its output.
    """
    bits = _mixed((r * _STRIDE & _MASK) ^ _mixed(place + 1))
    return bits / (_MASK + 1)


def _mixed(bits: int) -> int:
    bits = (bits ^ (bits >> 16)) * _FIRST & _MASK
    bits = (bits ^ (bits >> 15)) * _SECOND & _MASK
    return bits ^ (bits >> 15)


compiled_inside(__name__)

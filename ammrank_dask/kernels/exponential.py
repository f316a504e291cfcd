"""An exponential that loops compute side by side: the one of the C library takes one value at a time."""

import numpy as np

from ammrank_dask.kernels.jit import kernel

_PER_LN2 = np.float32(1.4426950408889634)
# ln 2 in two parts: whole multiples of the first are exact, so that nothing is lost when they are taken off.
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_SERIES = tuple(np.float32(1.0 / factorial) for factorial in (2, 6, 24, 120, 720, 5040))
_A2, _A3, _A4, _A5, _A6, _A7 = _SERIES
LOWEST_EXPONENT = np.float32(-80.0)
"""Lower exponents count as this one, so that no result is a denormal number."""


@kernel
def exp_below(x):
    """Return e^x of a float32 up to 80 to about 1e-7 of it, by e^x = 2^n e^r with |r| at most half of ln 2."""
    x = max(x, LOWEST_EXPONENT)
    n = np.floor(x * _PER_LN2 + _HALF)
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    tail = _A2 + r * (_A3 + r * (_A4 + r * (_A5 + r * (_A6 + r * _A7))))
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (_ONE + (r + r * r * tail)) * power

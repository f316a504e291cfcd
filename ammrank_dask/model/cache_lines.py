"""Arrays that begin at a cache line, so that no vector of a kernel is read from two of them."""

import numpy as np

LINE = 16
"""Floats of a cache line."""


def zeros_at_line(shape: tuple[int, ...]) -> np.ndarray:
    """Return zeros, float32; with rows of whole cache lines every row begins at one.

    Examples
    --------
    >>> array = zeros_at_line((3, 32))
    >>> array.dtype.name, array.shape, array.ctypes.data % 64
    ('float32', (3, 32), 0)
    """
    n = int(np.prod(shape))
    room = np.zeros(n + LINE, np.float32)
    # Numpy promises 16 bytes: a fourth of a line.
    first = -(room.ctypes.data // room.itemsize) % LINE
    return room[first : first + n].reshape(shape)

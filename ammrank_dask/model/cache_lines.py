"""Arrays that begin at a cache line, so that no vector of a kernel is read from two of them."""

import numpy as np

_LINE_BYTES = 64
LINE = _LINE_BYTES // 4
"""Floats of a cache line."""


def zeros_at_line(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """Return zeros; with rows of whole cache lines every row begins at one.

    Examples
    --------
    >>> array = zeros_at_line((3, 32))
    >>> array.dtype.name, array.shape, array.ctypes.data % 64
    ('float32', (3, 32), 0)
    """
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(n_bytes + _LINE_BYTES, np.uint8)
    # Numpy promises 16 bytes: a fourth of a line.
    first = -room.ctypes.data % _LINE_BYTES
    return room[first : first + n_bytes].view(dtype).reshape(shape)


def at_line(array: np.ndarray) -> np.ndarray:
    """Return an array that begins at a cache line: itself, or a copy, in the order of C."""
    if array.ctypes.data % _LINE_BYTES == 0 and array.flags.c_contiguous:
        return array
    moved = zeros_at_line(array.shape, array.dtype.type)
    moved[...] = array
    return moved

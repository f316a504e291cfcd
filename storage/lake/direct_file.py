"""Read local files of a lake past the page cache, for those who want an open file: pyarrow, and digests.

A lake is read once for digests and once for rows, and may be larger than memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np

from ammrank_dask.storage.store.large_files import Bytes, LargeFile, open_large
from ammrank_dask.storage.store.retried import retried

REQUEST_BYTES = 4 << 20


@retried
def open_direct(path: Path) -> DirectFile | None:
    """Open a file of which all will be read; None where that is better done through the page cache."""
    file = open_large(path)
    if file.is_direct:
        return DirectFile(file)
    file.close()
    return None


class DirectFile:
    """A file that is open for reading, with the methods of Python's files that pyarrow calls."""

    def __init__(self, file: LargeFile) -> None:
        self._file = file
        self._at = 0
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if that is not done yet."""
        if not self.closed:
            self.closed = True
            self._file.close()

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be read from any position."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> memoryview:
        """Return so many bytes from the position on, or all, in memory of their own; fewer where the file ends."""
        left = max(0, self._file.size - self._at)
        data = np.empty(left if size < 0 else min(size, left), np.uint8)
        n_read = 0
        for piece in self._pieces(self._at, self._at + len(data)):
            data[n_read : n_read + len(piece)] = piece
            n_read += len(piece)
        self._at += n_read
        return data[:n_read].data

    def pieces(self) -> Iterator[Bytes]:
        """Yield all bytes of the file, some at a time, until the next ones are asked for."""
        return self._pieces(0, self._file.size)

    def _pieces(self, start: int, stop: int) -> Iterator[Bytes]:
        """Yield bytes; while they are worked on, a thread reads the next ones."""
        for begin in range(start, stop, REQUEST_BYTES):
            end = min(begin + REQUEST_BYTES, stop)
            if end < stop:
                self._file.expect(end, min(REQUEST_BYTES, stop - end))
            yield self._file.lend(begin, end - begin)

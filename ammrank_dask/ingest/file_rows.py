"""Find files of a day that have the same rows, whatever their bytes: what a compaction leaves that did not end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np


class FileRows(NamedTuple):
    """What tells the rows of a file from others, whatever their order: it adds up over its blocks, and over files.

    `digest` is the sum of the hashes of the used rows, modulo 2^64.
    """

    digest: int = 0
    used: int = 0
    rows: int = 0

    def __add__(self, other: Iterable[int]) -> FileRows:  # type: ignore[override]
        digest, used, rows = other
        return FileRows((self.digest + digest) % 2**64, self.used + used, self.rows + rows)


def find_same_rows(files: Mapping[str, FileRows]) -> tuple[str, list[str]] | None:
    """Return a file and others that together have its rows, None when there are none.

    The others are one file, or some that follow each other in the order of their names, that file left out. Files
    have rows; those without a used one count nothing twice.

    Examples
    --------
    >>> files = {"a": FileRows(5, 1, 1), "b": FileRows(7, 1, 2), "c": FileRows(12, 2, 3), "d": FileRows(5, 1, 2)}
    >>> find_same_rows(files)
    ('c', ['a', 'b'])
    """
    names = sorted(files)
    columns = np.array([files[name] for name in names], np.uint64).reshape(-1, 3)
    # Of the files before each position, so that the difference of two is what is between them.
    before = np.concatenate([np.zeros((1, 3), np.uint64), np.cumsum(columns, axis=0, dtype=np.uint64)])
    rows = before[:, 2]
    for number, own in enumerate(columns):
        if not own[1]:
            continue
        # Others in a row have the rows of the file once; with the file among them, twice.
        for sought, has_file in ((own, False), (own + own, True)):
            stop = np.searchsorted(rows, rows + sought[2])
            stop[stop == len(rows)] = 0
            is_same = (before[stop] - before == sought).all(axis=1)
            for start in np.flatnonzero(is_same).tolist():
                if (start <= number < stop[start]) == has_file:
                    return names[number], [names[i] for i in range(start, stop[start]) if i != number]
    return None

"""Scan the files of a lake that are new or changed, and find files of a day that have the same rows.

Others with the same rows, whatever their bytes, are what a compaction leaves that did not end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from distributed import Client

from ammrank_dask.runtime.tasks import Call, Progress, run_together, silent
from ammrank_dask.storage.lake.files import FileFacts, scan_file
from ammrank_dask.storage.lake.listing import LakeFile
from ammrank_dask.storage.lake.paths import BYTES_KEPT, LakePath, status_of
from ammrank_dask.storage.objects.retry import retried

BYTES_A_TASK = 32 << 20
"""Bytes of files that are scanned in one task."""
FILES_A_TASK = 32


def scan_files(
    client: Client,
    files: Sequence[LakeFile],
    columns: Sequence[str],
    scanned_before: Mapping[str, FileFacts],
    *,
    group: str = "",
    fetched: Path | None = None,
    progress: Progress = silent,
) -> list[FileFacts]:
    """Return files with their digests. Files of the same size and time as before are not read.

    `group` is the column of those groups that folders say. The bytes of remote files are kept in the folder `fetched`
    for whoever reads their rows next, up to a bound; those of the last files, which are of the newest days, first.
    """
    scanned: dict[str, FileFacts] = {}
    wanted: list[Call] = []
    weights: list[float] = []
    room = BYTES_KEPT
    for file in reversed(files):
        path, made = str(file.path), {} if file.group is None else {group: file.group}
        before = scanned_before.get(path)
        status = _status(file.path)
        if before is not None and status == (before.size, before.mtime_ns) and before.constants == made:
            scanned[path] = before
            continue
        weights.append((0 if status is None else status[0]) / BYTES_A_TASK + 1 / FILES_A_TASK)
        if isinstance(file.path, Path) or status is None:
            wanted.append((scan_file, (path, file.name, tuple(columns), made)))
            continue
        is_kept = fetched is not None and status[0] <= room
        room -= status[0] if is_kept else 0
        # Times in a listing and of a single object differ by fractions of a second; the next night compares listings.
        kept_in = fetched if is_kept else None
        wanted.append((scan_file, (path, file.name, tuple(columns), made, status, kept_in)))
    for facts in run_together(client, "scan", wanted[::-1], weights=weights[::-1], progress=progress):
        scanned[facts.path] = facts
    return [scanned[str(file.path)] for file in files]


@retried
def _status(path: LakePath) -> tuple[int, int] | None:
    try:
        status = status_of(path)
    except FileNotFoundError:
        return None  # the task that scans it says so
    return status.st_size, status.st_mtime_ns


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

"""Scan the files of a lake that are new or changed: footers, columns and digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed import Client

from ammrank_dask.runtime.tasks import Progress, run_together, silent
from ammrank_dask.storage.lake.fetched import BYTES_KEPT
from ammrank_dask.storage.lake.files import FileFacts, scan_file
from ammrank_dask.storage.lake.listing import LakeFile
from ammrank_dask.storage.lake.paths import LakePath, status_of
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
    wanted: list[tuple[Any, ...]] = []
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
            wanted.append((path, file.name, tuple(columns), made))
            continue
        is_kept = fetched is not None and status[0] <= room
        room -= status[0] if is_kept else 0
        # Times in a listing and of a single object differ by fractions of a second; the next night compares listings.
        wanted.append((path, file.name, tuple(columns), made, status, fetched if is_kept else None))
    for facts in run_together(client, "scan", scan_file, wanted[::-1], weights=weights[::-1], progress=progress):
        scanned[facts.path] = facts
    return [scanned[str(file.path)] for file in files]


@retried
def _status(path: LakePath) -> tuple[int, int] | None:
    try:
        status = status_of(path)
    except FileNotFoundError:
        return None  # the task that scans it says so
    return status.st_size, status.st_mtime_ns

"""Scan the files of a lake that are new or changed: footers, columns and digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from distributed import Client

from ammrank_dask.storage.lake.files import FileFacts, scan_file
from ammrank_dask.storage.lake.listing import LakeFile
from ammrank_dask.storage.lake.paths import LakePath, RemotePath
from ammrank_dask.tasks import Progress, run_tasks, silent


def scan_files(
    client: Client,
    files: Sequence[LakeFile],
    columns: Sequence[str],
    scanned_before: Mapping[str, FileFacts],
    *,
    group: str = "",
    progress: Progress = silent,
) -> list[FileFacts]:
    """Return files with their digests. Files of the same size and time as before are not read.

    `group` is the column of those groups that folders say.
    """
    scanned: dict[str, FileFacts] = {}
    wanted = []
    for file in files:
        path, made = str(file.path), {} if file.group is None else {group: file.group}
        before = scanned_before.get(path)
        size, time = _status(file.path)
        if before is not None and (before.size, before.mtime_ns, before.constants) == (size, time, made):
            scanned[path] = before
        else:
            wanted.append((path, file.name, tuple(columns), made))
    for facts in run_tasks(client, "scan", scan_file, wanted, progress=progress):
        scanned[facts.path] = facts
    # Times in a listing and of a single object differ by fractions of a second; the next night compares listings.
    return [
        replace(scanned[str(file.path)], mtime_ns=file.path.listed.st_mtime_ns)
        if isinstance(file.path, RemotePath) and file.path.listed is not None
        else scanned[str(file.path)]
        for file in files
    ]


def _status(path: LakePath) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return -1, -1  # the task that scans it says so
    return status.st_size, status.st_mtime_ns

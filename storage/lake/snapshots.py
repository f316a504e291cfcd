"""What the log of a table says: which of its files are alive in one snapshot."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ammrank_dask.storage.errors import BadInput, cut
from ammrank_dask.storage.lake.paths import LakePath, RemotePath
from ammrank_dask.storage.objects.folders import list_paths, require_regular


@dataclass(frozen=True)
class Snapshot:
    """The live files of one version of a table, with the values of its partition columns.

    `kind` and `folder` are for messages; `version` is what the table calls the snapshot.
    """

    kind: str
    folder: LakePath
    version: int
    files: tuple[tuple[LakePath, dict[str, str]], ...]
    partitioned_by: tuple[str, ...]


def require_regular_log(folder: LakePath) -> None:
    """Raise unless all that is in the log of a table can be read; libraries wait for pipes, or leave them out."""
    if isinstance(folder, Path):
        for path in list_paths(folder):
            require_regular(path)


def require_files(log: str, folder: LakePath, files: Sequence[LakePath]) -> None:
    """Raise unless all files that a log names are there; a folder of an object store is listed once."""
    present = set(folder.walk()) if isinstance(folder, RemotePath) else None
    for path in files:
        if not (_is_file(path) if present is None else path in present):
            raise BadInput(f"{log} names {cut(path.name)}, which is not there; restore the file, or repair the log")


def _is_file(path: LakePath) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False

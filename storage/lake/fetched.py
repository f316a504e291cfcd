"""Copies of remote files among the scratch of a command: an object is fetched once, for its digest and for its rows.

A copy is named by the digest of its bytes, so it holds what was scanned, whatever becomes of the object meanwhile.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ammrank_dask.storage.lake.paths import READ_BYTES
from ammrank_dask.storage.objects.atomic import temporary_beside
from ammrank_dask.storage.objects.folders import is_file, make_folder, remove, rename

FOLDER = "fetched"
BYTES_KEPT = 2 << 30
"""Bytes of the copies of a command; files beyond are read from the store a second time, their columns only."""


def keep_fetched(source: Any, folder: Path) -> tuple[str, Path]:
    """Copy an open file from its position on, a piece at a time; return the SHA-256 of its bytes and the copy."""
    make_folder(folder)
    total = hashlib.sha256()
    temporary = temporary_beside(folder / "object")
    try:
        with open(temporary, "wb") as target:
            while data := source.read(READ_BYTES):
                total.update(data)
                target.write(data)
        copy = folder / total.hexdigest()
        rename(temporary, copy)
    finally:
        remove(temporary)
    return total.hexdigest(), copy


def find_fetched(folder: Path | None, digest: str) -> Path | None:
    """Return the copy of the file with a digest, None when there is none."""
    if folder is None or not digest or not is_file(folder / digest):
        return None
    return folder / digest

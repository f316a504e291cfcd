"""Keep the counts of many pieces of work in few scratch files: every thread appends lines to one of its own.

With a file a piece, making it costs as much as the piece: ext4 looks past the inodes of all files that were removed in
the last minutes, one by one, for each file it makes.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ammrank_dask.storage.objects.folders import list_paths
from ammrank_dask.storage.objects.retry import retried

LINES = "counts-*.jsonl"
"""Names of the files."""
# Not the process id: workers of several hosts may share the folder.
_process = uuid.uuid4().hex[:12]


@retried
def append_counts(folder: Path, piece: int, counts: Mapping[str, Any]) -> None:
    """Keep the counts of a piece of work; those of a piece that was done before are kept once more."""
    # A line that an error left half written ends where this one begins.
    line = f"\n{json.dumps([piece, counts])}\n".encode()
    name = f"counts-{_process}-{threading.get_ident():x}.jsonl"
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        while line:
            line = line[os.write(descriptor, line) :]
    finally:
        os.close(descriptor)


@retried
def remove_counts(folder: Path) -> None:
    """Forget what was kept."""
    for path in list_paths(folder, LINES):
        path.unlink(missing_ok=True)


@retried
def read_counts(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the counts that were kept, by piece; a line that a crash cut short does not count."""
    found: dict[int, dict[str, Any]] = {}
    for path in list_paths(folder, LINES):
        for line in path.read_bytes().split(b"\n"):
            try:
                piece, counts = json.loads(line)
            except ValueError:
                continue
            found[piece] = counts
    return found

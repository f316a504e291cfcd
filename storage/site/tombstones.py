"""Remember who was forgotten while a night was active, for the next delta: readers of that night have these users.

The list holds ids, as every list of qualifications does, for whoever applies a delta has to know whom to remove. It
goes with the night that it is about.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ammrank_dask.storage.objects.atomic import write_atomic
from ammrank_dask.storage.objects.folders import is_file, list_paths, remove
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.store.ids import UserIds, ids_from_values, union
from ammrank_dask.storage.vocabulary import USER_ID

FOLDER = "tombstones"


def tombstones_path(site: Path, night: dt.date) -> Path:
    """Return the list of users who were forgotten while a night was active."""
    return site / FOLDER / f"date={night}.parquet"


@retried
def read_tombstones(path: Path) -> UserIds:
    """Return the users on a list, ascending."""
    return ids_from_values(pq.read_table(path, page_checksum_verification=True).column(USER_ID).combine_chunks())


def add_tombstones(site: Path, night: dt.date, ids: UserIds) -> None:
    """Put users on the list of a night."""
    path = tombstones_path(site, night)
    everyone = union([ids, *([read_tombstones(path)] if is_file(path) else [])])
    table = pa.table({USER_ID: everyone.to_arrow()})
    write_atomic(path, lambda temporary: pq.write_table(table, temporary, write_page_checksum=True))


def remove_tombstones(site: Path, kept: set[dt.date]) -> None:
    """Remove the lists of nights that are no longer kept."""
    for path in list_paths(site / FOLDER, "date=*.parquet"):
        if dt.date.fromisoformat(path.stem.removeprefix("date=")) not in kept:
            remove(path)

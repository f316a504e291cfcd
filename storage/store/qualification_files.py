"""Write the qualifications of a night: parquet by user, by category, and what changed since the night before.

A partition leaves its rows by category in the work folder; when all are there, they are brought together in few files.
A partition is written file by file under temporary names; the list of its files, with sizes, checksums and counts,
is written last and makes it whole. The lists are removed when the manifest of the run has all of them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c
import numpy as np
import pyarrow as pa

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import read_json, write_atomic, write_text
from ammrank_dask.storage.objects.folders import create_file, list_paths, make_folder, remove_if_empty
from ammrank_dask.storage.objects.parquet import encode_parquet
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.store.parts import check_files
from ammrank_dask.storage.store.qualifications import BY_CATEGORY, BY_USER, DELTA, columns_of, read_checked, table_path
from ammrank_dask.storage.vocabulary import (
    CATEGORY,
    CHANCE,
    CHANGE,
    RANK,
    SCORE,
)

WORK = ".work"
"""Folder of what only a run that is going on needs: lists of parts, scratch, the model."""
_LONGEST_FOLDER, _CUT_FOLDER = 255, 120
"""Characters of the longest folder name that all file systems take, and of what is kept of a longer one."""
_WITH_GAPS = (CATEGORY, RANK, SCORE, CHANCE)
"""Columns of a delta that what is gone does not have."""
_ROWS_OF_GROUP = 1 << 20
"""What readers hold in memory at a time."""
_STARTS, _LAYOUT = "category_starts", "layout"
_ALIGNMENT = 8
_FORMAT = 4
"""Of what a partition writes; 4 has `groups`. A run that an earlier version left half done is scored anew."""
_BATCH = "by-category-"


@functools.cache
def category_folder(category: str) -> str:
    """Return the folder of a category, whatever is in its name and however long it is.

    A name that is too long for a folder is cut and gets a hash, after an `@`, which no quoted name has.

    Examples
    --------
    >>> category_folder("Retail/Shoes & more")
    'category=Retail%2FShoes%20%26%20more'
    >>> category_folder("a" * 300)[-40:]
    'aaaaaaaaaaaaaaaaaaaaaaa@9835fa6bf4e20a9b'
    """
    folder = f"{CATEGORY}={quote(category, safe='')}"
    if len(folder) <= _LONGEST_FOLDER:
        return folder
    digest = hashlib.sha256(category.encode()).hexdigest()[:16]
    # A byte that was quoted (%XX) stays whole.
    kept = re.sub(r"%.?$", "", folder[:_CUT_FOLDER])
    return f"{kept}@{digest}"


@retried
def read_chances(run: Path, category: str) -> np.ndarray:
    """Return the click probabilities of the users who have a category, none of a night without any."""
    paths = list_paths(run / BY_CATEGORY / category_folder(category), "part-*.parquet")
    having = [path for path in paths if CHANCE in columns_of(path).names]
    return np.concatenate([np.zeros(0), *(read_checked(path, columns=[CHANCE])[CHANCE].to_numpy() for path in having)])


def short_folders(categories: Iterable[str]) -> dict[str, str]:
    """Return the categories whose folder does not spell their name, by folder: what a manifest has to list."""
    folders = {category_folder(category): category for category in categories}
    return {folder: category for folder, category in folders.items() if "@" in folder}


def write_partition_files(
    run: Path,
    partition: int,
    *,
    by_user: pa.Table,
    delta: pa.Table,
    by_category: Mapping[str, np.ndarray],
    start: np.ndarray,
    counts: Mapping[str, Any],
) -> None:
    """Write one partition of a run: all its files, and then the list of them with `counts`.

    Parameters
    ----------
    by_category, start
        Ids of the users, and columns of the rows by category: those of category c are from `start[c]` to
        `start[c + 1]`, by user.
    """
    files = {}
    for folder, table in ((BY_USER, by_user), (DELTA, delta)):
        name = table_path(Path(folder), partition)
        files[name.as_posix()] = write_table(run / name, table)
    path = scratch_path(run, partition)
    layout: dict[str, list[Any]] = {}
    pieces: list[np.ndarray] = []
    for column, array in by_category.items():
        layout[column] = [array.dtype.str, len(array), sum(piece.nbytes for piece in pieces)]
        pieces += [array, np.zeros(-array.nbytes % _ALIGNMENT, np.uint8)]
    files[path.relative_to(run).as_posix()] = _write_pieces(path, pieces)
    listed = {"format": _FORMAT, "files": files, "facts": dict(counts), _STARTS: start.tolist(), _LAYOUT: layout}
    write_text(_list_path(run, partition), json.dumps(listed), durable=False)


def category_layout(run: Path, partition: int) -> dict[str, tuple[np.dtype, int, int]]:
    """Return type, length and offset of the ids of a partition's users and of the columns of its rows by category."""
    layout = read_json(_list_path(run, partition))[_LAYOUT]
    return {name: (np.dtype(kind), n, at) for name, (kind, n, at) in layout.items()}


def category_starts(run: Path, partition: int) -> list[int]:
    """Return where each category begins in the rows that a partition left, and last where they end."""
    starts: list[int] = read_json(_list_path(run, partition))[_STARTS]
    return starts


def written_facts(run: Path, partition: int) -> dict[str, Any] | None:
    """Return the facts of a partition that was written whole and is still what was written, else None."""
    try:
        listed = read_json(_list_path(run, partition))
        check_files(run, listed["files"])
        is_other = listed["format"] != _FORMAT
    except (BadInput, FileNotFoundError, KeyError, TypeError):
        return None
    if is_other:
        return None
    facts: dict[str, Any] = listed["facts"]
    return facts


def written_files(run: Path, n_partitions: int) -> dict[str, list[int]]:
    """Return size and checksum of every file of all partitions and categories, by relative name."""
    lists = [_list_path(run, partition) for partition in range(n_partitions)]
    lists += list_paths(run / WORK, f"{_BATCH}*.json")
    files = {name: entry for path in lists for name, entry in read_json(path)["files"].items()}
    return {name: entry for name, entry in files.items() if not name.startswith(f"{WORK}/")}


@retried
def make_folders(run: Path, categories: Iterable[str]) -> None:
    """Make the folders of a run, so that no task has to."""
    for name in (WORK, BY_USER, DELTA, *(f"{BY_CATEGORY}/{category_folder(category)}" for category in categories)):
        make_folder(run / name)


@retried
def remove_empty_folders(run: Path) -> None:
    """Remove the folders of categories that nobody holds."""
    for folder in list_paths(run / BY_CATEGORY):
        remove_if_empty(folder)


def _list_path(run: Path, partition: int) -> Path:
    return run / WORK / f"part-{partition:05d}.json"


def batch_path(run: Path, number: int) -> Path:
    """Return the list of one batch of files by category."""
    return run / WORK / f"{_BATCH}{number:05d}.json"


def scratch_path(run: Path, partition: int) -> Path:
    """Return the file in which the rows of a partition wait by category."""
    return run / WORK / f"{_BATCH}{partition:05d}.bin"


def write_table(path: Path, table: pa.Table) -> list[int]:
    """Write a table, and return its size and checksum. The end of the run syncs it."""
    return _write_pieces(path, [np.frombuffer(_encode_table(table), np.uint8)])


def _write_pieces(path: Path, pieces: Sequence[np.ndarray]) -> list[int]:
    """Write the pieces of a file one behind the other, and return the number of their bytes and the checksum."""

    def write(temporary: Path) -> None:
        with create_file(temporary) as file:
            for piece in pieces:
                file.write(piece.data)

    write_atomic(path, write, durable=False)
    checksum = 0
    for piece in pieces:
        checksum = google_crc32c.extend(checksum, piece)
    return [sum(piece.nbytes for piece in pieces), checksum]


def _encode_table(table: pa.Table) -> pa.Buffer:
    """Return the bytes of a file: the same for the same rows, so every option that decides about them is given."""
    # Where no value is ever missing, columns that say so take a third of the time.
    gaps = _WITH_GAPS if CHANGE in table.column_names else ()
    required = pa.schema([field.with_nullable(field.name in gaps) for field in table.schema])
    return encode_parquet(
        table.cast(required),
        version="2.6",
        data_page_version="1.0",
        row_group_size=_ROWS_OF_GROUP,
        # What has a dictionary in memory has one in the file: to look for one takes longer than all the rest.
        use_dictionary=[field.name for field in required if pa.types.is_dictionary(field.type)],
        compression="snappy",
        write_statistics=False,  # ids of all sizes are in every file, and nobody looks for scores
        store_schema=True,
    )

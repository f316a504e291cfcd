"""Keep the qualifications of a night: parquet by user, by category, and what changed since the night before.

A partition is written file by file under temporary names; the list of its files, with sizes, checksums and counts,
is written last and makes it whole. The lists are removed when the manifest of the run has all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import BadInput
from storage.files import read_json, temporary_beside, write_json
from storage.ids import UserIds
from storage.parts import check_files
from storage.vocabulary import CATEGORY, CHANGE, RANK, SCORE, USER_ID

KIND = "qualifications"
BY_USER, BY_CATEGORY, DELTA = "by_user", "by_category", "delta"
ADDED, REMOVED = "added", "removed"
WORK = ".work"
"""Folder of what only a run that is going on needs: lists of parts, scratch, the model."""

_DICTIONARY = [CATEGORY, RANK, CHANGE]


@dataclass(frozen=True)
class Pairs:
    """The categories that users hold, best first: those of user u are `codes[indptr[u]:indptr[u + 1]]`.

    `user_ids` ascend. A score is -inf for a category without planes.
    """

    user_ids: UserIds
    indptr: np.ndarray
    codes: np.ndarray
    scores: np.ndarray

    @property
    def user(self) -> np.ndarray:
        """The position of the user of every pair."""
        return np.repeat(np.arange(len(self.user_ids)), np.diff(self.indptr))

    @property
    def rank(self) -> np.ndarray:
        """The rank of every pair, from 1 (int16)."""
        return (np.arange(len(self.codes)) - np.repeat(self.indptr[:-1], np.diff(self.indptr)) + 1).astype(np.int16)


@dataclass(frozen=True)
class Changes:
    """Pairs that are new or gone, by user: the codes are places in `names`."""

    user_ids: UserIds
    user: np.ndarray
    codes: np.ndarray
    added: np.ndarray
    names: Sequence[str]


def part_path(folder: Path, partition: int) -> Path:
    """Return the file of one partition."""
    return folder / f"part-{partition:05d}.parquet"


def category_folder(category: str) -> str:
    """Return the folder of a category, whatever is in its name.

    Examples
    --------
    >>> category_folder("Retail/Shoes & more")
    'category=Retail%2FShoes%20%26%20more'
    """
    return f"{CATEGORY}={quote(category, safe='')}"


def write_pairs(
    run: Path,
    partition: int,
    pairs: Pairs,
    categories: Sequence[str],
    *,
    order: np.ndarray,
    start: np.ndarray,
    changes: Changes,
    facts: Mapping[str, Any],
) -> None:
    """Write one partition of a run: all its files, and then the list of them with `facts`.

    Parameters
    ----------
    order, start
        The pairs by category, best first: those of category c are `order[start[c]:start[c + 1]]`. A category without
        pairs has no file.
    changes
        What is new and what is gone since the run before.
    """
    user, rank = pairs.user, pairs.rank
    names = pa.array(categories, pa.string())
    files = {}

    def keep(name: Path, columns: dict[str, pa.Array]) -> None:
        files[name.as_posix()] = _write(run / name, pa.table(columns))

    keep(
        part_path(Path(BY_USER), partition),
        {
            USER_ID: _ids(pairs.user_ids, user),
            RANK: pa.array(rank),
            CATEGORY: pa.DictionaryArray.from_arrays(pa.array(pairs.codes), names),
            SCORE: pa.array(pairs.scores),
        },
    )
    for code, category in enumerate(categories):
        chosen = order[start[code] : start[code + 1]]
        if len(chosen):
            keep(
                part_path(Path(BY_CATEGORY, category_folder(category)), partition),
                {
                    USER_ID: _ids(pairs.user_ids, user[chosen]),
                    SCORE: pa.array(pairs.scores[chosen]),
                    RANK: pa.array(rank[chosen]),
                },
            )
    keep(
        part_path(Path(DELTA), partition),
        {
            USER_ID: _ids(changes.user_ids, changes.user),
            CATEGORY: pa.DictionaryArray.from_arrays(pa.array(changes.codes), pa.array(changes.names, pa.string())),
            CHANGE: pa.DictionaryArray.from_arrays(
                pa.array(np.where(changes.added, 0, 1).astype(np.int8)), pa.array([ADDED, REMOVED])
            ),
        },
    )
    write_json(_list_path(run, partition), {"files": files, "facts": dict(facts)}, durable=False)


def written_facts(run: Path, partition: int) -> dict[str, Any] | None:
    """Return the facts of a partition that was written whole and is still what was written, else None."""
    try:
        listed = read_json(_list_path(run, partition))
        check_files(run, listed["files"])
    except (BadInput, FileNotFoundError, KeyError, TypeError):
        return None
    facts: dict[str, Any] = listed["facts"]
    return facts


def list_files(run: Path, n_partitions: int) -> dict[str, list[int]]:
    """Return size and checksum of every file of all partitions, by relative name."""
    return {
        name: entry
        for partition in range(n_partitions)
        for name, entry in read_json(_list_path(run, partition))["files"].items()
    }


def make_folders(run: Path, categories: Iterable[str]) -> None:
    """Make the folders of a run, so that no task has to."""
    for name in (WORK, BY_USER, DELTA, *(f"{BY_CATEGORY}/{category_folder(category)}" for category in categories)):
        (run / name).mkdir(parents=True, exist_ok=True)


def remove_empty_folders(run: Path) -> None:
    """Remove the folders of categories that nobody holds."""
    for folder in (run / BY_CATEGORY).iterdir():
        if not any(folder.iterdir()):
            folder.rmdir()


def _list_path(run: Path, partition: int) -> Path:
    return run / WORK / f"part-{partition:05d}.json"


def _write(path: Path, table: pa.Table) -> list[int]:
    """Write a table, and return its size and checksum. The end of the run syncs it."""
    sink = pa.BufferOutputStream()
    # Dictionaries only where values repeat: trying them on ids and scores costs more than all the rest.
    pq.write_table(table, sink, use_dictionary=[name for name in table.column_names if name in _DICTIONARY])
    data = sink.getvalue()
    temporary = temporary_beside(path)
    try:
        with open(temporary, "wb", buffering=0) as file:
            file.write(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return [data.size, google_crc32c.value(data.to_pybytes())]


def _ids(ids: UserIds, positions: np.ndarray) -> pa.Array:
    return ids.take(positions).to_arrow()

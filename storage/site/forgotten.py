"""Remember who is to be forgotten without keeping their ids: a list of keyed hashes, and the key in a file of its own.

Whoever has the list but not the key cannot tell whether an id is on it. Both files are for the owner only, and for the
group of a site that accounts of a group share.

Tombstones have the ids of those who were forgotten while a night was active, as every list of qualifications has ids:
its readers have these users, and the next delta tells them whom to remove. They go with the night that they are about.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.objects.account import is_of_group
from ammrank_dask.storage.objects.atomic import json_text, read_json, write_private
from ammrank_dask.storage.objects.folders import is_file, list_paths, read_file, remove
from ammrank_dask.storage.objects.parquet import decode_parquet, write_parquet
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.store.ids import IntegerIds, UserIds, ids_from_arrays, ids_from_values, union
from ammrank_dask.storage.store.part_rows import take_users
from ammrank_dask.storage.store.qualifications import FORGOTTEN
from ammrank_dask.storage.store.registry import PartSchema
from ammrank_dask.storage.vocabulary import CHANGE, USER_ID

LIST_FORMAT = 1
"""Version of the list, which outlives what else earlier versions of this package wrote."""
KEY_NAME, LIST_NAME, TOMBSTONES = ".forget-key", "forgotten.json", "tombstones"
_KEY_BYTES, _HASH_BYTES = 32, 16
_GROUP_READS = 0o040
_N_BITS, _SPREAD = 18, np.uint64(0x9E3779B97F4A7C15)
_FEW_USERS, _ROWS_OF_STRETCH = 4, 1 << 14


class UsersToForget(Protocol):
    """Tells who is to be forgotten: by a list of ids, or of their hashes."""

    def is_on(self, ids: UserIds) -> np.ndarray:
        """Return which ids are on the list."""

    def rows_on(self, column: pa.ChunkedArray) -> np.ndarray:
        """Return which rows of a column of ids, of any type, are of users on the list; null is nobody."""


@dataclass(frozen=True)
class NamedUsers:
    """Some users by their ids, ascending: for as long as a command runs."""

    ids: UserIds

    def is_on(self, ids: UserIds) -> np.ndarray:
        """Return which ids are among them."""
        return self.rows_on(pa.chunked_array([ids.to_arrow()]))

    def rows_on(self, column: pa.ChunkedArray) -> np.ndarray:
        """Return which rows of a column of ids, of any type, are of these users."""
        if isinstance(self.ids, IntegerIds) and column.type == pa.int64() and not column.null_count:
            return self._numbers_on(column.to_numpy())
        return np.asarray(pc.is_in(column, self.ids.to_arrow().cast(column.type)).to_numpy())

    def _numbers_on(self, numbers: np.ndarray) -> np.ndarray:
        """Check first whether anybody has the same bits of a product: of most rows nobody has."""
        if 0 < len(self.ids) <= _FEW_USERS:
            return np.logical_or.reduce([numbers == one for one in self.ids.to_arrow().to_pylist()])
        on_list: np.ndarray = self._has_bits[_bits_of(numbers)]
        rows = np.flatnonzero(on_list)
        if len(rows):
            on_list[rows] = self.ids.positions_of(IntegerIds(numbers[rows])) >= 0
        return on_list

    @functools.cached_property
    def _has_bits(self) -> np.ndarray:
        assert isinstance(self.ids, IntegerIds)
        has_bits = np.zeros(1 << _N_BITS, bool)
        has_bits[_bits_of(self.ids.values)] = True
        return has_bits


def _bits_of(numbers: np.ndarray) -> np.ndarray:
    """Return some bits of each number times an odd constant, which spreads numbers that are close to each other."""
    product: np.ndarray = numbers.view(np.uint64) * _SPREAD
    product >>= np.uint64(64 - _N_BITS)
    return product.view(np.int64)


@dataclass(frozen=True)
class ForgetList:
    """The hashes of the users who are to be forgotten, and the key to make them."""

    key: bytes
    hashes: frozenset[str]

    def hash_texts(self, texts: pa.Array) -> list[str]:
        """Return the keyed hash of every id, given as text."""
        return [
            hashlib.blake2b(text.encode(), key=self.key, digest_size=_HASH_BYTES).hexdigest()
            for text in texts.to_pylist()
        ]

    def is_on(self, ids: UserIds) -> np.ndarray:
        """Return which ids are on the list."""
        return self.texts_on(ids.to_arrow().cast(pa.string()))

    def rows_on(self, column: pa.ChunkedArray) -> np.ndarray:
        """Return which rows of a column of ids, of any type, are of users on the list; null is nobody."""
        # Ids repeat in a table: each distinct one is hashed once.
        ids = column.combine_chunks().dictionary_encode()
        on_list = self.texts_on(ids.dictionary.cast(pa.string()))
        codes = ids.indices.fill_null(len(on_list)).to_numpy(zero_copy_only=False)
        return np.append(on_list, False)[codes]

    def texts_on(self, texts: pa.Array) -> np.ndarray:
        """Return which ids, given as text, are on the list; null is nobody."""
        known = np.zeros(len(texts), bool)
        filled = np.asarray(texts.is_valid().to_numpy(zero_copy_only=False))
        found = self.hash_texts(texts.filter(pa.array(filled)))
        known[filled] = [entry in self.hashes for entry in found]
        return known


@retried
def load_forgotten(site: Path | None) -> ForgetList | None:
    """Return the list of a site, None when nobody was ever forgotten; refuse a list whose key is gone."""
    if site is None:
        return None
    place, key_place = site / LIST_NAME, site / KEY_NAME
    if not is_file(place):
        return None
    content = read_json(place)
    if not isinstance(content, dict) or content.get("format") != LIST_FORMAT or "hashes" not in content:
        raise DamagedStore(f"{place} is not the JSON that was written; put it back from a copy")
    if not is_file(key_place) or len(key := read_file(key_place)) != _KEY_BYTES:
        raise DamagedStore(f"{key_place}, the key of {place}, is missing or cut; put it back from a copy")
    return ForgetList(key, frozenset(content["hashes"]))


def add_forgotten(site: Path, ids: UserIds) -> ForgetList:
    """Put users on the list, durably, and return it; the first time, make the key."""
    known = load_forgotten(site)
    if known is None:
        known = ForgetList(_make_key(site / KEY_NAME), frozenset())
    hashes = known.hashes | set(known.hash_texts(ids.to_arrow().cast(pa.string())))
    text = json_text({"format": LIST_FORMAT, "hashes": sorted(hashes)})
    write_private(site / LIST_NAME, text, for_group=is_of_group(site), group_may=_GROUP_READS)
    return ForgetList(known.key, frozenset(hashes))


def leave_out_forgotten(
    schema: PartSchema, arrays: Mapping[str, np.ndarray], forgotten: ForgetList | None
) -> dict[str, np.ndarray]:
    """Return the arrays of a part without the users on the list."""
    if forgotten is None:
        return dict(arrays)
    return drop_users(schema, arrays, forgotten.is_on(ids_from_arrays(arrays)))


def drop_users(schema: PartSchema, arrays: Mapping[str, np.ndarray], dropped: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of a part without some users: their rows and all that belongs to them."""
    return take_users(schema, arrays, np.flatnonzero(~dropped)) if dropped.any() else dict(arrays)


def find_in_table(source: Path | bytes, users: UsersToForget) -> tuple[pa.Table | None, np.ndarray]:
    """Read a table with a column `user_id`, a file or its bytes; return it, and which rows are of users on the list.

    What has none of them is not read beyond its ids, and None is returned for it.
    """
    with _open_table(source) as file:
        ids, dropped = _find_rows(file, users)
        if not dropped.any():
            return None, dropped
        names = file.schema_arrow.names
        rest = file.read(columns=[name for name in names if name != USER_ID], use_threads=False)
    return rest.add_column(names.index(USER_ID), ids.schema.field(0), ids.column(0)), dropped


def count_in_table(path: Path, users: UsersToForget) -> int:
    """Return how many rows of a table are of users on the list."""
    with _open_table(path) as file:
        return int(_find_rows(file, users)[1].sum())


def _open_table(source: Path | bytes) -> pq.ParquetFile:
    file = pa.BufferReader(source) if isinstance(source, bytes) else source
    return pq.ParquetFile(file, page_checksum_verification=True)


def _find_rows(file: pq.ParquetFile, users: UsersToForget) -> tuple[pa.Table, np.ndarray]:
    """Return the column of ids, and which rows are of users on the list; those that tell of forgotten users are not."""
    ids = file.read(columns=[USER_ID], use_threads=False)  # tasks share the cores
    dropped = users.rows_on(ids.column(0))
    if CHANGE in file.schema_arrow.names and dropped.any():
        rows = np.flatnonzero(dropped)
        changes = file.read(columns=[CHANGE], use_threads=False).column(0).take(pa.array(rows))
        dropped[rows] = pc.not_equal(changes.cast(pa.string()), FORGOTTEN).to_numpy()
    return ids, dropped


def drop_rows(table: pa.Table, dropped: np.ndarray) -> pa.Table:
    """Return a table without some of its rows, in one piece: as `filter` does, but long stretches are copied whole."""
    if np.count_nonzero(dropped) * _ROWS_OF_STRETCH >= len(dropped):
        return table.filter(pa.array(~dropped))
    cuts = np.flatnonzero(np.diff(dropped, prepend=True, append=True)).reshape(-1, 2)  # where rows that stay begin, end
    return pa.concat_tables([table.slice(start, stop - start) for start, stop in cuts.tolist()]).combine_chunks()


def write_without(path: Path, table: pa.Table, dropped: np.ndarray) -> None:
    """Write a table without some of its rows."""
    left = drop_rows(table, dropped)
    write_parquet(path, left)


def _make_key(path: Path) -> bytes:
    """Return the key of an earlier attempt, or a new one in a file that only the site's own accounts can read."""
    if is_file(path) and len(found := read_file(path)) == _KEY_BYTES:
        return found
    key = secrets.token_bytes(_KEY_BYTES)
    write_private(path, key, for_group=is_of_group(path.parent), group_may=_GROUP_READS)
    return key


def tombstones_path(site: Path, night: dt.date) -> Path:
    """Return the list of users who were forgotten while a night was active."""
    return site / TOMBSTONES / f"date={night}.parquet"


@retried
def read_tombstones(path: Path) -> UserIds:
    """Return the users on a list, ascending."""
    return ids_from_values(decode_parquet(read_file(path)).column(USER_ID).combine_chunks())


def add_tombstones(site: Path, night: dt.date, ids: UserIds) -> None:
    """Put users on the list of a night."""
    path = tombstones_path(site, night)
    everyone = union([ids, *([read_tombstones(path)] if is_file(path) else [])])
    write_parquet(path, pa.table({USER_ID: everyone.to_arrow()}))


def remove_tombstones(site: Path, kept: set[dt.date]) -> None:
    """Remove the lists of nights that are no longer kept."""
    for path in list_paths(site / TOMBSTONES, "date=*.parquet"):
        if dt.date.fromisoformat(path.stem.removeprefix("date=")) not in kept:
            remove(path)

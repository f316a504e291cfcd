"""Encode qualifications as the columns of parquet files.

Each is written in the way that suits it: ids as a dictionary with one run a user, ranks and categories bit by bit,
scores and chances as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ammrank_dask.features.csr import unsigned_type
from ammrank_dask.kernels.parquet import pack_codes, pack_ranks, set_bits, write_runs, write_texts
from ammrank_dask.kernels.selection import group_rows
from ammrank_dask.storage.store.category_files import POSITION
from ammrank_dask.storage.store.ids import IntegerIds, UserIds, string_buffers
from ammrank_dask.storage.store.parquet_file import (
    EncodedColumn,
    RowGroup,
    all_present,
    packed_header,
    present_where,
    run_header,
)
from ammrank_dask.storage.store.qualifications import CHANGES, POLICY_SETS, Changes, QualificationRows
from ammrank_dask.storage.vocabulary import (
    CATEGORY,
    CHANCE,
    CHANGE,
    COLD,
    HELD_BY,
    INCLUSION,
    PROPENSITY,
    RANK,
    SCORE,
    USER_ID,
)

ROWS_OF_GROUP = 1 << 20
"""A group of rows is closed before it has more; what readers hold in memory at a time."""
_LONGEST_HEADER = 5


def encode_by_user(rows: QualificationRows, categories: Sequence[str]) -> list[RowGroup]:
    """Return the rows of a by_user file."""
    return [_encode_users(_of_users(rows, users), categories) for users in cut_users(rows.indptr)]


def _encode_users(rows: QualificationRows, categories: Sequence[str]) -> RowGroup:
    floats = {SCORE: rows.score, CHANCE: rows.chance, PROPENSITY: rows.propensity, INCLUSION: rows.inclusion}
    columns = [
        encode_users(rows.user_ids, rows.indptr),
        encode_ranks(rows.indptr),
        encode_codes(CATEGORY, rows.category, categories),
        *(encode_plain(name, values) for name, values in floats.items() if values is not None),
    ]
    if rows.held_by is not None:
        columns.append(encode_codes(HELD_BY, rows.held_by, POLICY_SETS, pa.int8()))
    if rows.is_cold is not None:
        columns.append(encode_flags(COLD, rows.is_cold, rows.indptr))
    return RowGroup(len(rows.category), columns)


def encode_delta(rows: QualificationRows, changes: Changes, by_user: Sequence[RowGroup]) -> list[RowGroup]:
    """Return the rows of a delta; where everything is new, they have the columns of the by_user file."""
    if changes.row is None:
        return [_encode_added(group) for group in by_user]
    groups = []
    for users in cut_users(changes.indptr):
        own = slice(int(changes.indptr[users.start]), int(changes.indptr[users.stop]))
        groups.append(_encode_changes(rows, changes, users, own, changes.row[own]))
    return groups


def _encode_added(group: RowGroup) -> RowGroup:
    """Return a group of rows that are all new."""
    column = {found.field.name: found for found in group.columns}
    added = encode_codes(CHANGE, np.full(group.n_rows, CHANGES.index("added"), np.int8), CHANGES, pa.int8())
    with_gaps = [
        replace(column[name], field=column[name].field.with_nullable(True), levels=all_present(group.n_rows))
        for name in (CATEGORY, RANK, SCORE, CHANCE)
        if name in column
    ]
    return RowGroup(group.n_rows, [column[USER_ID], with_gaps[0], added, *with_gaps[1:]])


def _encode_changes(rows: QualificationRows, changes: Changes, users: slice, own: slice, row: np.ndarray) -> RowGroup:
    """Return a group of rows of a delta; what is gone has neither rank nor score."""
    is_there, codes = row >= 0, changes.codes[own]
    at, has_name = row[is_there], codes >= 0
    ids = changes.user_ids.stretch(users.start, users.stop)
    indptr = changes.indptr[users.start : users.stop + 1]
    n_ranks = int(np.diff(rows.indptr).max(initial=1))
    columns = [
        encode_users(ids, indptr - indptr[0]),
        _with_gaps(encode_codes(CATEGORY, codes[has_name], changes.names), has_name),
        encode_codes(CHANGE, changes.change[own], CHANGES, pa.int8()),
        _with_gaps(_rank_column(n_ranks, pack(rows.rank[at] - 1, n_ranks)), is_there),
        _with_gaps(encode_plain(SCORE, rows.score[at]), is_there),
    ]
    if rows.chance is not None:
        columns.append(_with_gaps(encode_plain(CHANCE, rows.chance[at]), is_there))
    return RowGroup(len(row), columns)


def rows_by_category(rows: QualificationRows, n_categories: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return where each category begins, and the ids with the columns of the rows by category, those of each by user.

    Positions of users and ranks take less room where they are few.
    """
    nothing = np.empty(0, np.float32)
    given = {SCORE: rows.score, CHANCE: rows.chance, PROPENSITY: rows.propensity}
    values = tuple(nothing if column is None else column for column in given.values())
    n = len(rows.category)
    start = np.empty(n_categories + 1, np.int64)
    user = np.empty(n, unsigned_type(len(rows.user_ids)))
    rank = np.empty(n, np.uint8 if n_categories < 1 << 8 else np.uint16)
    grouped = tuple(np.empty_like(column) for column in values)
    group_rows(rows.indptr, rows.category, values, start, user, rank, grouped)
    columns = {name: grouped[i] for i, name in enumerate(given) if given[name] is not None}
    return start, {**rows.user_ids.to_arrays(), POSITION: user, SCORE: columns.pop(SCORE), RANK: rank, **columns}


def encode_category(user_ids: UserIds, columns: Mapping[str, np.ndarray]) -> list[RowGroup]:
    """Return the rows of a file of one category, in their order."""
    n_rows = len(user_ids)
    groups = []
    for start in range(0, max(1, n_rows), ROWS_OF_GROUP):
        own = slice(start, min(n_rows, start + ROWS_OF_GROUP))
        ids = user_ids.stretch(own.start, own.stop)
        encoded = [EncodedColumn(_field(USER_ID, ids.arrow_type), [_plain_ids(ids)])]
        for name, values in columns.items():
            part = values[own]
            encoded.append(_encode_given_ranks(part) if name == RANK else encode_plain(name, part))
        groups.append(RowGroup(own.stop - own.start, encoded))
    return groups


def cut_users(indptr: np.ndarray) -> list[slice]:
    """Return users in order, so many at a time that they have no more than `ROWS_OF_GROUP` rows, one at least.

    Examples
    --------
    >>> cut_users(np.array([0, 1 << 19, 1 << 20, 1 << 21, 1 << 22]))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    n_users = len(indptr) - 1
    cuts = [0]
    while cuts[-1] < n_users:
        last = int(np.searchsorted(indptr, indptr[cuts[-1]] + ROWS_OF_GROUP, side="right")) - 1
        cuts.append(max(cuts[-1] + 1, last))
    return [slice(start, stop) for start, stop in itertools.pairwise(cuts)] or [slice(0, 0)]


def encode_users(user_ids: UserIds, indptr: np.ndarray) -> EncodedColumn:
    """Return the ids of rows, of which users have one after the other: a dictionary of them, and one run each."""
    n_rows = np.diff(indptr)
    if not n_rows.all():
        user_ids = user_ids.take(np.flatnonzero(n_rows))
    n_users = len(user_ids)
    width = _width(n_users)
    n_bytes = -(-width // 8)
    runs = np.empty(n_users * (n_bytes + _LONGEST_HEADER), np.uint8)
    n_written = write_runs(indptr, n_bytes, runs)
    lowest, highest = _ends(user_ids) if n_users else (None, None)
    return EncodedColumn(
        _field(USER_ID, user_ids.arrow_type), [bytes([width]), runs[:n_written]], _plain_ids(user_ids), n_users,
        lowest=lowest, highest=highest,
    )  # fmt: skip


def encode_ranks(indptr: np.ndarray) -> EncodedColumn:
    """Return the ranks of rows, of which users have one after the other, from 1."""
    n_ranks, n_rows = int(np.diff(indptr).max(initial=1)), int(indptr[-1] - indptr[0])
    words = _words(n_rows, _width(n_ranks))
    pack_ranks(indptr, _width(n_ranks), words)
    return _rank_column(n_ranks, _packed(n_rows, _width(n_ranks), words))


def _encode_given_ranks(rank: np.ndarray) -> EncodedColumn:
    n_ranks = int(rank.max(initial=1))
    return _rank_column(n_ranks, pack(rank - 1, n_ranks))


def _rank_column(n_ranks: int, values: Sequence[Any]) -> EncodedColumn:
    return EncodedColumn(_field(RANK, pa.int16()), values, np.arange(1, n_ranks + 1, dtype=np.int32), n_ranks)


def encode_codes(
    name: str, codes: np.ndarray, texts: Sequence[str], index_type: pa.DataType | None = None
) -> EncodedColumn:
    """Return codes as the texts that they number."""
    field = _field(name, pa.dictionary(pa.int32() if index_type is None else index_type, pa.string()))
    return EncodedColumn(field, pack(codes, len(texts)), _plain_texts(pa.array(texts, pa.large_string())), len(texts))


def encode_plain(name: str, values: np.ndarray) -> EncodedColumn:
    """Return numbers as they are."""
    return EncodedColumn(_field(name, pa.from_numpy_dtype(values.dtype)), [np.ascontiguousarray(values)])


def encode_flags(name: str, flags: np.ndarray, indptr: np.ndarray) -> EncodedColumn:
    """Return booleans of users for all of their rows."""
    bits = np.zeros(_n_eights(int(indptr[-1])), np.uint8)
    set_bits(indptr, flags, bits)
    return EncodedColumn(_field(name, pa.bool_()), [bits])


def pack(codes: np.ndarray, n_codes: int) -> list[Any]:
    """Return codes below `n_codes` as they follow a dictionary: if all are equal one run, else bit by bit."""
    n, width = len(codes), _width(n_codes)
    if n and codes[0] == codes[-1] and (codes == codes[0]).all():
        return [bytes([width]), run_header(n), int(codes[0]).to_bytes(-(-width // 8), "little")]
    words = _words(n, width)
    pack_codes(codes, width, words)
    return _packed(n, width, words)


def _words(n: int, width: int) -> np.ndarray:
    return np.zeros(-(-_n_eights(n) * width // 4), np.uint32)


def _packed(n: int, width: int, words: np.ndarray) -> list[Any]:
    if not n:
        return [bytes([width])]
    return [bytes([width]), packed_header(_n_eights(n)), words.view(np.uint8)[: _n_eights(n) * width]]


def _n_eights(n: int) -> int:
    return -(-n // 8)


def _width(n_codes: int) -> int:
    """Return how many bits number so many codes."""
    return max(1, (n_codes - 1).bit_length())


def _with_gaps(column: EncodedColumn, is_there: np.ndarray) -> EncodedColumn:
    """Return a column that has values only where `is_there` says so."""
    levels = all_present(len(is_there))
    if not is_there.all():
        levels = present_where(np.packbits(is_there, bitorder="little").tobytes())
    return replace(column, field=column.field.with_nullable(True), levels=levels)


def _field(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _plain_ids(user_ids: UserIds) -> np.ndarray:
    return user_ids.values if isinstance(user_ids, IntegerIds) else _plain_texts(user_ids.to_arrow())


def _plain_texts(texts: pa.Array) -> np.ndarray:
    offsets, data = string_buffers(texts)
    plain = np.empty(4 * len(texts) + len(data), np.uint8)
    write_texts(offsets, data, plain)
    return plain


def _ends(user_ids: UserIds) -> tuple[bytes, bytes]:
    """Return the first and the last id, as plain values without a length."""
    if isinstance(user_ids, IntegerIds):
        return user_ids.values[0].tobytes(), user_ids.values[-1].tobytes()
    ids = user_ids.to_arrow()
    return ids[0].as_py().encode(), ids[-1].as_py().encode()


def _of_users(rows: QualificationRows, users: slice) -> QualificationRows:
    """Return the rows of some users."""
    if users.stop - users.start == len(rows.user_ids):
        return rows
    own = slice(int(rows.indptr[users.start]), int(rows.indptr[users.stop]))
    parts = {
        name: values[own]
        for name in ("category", "score", "chance", "propensity", "inclusion", "held_by")
        if (values := getattr(rows, name)) is not None
    }
    return replace(
        rows,
        user_ids=rows.user_ids.stretch(users.start, users.stop),
        indptr=rows.indptr[users.start : users.stop + 1] - own.start,
        is_cold=None if rows.is_cold is None else rows.is_cold[users],
        **parts,
    )

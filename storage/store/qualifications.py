"""The qualifications of a night: rows by user and rank, what changed since the night before, and both as tables."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ammrank_dask.storage.errors import BadInput, DamagedStore, cut
from ammrank_dask.storage.objects.folders import read_file
from ammrank_dask.storage.objects.parquet import decode_parquet
from ammrank_dask.storage.objects.retry import is_passing, retried
from ammrank_dask.storage.store.ids import UserIds, ids_from_values
from ammrank_dask.storage.store.parts import CheckedReader
from ammrank_dask.storage.store.registry import REBUILD
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.storage.vocabulary import (
    CATEGORY,
    CHANCE,
    CHANGE,
    COLD,
    HELD_BY,
    INCLUSION,
    POLICY_NAMES,
    PROPENSITY,
    RANK,
    SCORE,
    USER_ID,
    VALUE,
)

KIND = "qualifications"
BY_USER, BY_CATEGORY, DELTA = "by_user", "by_category", "delta"
CHANGES = ADDED, REMOVED, CHANGED, FORGOTTEN = "added", "removed", "changed", "forgotten"
"""What became of a pair since the night before; a user who was forgotten has one row without a category."""
POLICY_SETS = [
    " ".join(name for bit, name in enumerate(POLICY_NAMES) if number >> bit & 1)
    for number in range(2 ** len(POLICY_NAMES))
]
"""The text of `held_by`, by its bits: names with spaces between."""


@dataclass(frozen=True)
class QualificationRows:
    """Qualifications of users, best first: those of user u are `category[indptr[u]:indptr[u + 1]]`.

    `user_ids` ascend, `category` has codes, `score` is -inf for a category without planes. `chance` is None in runs
    without chances. In runs without exploration the others are None: `propensity` is how probable it was to draw the
    category for the user, 1 for what was not drawn; `inclusion` how probable it was that the user holds it, drawn or
    not; `held_by` has bit i if policy i of `POLICY_NAMES` assigns it where nothing is drawn. `is_cold` (n,) tells of
    each user whether nothing is known of their interests; it is written and not read again. `value` is the chance times
    the value of a click, None in runs without values.
    """

    user_ids: UserIds
    indptr: np.ndarray
    category: np.ndarray
    score: np.ndarray
    chance: np.ndarray | None = None
    propensity: np.ndarray | None = None
    inclusion: np.ndarray | None = None
    held_by: np.ndarray | None = None
    is_cold: np.ndarray | None = None
    value: np.ndarray | None = None

    @property
    def is_drawn(self) -> np.ndarray:
        """Whether exploration drew each qualification."""
        return np.zeros(len(self.category), bool) if self.propensity is None else self.propensity < 1

    @property
    def per_click(self) -> np.ndarray:
        """What a click on each qualification is worth: its value by its chance; 0 in runs without values."""
        if self.value is None or self.chance is None:
            return np.zeros(len(self.category))
        return np.divide(self.value, self.chance, out=np.zeros(len(self.category)), where=self.chance > 0)

    @property
    def user(self) -> np.ndarray:
        """Position of the user of every qualification."""
        return np.repeat(np.arange(len(self.user_ids)), np.diff(self.indptr))

    @functools.cached_property
    def row_ids(self) -> UserIds:
        """The user of every qualification."""
        return self.user_ids.take(np.repeat(np.arange(len(self.user_ids), dtype=np.int32), np.diff(self.indptr)))

    @functools.cached_property
    def rank(self) -> np.ndarray:
        """The rank of every qualification, from 1 (int16)."""
        first = np.repeat(self.indptr[:-1].astype(np.int32), np.diff(self.indptr))
        return (np.arange(1, len(self.category) + 1, dtype=np.int32) - first).astype(np.int16)


@dataclass(frozen=True)
class Changes:
    """Qualifications that are new, gone or changed: those of user u are from `indptr[u]` to `indptr[u + 1]`.

    `codes` number the `names` and are -1 for a user who was forgotten, and `change` numbers `CHANGES`. `row` is the row
    of the new qualification that it is about, -1 where there is none.
    """

    user_ids: UserIds
    indptr: np.ndarray
    codes: np.ndarray
    change: np.ndarray
    row: np.ndarray
    names: Sequence[str]

    @property
    def row_ids(self) -> UserIds:
        """The user of every row."""
        return self.user_ids.take(np.repeat(np.arange(len(self.user_ids)), np.diff(self.indptr)))


def by_user_table(rows: QualificationRows, categories: Sequence[str]) -> pa.Table:
    """Return qualifications as a by_user file has them."""
    columns = {
        USER_ID: rows.row_ids.to_arrow(),
        RANK: rows.rank,
        CATEGORY: _named(rows.category, categories, pa.int32()),
        SCORE: rows.score,
        CHANCE: rows.chance,
        VALUE: rows.value,
        PROPENSITY: rows.propensity,
        INCLUSION: rows.inclusion,
        HELD_BY: None if rows.held_by is None else _named(rows.held_by, POLICY_SETS, pa.int8()),
        COLD: None if rows.is_cold is None else np.repeat(rows.is_cold, np.diff(rows.indptr)),
    }
    return pa.table({name: values for name, values in columns.items() if values is not None})


def delta_table(rows: QualificationRows, changes: Changes) -> pa.Table:
    """Return changes as a delta has them; what is gone has neither rank nor score."""
    about = pa.array(changes.row, mask=changes.row < 0)
    values = {RANK: rows.rank, SCORE: rows.score, CHANCE: rows.chance}
    return pa.table(
        {
            USER_ID: changes.row_ids.to_arrow(),
            CATEGORY: _named(changes.codes, changes.names, pa.int32()),
            CHANGE: _named(changes.change, CHANGES, pa.int8()),
            **{name: pa.array(column).take(about) for name, column in values.items() if column is not None},
        }
    )


def _named(codes: np.ndarray, names: Sequence[str], index_type: pa.DataType) -> pa.DictionaryArray:
    """Return the names that codes number; a code below 0 has none."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, index_type, mask=codes < 0), pa.array(names, pa.string()))


def table_path(folder: Path, partition: int) -> Path:
    """Return the file of one partition."""
    return folder / f"part-{partition:05d}.parquet"


@dataclass(frozen=True)
class QualificationPart:
    """The by_user file of one partition with its size and checksum: small enough to travel with a task."""

    run: Path
    name: str
    listed: tuple[int, int]

    def read(self, categories: Sequence[str]) -> QualificationRows:
        """Read the file, checked; codes number the `categories`, names that are not there come after the last."""
        return rows_from_table(self.read_table(), categories)

    def read_table(self) -> pa.Table:
        """Read the file as it is, checked: rows by user and rank."""
        data = CheckedReader(self.run, {self.name: list(self.listed)})(self.name)
        return decode_parquet(data)


def qualification_parts(run: Run) -> list[QualificationPart]:
    """Return the by_user files of a night, in the order of the partitions."""
    files = run.files
    names = sorted(name for name in files if name.startswith(f"{BY_USER}/part-"))
    return [QualificationPart(run.path, name, (files[name][0], files[name][1])) for name in names]


def rows_from_table(table: pa.Table, categories: Sequence[str]) -> QualificationRows:
    """Return the rows of a by_user file, whose rows are by user and rank; a missing score is NaN."""
    starts = first_rows(table[USER_ID])
    names = table[CATEGORY].unify_dictionaries().combine_chunks()
    code_of = {name: code for code, name in enumerate(categories)}
    codes = [code_of.get(name, len(categories) + i) for i, name in enumerate(names.dictionary.to_pylist())]
    chance, propensity, inclusion, value = (
        table[name].to_numpy().astype(np.float64) if name in table.column_names else None
        for name in (CHANCE, PROPENSITY, INCLUSION, VALUE)
    )
    return QualificationRows(
        ids_from_values(table[USER_ID].combine_chunks().take(pa.array(starts))),
        np.append(starts, len(table)),
        np.array(codes, np.int64)[names.indices.to_numpy()],
        table[SCORE].to_numpy().astype(np.float64),
        chance,
        propensity,
        inclusion,
        _read_policy_sets(table) if HELD_BY in table.column_names else None,
        value=value,
    )


def _read_policy_sets(table: pa.Table) -> np.ndarray:
    """Return sets of policies as bits; a policy that this version does not know has none."""
    sets = table[HELD_BY].unify_dictionaries().combine_chunks()
    bits = [
        sum(1 << POLICY_NAMES.index(name) for name in text.split() if name in POLICY_NAMES)
        for text in sets.dictionary.to_pylist()
    ]
    return np.array(bits, np.uint8)[sets.indices.to_numpy()]


def first_rows(row_ids: pa.ChunkedArray) -> np.ndarray:
    """Return the first row of every user, rows being by user."""
    user_ids = row_ids.combine_chunks()
    is_first = np.ones(len(user_ids), bool)
    if len(user_ids) > 1:
        is_first[1:] = pc.not_equal(user_ids[1:], user_ids[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(is_first)


@retried
def read_ranks(path: Path, categories: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the category code and the rank of every qualification of a by_user file, both int64."""
    table = read_checked(path, columns=[CATEGORY, RANK])
    names = table[CATEGORY].to_pandas().astype(pd.CategoricalDtype(list(categories)))
    return names.cat.codes.to_numpy(np.int64), table[RANK].to_numpy().astype(np.int64)


@retried
def read_frame(paths: Iterable[Path], categories: Sequence[str], users: UserIds | None = None) -> pd.DataFrame:
    """Return by_user files as one table, by user and rank; only of `users` if given, whose ids are of the same type."""
    paths = list(paths)
    if users is not None and len(users):
        kind = "int64" if pa.types.is_integer(columns_of(paths[0]).field(USER_ID).type) else "string"
        if users.kind != kind:
            raise BadInput(f"the user ids of these qualifications are of type {kind}, got {users.kind}; convert them")
    chosen = None if users is None else pc.field(USER_ID).isin(users.to_arrow())
    tables = [read_checked(path, filters=chosen) for path in paths]
    frame = pa.concat_tables(tables).unify_dictionaries().to_pandas()
    frame[CATEGORY] = frame[CATEGORY].astype(pd.CategoricalDtype(list(categories)))
    return frame.sort_values([USER_ID, RANK], ignore_index=True)


def columns_of(path: Path) -> pa.Schema:
    """Return the columns of a parquet file of a night."""
    return pq.read_schema(pa.BufferReader(read_file(path)))


def read_checked(path: Path, **options: Any) -> pa.Table:
    """Read some of a parquet file of a night and check its pages: a damaged value looks like any other."""
    try:
        return decode_parquet(read_file(path), **options)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError) or is_passing(error):
            raise
        raise DamagedStore(f"{path} is not what was written ({cut(str(error))}); {REBUILD}") from None

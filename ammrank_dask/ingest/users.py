"""Ingest users.parquet: age and gender of every user, placed in partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ammrank_dask.ingest.exchange import Slices
from ammrank_dask.ingest.routing import number_users
from ammrank_dask.ingest.table_ingest import (
    VALUES_SHOWN,
    CollectedPart,
    DecodedRows,
    LakeTable,
    TableReader,
    describe_problems,
    most_frequent,
)
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import QuarantineRows, write_quarantine
from ammrank_dask.storage.lake.files import FileFacts
from ammrank_dask.storage.lake.people import DUPLICATE_USER, PeopleMapping, decode_people
from ammrank_dask.storage.site.forgotten import ForgetList
from ammrank_dask.storage.store.ids import empty_ids
from ammrank_dask.storage.store.registry import USERS, PartSchema


def users_table(files: Sequence[FileFacts], mapping: PeopleMapping, run: Path, digest: str, scratch: Path) -> LakeTable:
    """Return how the demographics of all users are ingested, once for each content of users.parquet."""
    filled = [file for file in files if sum(file.rows)] or list(files)
    kinds = sorted({file.id_kind for file in filled})
    if len(kinds) != 1:
        raise BadInput(f"the users table has user ids of types {' and '.join(kinds)}; convert one of its files")
    folder = scratch / f"users-{digest}"
    rows = TableRows(files)
    reader = UserReader(kinds[0], mapping, rows, folder)
    counts = {"rows": rows.total}
    return LakeTable(reader, files, run, digest, folder, quarantine="users.parquet", config={}, counts=counts)


class TableRows:
    """Numbers the rows of a table of several files, in the order of the files."""

    def __init__(self, files: Sequence[FileFacts]) -> None:
        self.names = [file.name for file in files]
        self.starts = np.concatenate([[0], np.cumsum([sum(file.rows) for file in files])]).astype(np.int64)
        self.total = int(self.starts[-1])

    def number(self, name: str, row: int) -> int:
        """Return the number of a row of a file."""
        return int(self.starts[self.names.index(name)]) + row

    def by_file(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Return by file which of the row numbers are in it."""
        files = np.searchsorted(self.starts, numbers, side="right") - 1
        return {self.names[file]: np.flatnonzero(files == file) for file in np.unique(files)}


@dataclass
class UserCounts:
    """What could not be understood in the users table: rows with a problem, counts by reason, values; no user ids."""

    n_bad: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    values: Counter[str] = field(default_factory=Counter)

    def add(self, other: UserCounts) -> None:
        """Add the counts of another block."""
        self.n_bad += other.n_bad
        self.counts.update(other.counts)
        self.values.update(other.values)

    def to_json(self, n_values: int) -> dict[str, Any]:
        """Return the counts as the manifest keeps them, with so many of the values."""
        values = most_frequent(self.values, n_values)
        return {"bad_rows": self.n_bad, "counts": dict(sorted(self.counts.items())), "unknown_values": values}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> UserCounts:
        """Return the counts that `to_json` wrote."""
        return cls(content["bad_rows"], Counter(content["counts"]), Counter(content["unknown_values"]))


@dataclass(frozen=True)
class UserReader(TableReader):
    """Decodes the users table, and sorts the users of a partition by id.

    Of a user who is there twice the first row counts. The others are bad rows: a quarantine file of them goes to the
    scratch folder.
    """

    stage: ClassVar[str] = "users"
    schema: ClassVar[PartSchema] = USERS
    unit: ClassVar[str] = "users"
    remedy: ClassVar[str] = "map the values under `genders` in ammrank.yaml or correct the table"

    id_kind: str
    mapping: PeopleMapping
    rows: TableRows
    folder: Path

    def start(self, content: Mapping[str, Any] | None = None) -> UserCounts:
        """Return counts of nothing, or those whose JSON is given."""
        return UserCounts() if content is None else UserCounts.from_json(content)

    def columns(self, file: FileFacts) -> tuple[Sequence[str], Sequence[str]]:
        """Return the columns to read, none as a dictionary."""
        return self.mapping.columns, ()

    def decode(
        self, table: pa.Table, file: FileFacts, row: int, counts: UserCounts, bad_rows: QuarantineRows
    ) -> DecodedRows:
        """Return row number, age and gender of the users of a batch."""
        people = decode_people(table, self.mapping, where=file.path)
        is_bad = np.zeros(table.num_rows, bool)
        for reason, positions, values in people.problems:
            is_bad[positions] = True
            counts.counts[reason] += len(positions)
            counts.values.update(value for value in values.to_pylist() if value is not None)
            user = people.id_text.take(pa.array(positions))
            bad_rows.add_rows(reason, file.name, positions + row, user, values)
        counts.n_bad += int(is_bad.sum())
        first = self.rows.number(file.name, row)
        columns = {"row": np.arange(first, first + table.num_rows), "age": people.age, "gender": people.gender}
        return DecodedRows(people.ids, people.user, people.has_id, columns)

    def collect(self, slices: Slices, partition: int, forgotten: ForgetList | None) -> CollectedPart:
        """Return the part, with counts of its bad rows."""
        if sum(len(part["user"]) for part in slices):
            ids, user = number_users(slices, self.id_kind)
        else:
            ids, user = empty_ids(self.id_kind), np.empty(0, np.int64)
        columns = {
            name: slices.joined[name] if slices else np.empty(0, dtype)
            for name, dtype in (("row", np.int64), ("age", np.int16), ("gender", np.int8))
        }
        first = np.full(len(ids), len(user), np.int64)
        np.minimum.at(first, user, np.arange(len(user)))
        is_again = np.ones(len(user), bool)
        is_again[first] = False
        again = np.flatnonzero(is_again)
        bad_rows = QuarantineRows()
        for name, positions in self.rows.by_file(columns["row"][again]).items():
            chosen = again[positions]
            text = ids.take(user[chosen]).to_arrow().cast(pa.string())
            in_file = columns["row"][chosen] - self.rows.number(name, 0)
            bad_rows.add_rows(DUPLICATE_USER, name, in_file, text, pa.nulls(len(chosen), pa.string()))
        write_quarantine(self.folder / f"quarantine-part-{partition:05d}.parquet", bad_rows)
        counts = UserCounts(len(again), Counter({DUPLICATE_USER: len(again)} if len(again) else {}))
        arrays = {**ids.to_arrays(), "age": columns["age"][first], "gender": columns["gender"][first]}
        return CollectedPart(len(ids), arrays, counts.to_json(VALUES_SHOWN))

    def describe(self, counts: UserCounts) -> str:
        """Describe how many users cannot be read, and why."""
        reasons = describe_problems(counts.counts, [counts.values])
        why = f" ({reasons})" if reasons else ""
        return f"{counts.n_bad:,} of {self.rows.total:,} users cannot be read fully{why}"

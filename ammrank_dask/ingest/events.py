"""Ingest days of events: readers slice the log by partition, partitions aggregate it to the day's interest state."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ammrank_dask.ingest.event_rows import WORD_BITS, EventRows, EventWords
from ammrank_dask.ingest.exchange import Sections, Slices
from ammrank_dask.ingest.interest_state import end_of
from ammrank_dask.ingest.routing import list_ids
from ammrank_dask.ingest.scan import FileRows, find_same_rows
from ammrank_dask.ingest.table_ingest import (
    VALUES_SHOWN,
    CollectedPart,
    DecodedRows,
    LakeTable,
    TableReader,
    describe_problems,
    most_frequent,
)
from ammrank_dask.kernels.event_rows import pack_events
from ammrank_dask.kernels.interest import count_codes, hash_rows, largest_counts
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import (
    CAPPED,
    COUNTED,
    KEPT,
    QUARANTINED,
    EventBatch,
    EventMapping,
    QuarantineRows,
    decode_events,
)
from ammrank_dask.storage.lake.files import BATCH_ROWS, FileFacts
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.site.forgotten import ForgetList
from ammrank_dask.storage.store.ids import IntegerIds
from ammrank_dask.storage.store.registry import DAY, PartSchema
from ammrank_dask.storage.vocabulary import DAY_US
from ammrank_dask.user_hash import N_BUCKETS, PARTITION_SALT, hash_ids

EVENT_SALT = 0x646179726F777331

N_HEAVIEST = 10
"""Users whose events are counted apart: how much of a day a few ids are."""


@dataclass(frozen=True)
class DayPlan:
    """A day to ingest: its files, and the run that will hold its partials."""

    date: dt.date
    files: tuple[FileFacts, ...]
    run: Path
    digest: str
    table_version: int | None = None
    """The version of the table that the files were listed from; None for plain folders."""
    max_events: int | None = None
    """The most events of a user and group that count; None for all."""
    refuses_duplicates: bool = False
    """Whether rows that are in two files are refused."""

    @property
    def id_kind(self) -> str:
        """The type of the day's user ids. Files without rows do not count."""
        kinds = sorted({file.id_kind for file in self.files if sum(file.rows)})
        if len(kinds) > 1:
            raise BadInput(
                f"the files of {self.date} have user ids of types {' and '.join(kinds)}; convert one of them"
            )
        return kinds[0] if kinds else "int64"


@dataclass
class DayFacts:
    """What reading found in a day or a block of it: counts only, no user ids.

    `clicks` counts the used clicks by category code, and `clickers` the users who made them, for the shares that
    reports compare with. `groups` are the used events by group code, `users` those who made them, and `heaviest` the
    events of the users with the most, from the largest. `buckets` are a digest of the events before any cap, whatever
    their order and their files: of each bucket of users the sum of their hashes. `files` are the rows of each file of a
    day that is searched for duplicates: only blocks have them, a day does not keep them.
    """

    rows: int = 0
    late: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    clicks: Counter[int] = field(default_factory=Counter)
    values: dict[str, Counter[str]] = field(default_factory=dict)
    buckets: np.ndarray = field(default_factory=lambda: np.zeros(N_BUCKETS, np.uint64))
    clickers: Counter[int] = field(default_factory=Counter)
    groups: Counter[int] = field(default_factory=Counter)
    users: int = 0
    heaviest: list[int] = field(default_factory=list)
    files: dict[str, FileRows] = field(default_factory=dict)

    def add(self, other: DayFacts) -> None:
        """Add the counts of another block."""
        self.rows += other.rows
        self.late += other.late
        self.counts.update(other.counts)
        self.clicks.update(other.clicks)
        for reason, values in other.values.items():
            self.values.setdefault(reason, Counter()).update(values)
        self.buckets += other.buckets
        self.clickers.update(other.clickers)
        self.groups.update(other.groups)
        self.users += other.users
        self.heaviest = sorted([*self.heaviest, *other.heaviest], reverse=True)[:N_HEAVIEST]
        for path, rows in other.files.items():
            self.add_file(path, rows)

    def add_file(self, path: str, rows: FileRows) -> None:
        """Add rows of a file."""
        self.files[path] = self.files.get(path, FileRows()) + rows

    @property
    def n_bad(self) -> int:
        """Rows that could not be used."""
        return sum(self.counts[reason] for reason in QUARANTINED.values())

    def describe(self, what: str) -> str:
        """Return how many of `what` cannot be used, and why, as a phrase without user ids."""
        bad = {name: count for name, count in self.counts.items() if name in QUARANTINED.values()}
        detail = f" ({describe_problems(bad, self.values.values())})" if self.n_bad else ""
        return f"{self.n_bad:,} of {self.rows:,} {what} cannot be used{detail}"

    def to_json(self, n_values: int = VALUES_SHOWN) -> dict[str, Any]:
        """Return the counts as the manifest keeps them: without zeros, with at most `n_values` unknown values."""
        return {
            "events": self.rows,
            "late": self.late,
            "counts": {name: count for name, count in sorted(self.counts.items()) if count},
            "unknown_values": {
                reason: most_frequent(values, n_values) for reason, values in sorted(self.values.items())
            },
            "clicks": _listed(self.clicks),
            "buckets": "".join(f"{bucket:016x}" for bucket in self.buckets.tolist()),
            "clickers": _listed(self.clickers),
            "groups": _listed(self.groups),
            "users": self.users,
            "heaviest": self.heaviest,
            **({"files": self.files} if self.files else {}),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> DayFacts:
        """Return the counts that `to_json` wrote."""
        values = {reason: Counter(counts) for reason, counts in content["unknown_values"].items()}
        clicks, clickers, groups = (Counter(dict(content[name])) for name in ("clicks", "clickers", "groups"))
        buckets = np.frombuffer(bytes.fromhex(content["buckets"]), ">u8").astype(np.uint64)
        return cls(
            content["events"], content["late"], Counter(content["counts"]), clicks, values, buckets, clickers, groups,
            content["users"], content["heaviest"],
            {path: FileRows(*rows) for path, rows in content.get("files", {}).items()},
        )  # fmt: skip


def _listed(counts: Mapping[int, int]) -> list[list[int]]:
    return [list(entry) for entry in sorted(counts.items())]


def day_table(day: DayPlan, mapping: EventMapping, scratch: Path, *, alpha: float) -> LakeTable:
    """Return how a day of events is ingested."""
    by_file = day.refuses_duplicates and sum(any(file.rows) for file in day.files) > 1
    reader = DayReader(day.date, day.id_kind, mapping, alpha, day.max_events, by_file)
    reader.words  # noqa: B018  (refuses more cells and days than a word has room for, before anything is read)
    # Ignored groups are not part of a day's digest, but of how its blocks were counted.
    how = digest_of([sorted(mapping.ignored_groups), BATCH_ROWS, N_BUCKETS, by_file])
    folder = scratch / f"ingest-{day.date}-{day.digest}-{how}"
    return LakeTable(
        reader,
        day.files,
        day.run,
        day.digest,
        folder,
        quarantine=f"date={day.date}.parquet",
        config={"date": str(day.date)},
        counts={} if day.table_version is None else {"table_version": day.table_version},
    )


@dataclass(frozen=True)
class DayReader(TableReader):
    """Decodes the events of a day, and aggregates those of a partition to the interest state of the day."""

    stage: ClassVar[str] = "ingest"
    schema: ClassVar[PartSchema] = DAY
    unit: ClassVar[str] = "events"
    remedy: ClassVar[str] = "map the values in ammrank.yaml or correct the log"

    date: dt.date
    id_kind: str
    mapping: EventMapping
    alpha: float
    max_events: int | None = None
    by_file: bool = False
    """Whether files with the same rows are searched for, and refused."""

    def start(self, content: Mapping[str, Any] | None = None) -> DayFacts:
        """Return counts of nothing, or those whose JSON is given."""
        return DayFacts() if content is None else DayFacts.from_json(content)

    def columns(self, file: FileFacts) -> tuple[Sequence[str], Sequence[str]]:
        """Return the columns to read; string ids are read as dictionaries too: each distinct id is hashed once."""
        columns = self.mapping.columns
        ids = (columns.user_id,) if file.id_kind == "string" else ()
        names = (columns.user_id, columns.group, columns.category, columns.timestamp)
        return names, (columns.group, columns.category, *ids)

    def decode(
        self, table: pa.Table, file: FileFacts, row: int, counts: DayFacts, bad_rows: QuarantineRows
    ) -> DecodedRows:
        """Return cells and times of the events of a batch."""
        batch = decode_events(table, self.mapping, end=end_of(self.date), where=file.path)
        _count_rows(counts, batch, table, self.mapping)
        bad_rows.add(batch.status, table, self.mapping.columns, file.name, row)
        if self.by_file:
            counts.add_file(file.path, _digest_batch(batch))
        rows = {"cell": batch.cell, "time": batch.time}
        return DecodedRows(batch.ids, batch.user, batch.status == KEPT, rows)

    def check(self, counts: DayFacts) -> None:
        """Refuse a day with the same rows in two files; forget what tells the rows of files."""
        files, counts.files = counts.files, {}
        same = find_same_rows(files)
        if same is not None:
            file, others = same
            names = others[0] if len(others) == 1 else f"the {len(others):,} files from {others[0]} to {others[-1]}"
            raise BadInput(
                f"{file} of {self.date} has the same rows as {names} of that day, as a compaction leaves that did not"
                " end; remove the one or the other, or set lake.duplicates: keep to count both"
            )

    @property
    def words(self) -> EventWords:
        """How events are one word on their way to the partitions."""
        late_days, n_cells = self.mapping.late_days, self.mapping.n_cells
        first_time = max(0, end_of(self.date) - (late_days + 1) * DAY_US)
        words = EventWords.between(first_time, end_of(self.date), n_cells)
        if words is None:
            most = (1 << WORD_BITS - (n_cells - 1).bit_length()) // DAY_US - 1
            raise BadInput(
                f"late_days must be at most {most:,} with {n_cells:,} pairs of an event group and a category, got"
                f" {late_days:,}"
            )
        return words

    def slice(self, rows: DecodedRows, n_partitions: int) -> Sections:
        """Return the events to pass on, sorted by partition, as rows of two words; times of the others may be any."""
        words, keep = self.words, rows.keep
        lists: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if rows.user is None:
            assert isinstance(rows.ids, IntegerIds)
            numbers = rows.ids.values.view(np.uint64)
            partition = np.empty(len(numbers), np.uint32)
        else:
            local, id_partition, lists = list_ids(rows.ids, rows.user[keep], n_partitions)
            numbers, partition = local[rows.user].astype(np.uint64), id_partition[rows.user].astype(np.uint32)
        starts, packed = np.zeros(n_partitions + 1, np.int64), np.empty((np.count_nonzero(keep), 2), np.uint64)
        with np.errstate(over="ignore"):  # plain numpy (without the compiler) warns where hashes wrap around
            pack_events(
                numbers, rows.user is not None, np.uint64(PARTITION_SALT), keep, rows.columns["cell"],
                rows.columns["time"], words.first_time, np.uint64(words.time_bits), starts.copy(), partition, starts,
                packed,
            )  # fmt: skip
        return {"event": (packed.reshape(-1).view(np.int64), 2 * starts), **lists}

    def collect(self, slices: Slices, partition: int, forgotten: ForgetList | None) -> CollectedPart:
        """Return the partial, with counts and a digest of its events.

        Users who are to be forgotten do not count: the digest is the same when they are gone from the lake.
        """
        n_cells = self.mapping.n_cells
        events = EventRows.from_slices(slices, self.id_kind, self.words)
        used = events if self.max_events is None else events.cap(self.max_events, self.n_categories)
        n_capped = len(events.rows) - len(used.rows)
        left_out = np.zeros(0, bool) if forgotten is None else forgotten.is_on(events.user_ids)
        if left_out.any():  # of no user a cap leaves nothing, so they are those of both
            events, used = (some.select(~left_out[some.user]) for some in (events, used))
        buckets, by_cell = events.digest(EVENT_SALT, n_cells)
        if n_capped:
            _, by_cell = used.digest(EVENT_SALT, n_cells)
        state, by_user = used.aggregate(end=end_of(self.date), alpha=self.alpha, n_cells=n_cells)
        counts = sum_counts(by_cell, count_cells(state.cell, n_cells), by_user, self.n_categories, self.click_group)
        counts.buckets = buckets
        counts.counts.update({CAPPED: n_capped, "kept": -n_capped})
        return CollectedPart(len(state.user_ids), state.to_arrays(), counts.to_json())

    @property
    def click_group(self) -> int:
        """Code of the group of clicks."""
        return self.mapping.click_group

    @property
    def n_categories(self) -> int:
        """Number of ranked categories."""
        return len(self.mapping.taxonomy.categories)

    def describe(self, counts: DayFacts) -> str:
        """Describe how many events cannot be used, and why."""
        return counts.describe(f"events of {self.date}")


def _count_rows(counts: DayFacts, batch: EventBatch, table: pa.Table, mapping: EventMapping) -> None:
    counts.rows += len(batch.status)
    counts.late += batch.late
    by_status = np.bincount(batch.status, minlength=16)
    counts.counts["kept"] += int(by_status[KEPT])
    for code, name in {**COUNTED, **QUARANTINED}.items():
        counts.counts[name] += int(by_status[code])
    for code, column in QuarantineRows.value_columns(mapping.columns).items():
        if by_status[code]:
            values = table.column(column).filter(pa.array(batch.status == code)).value_counts().to_pylist()
            counter = counts.values.setdefault(QUARANTINED[code], Counter())
            counter.update({str(entry["values"]): entry["counts"] for entry in values})


def _digest_batch(batch: EventBatch) -> FileRows:
    is_used = batch.status == KEPT
    user_hash = hash_ids(batch.ids, EVENT_SALT)
    with np.errstate(over="ignore"):  # plain numpy (without the compiler) warns where hashes wrap around
        digest = hash_rows(user_hash if batch.user is None else user_hash[batch.user], batch.cell, batch.time, is_used)
    return FileRows(int(digest), int(np.count_nonzero(is_used)), len(is_used))


def count_cells(cells: np.ndarray, n_cells: int) -> np.ndarray:
    """Return how often each cell is there."""
    counts = np.zeros(n_cells, np.int64)
    count_codes(cells, counts)
    return counts


def sum_counts(
    by_cell: np.ndarray, users_by_cell: np.ndarray, by_user: np.ndarray, n_categories: int, click_group: int
) -> DayFacts:
    """Return the counts of a day from the events and the users of every cell, and the events of every user."""
    heaviest = np.empty(N_HEAVIEST, np.int64)
    largest_counts(by_user, heaviest)
    groups = np.add.reduceat(by_cell, np.arange(0, len(by_cell), n_categories))
    clicked = slice(click_group * n_categories, (click_group + 1) * n_categories)
    return DayFacts(
        clicks=_counter(by_cell[clicked]),
        clickers=_counter(users_by_cell[clicked]),
        groups=_counter(groups),
        users=int(np.count_nonzero(by_user)),
        heaviest=[int(count) for count in heaviest if count],
    )


def _counter(counts: np.ndarray) -> Counter[int]:
    return Counter({int(code): int(counts[code]) for code in np.flatnonzero(counts)})

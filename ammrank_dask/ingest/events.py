"""Ingest days of events: readers slice the log by partition, partitions aggregate it to the day's interest state."""

from __future__ import annotations

import datetime as dt
import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from distributed import Client

from ammrank_dask.ingest.interest_state import InterestState, aggregate_events, cell_dtype, end_of
from ammrank_dask.ingest.routing import Intake, number_users, slice_by_partition
from ammrank_dask.monitor.meters import measure, measure_each
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import COUNTED, KEPT, QUARANTINED, EventBatch, EventMapping, decode_events
from ammrank_dask.storage.lake.files import BATCH_ROWS, FileFacts, FileSlice, plan_blocks, read_batches, scan_file
from ammrank_dask.storage.lake.quarantine import QuarantineRows, collect_quarantine, write_quarantine
from ammrank_dask.storage.site.forgotten import leave_out_forgotten, load_forgotten
from ammrank_dask.storage.store.atomic import digest_of
from ammrank_dask.storage.store.exchange import ExchangeBlock, read_slices, write_slices
from ammrank_dask.storage.store.parts import write_part
from ammrank_dask.storage.store.registry import DAY
from ammrank_dask.storage.store.runs import Run, finish_run, is_finished, open_run, start_run
from ammrank_dask.tasks import Progress, run_tasks, silent

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 1 << 25
"""Rows of several days that are in the exchange at a time when history is filled in: bounds the scratch space."""
VALUES_SHOWN = 20
"""Distinct unknown values that a day's facts list, the most frequent first."""
VALUES_COUNTED = 10_000
"""Distinct unknown values of a block that are passed on to be counted."""


@dataclass(frozen=True)
class DayPlan:
    """A day to ingest: its files, and the run that will hold its partials."""

    date: dt.date
    files: tuple[FileFacts, ...]
    run: Path
    digest: str

    @property
    def n_rows(self) -> int:
        """Rows of all files."""
        return sum(sum(file.rows) for file in self.files)

    @property
    def id_kind(self) -> str:
        """The type of the day's user ids; files without rows have no say."""
        kinds = sorted({file.id_kind for file in self.files if sum(file.rows)})
        if len(kinds) > 1:
            raise BadInput(
                f"the files of {self.date} have user ids of types {' and '.join(kinds)}; convert one of them"
            )
        return kinds[0] if kinds else "int64"


@dataclass
class DayFacts:
    """What reading found in a day or a block of it: counts only, no user ids.

    `clicks` counts the used clicks by category code, for the shares that reports compare with.
    """

    rows: int = 0
    late: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    clicks: Counter[int] = field(default_factory=Counter)
    values: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, other: DayFacts) -> None:
        """Add the counts of another block."""
        self.rows += other.rows
        self.late += other.late
        self.counts.update(other.counts)
        self.clicks.update(other.clicks)
        for reason, values in other.values.items():
            self.values.setdefault(reason, Counter()).update(values)

    @property
    def quarantined(self) -> int:
        """Rows that could not be used."""
        return sum(self.counts[reason] for reason in QUARANTINED.values())

    def describe(self, what: str) -> str:
        """Return how many of `what` cannot be used, and why, as a phrase without user ids."""
        reasons = [name for name in self.counts if name in QUARANTINED.values() and self.counts[name]]
        shown = ", ".join(f"{self.counts[name]:,} {name}" for name in sorted(reasons, key=lambda n: -self.counts[n]))
        unknown = ", ".join(repr(value) for found in self.values.values() for value, _ in found.most_common(3))
        detail = f" ({shown}{'; values ' + unknown if unknown else ''})" if shown else ""
        return f"{self.quarantined:,} of {self.rows:,} {what} cannot be used{detail}"

    def to_json(self, n_values: int = VALUES_SHOWN) -> dict[str, Any]:
        """Return the counts as the manifest keeps them, without zeros, with so many unknown values."""
        values = {
            reason: dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:n_values])
            for reason, found in sorted(self.values.items())
        }
        counts = {name: count for name, count in sorted(self.counts.items()) if count}
        clicks = [list(entry) for entry in sorted(self.clicks.items())]
        return {
            "events": self.rows,
            "late": self.late,
            "counts": counts,
            "unknown_values": values,
            "clicks": clicks,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> DayFacts:
        """Return the counts that `to_json` wrote."""
        values = {reason: Counter(found) for reason, found in content["unknown_values"].items()}
        clicks = Counter({code: count for code, count in content["clicks"]})
        return cls(content["events"], content["late"], Counter(content["counts"]), clicks, values)


def scan_files(
    client: Client,
    files: Sequence[tuple[Path, str]],
    columns: Sequence[str],
    known: Mapping[str, FileFacts],
    *,
    progress: Progress = silent,
) -> list[FileFacts]:
    """Return (path, name) files with their digests; files in `known` with the same size and time are not read."""
    scanned: dict[str, FileFacts] = {}
    for path, _ in files:
        status = path.stat()
        before = known.get(str(path))
        if before is not None and (before.size, before.mtime_ns) == (status.st_size, status.st_mtime_ns):
            scanned[str(path)] = before
    wanted = [(str(path), name, tuple(columns)) for path, name in files if str(path) not in scanned]
    for facts in run_tasks(client, "scan", scan_file, wanted, progress=progress):
        scanned[facts.path] = facts
    return [scanned[str(path)] for path, _ in files]


def ingest_days(
    client: Client,
    days: Sequence[DayPlan],
    mapping: EventMapping,
    intake: Intake,
    *,
    alpha: float,
    progress: Progress = silent,
) -> list[Run]:
    """Write the partials of days; a day that is finished is not done again, nor is a partition of an unfinished one.

    Raises BadInput, with the day unfinished, when too many of its rows cannot be used.
    """
    waiting = [day for day in days if not is_finished(day.run)]
    while waiting:
        batch = [waiting.pop(0)]
        rows = batch[0].n_rows
        while waiting and rows + waiting[0].n_rows <= ROWS_AT_ONCE:
            rows += waiting[0].n_rows
            batch.append(waiting.pop(0))
        _ingest_batch(client, batch, mapping, intake, alpha, progress)
    return [open_run(day.run, DAY.kind) for day in days]


def _ingest_batch(
    client: Client, days: Sequence[DayPlan], mapping: EventMapping, intake: Intake, alpha: float, progress: Progress
) -> None:
    # Ignored groups are not part of a day's digest, but of how its blocks were counted.
    how = digest_of([sorted(mapping.ignored_groups), BATCH_ROWS])
    folders = {day.date: intake.scratch / f"ingest-{day.date}-{day.digest}-{how}" for day in days}
    blocks: dict[dt.date, list[ExchangeBlock]] = {}
    readings = []
    for day in days:
        folders[day.date].mkdir(parents=True, exist_ok=True)
        pieces = plan_blocks(day.files, BATCH_ROWS)
        blocks[day.date] = [ExchangeBlock(folders[day.date], number) for number in range(len(pieces))]
        readings += [
            (piece, mapping, end_of(day.date), intake.n_partitions, block)
            for piece, block in zip(pieces, blocks[day.date], strict=True)
        ]
    rows = [sum(piece.n_rows for piece in pieces) for pieces, *_ in readings]
    run_tasks(client, "ingest-read", read_block, readings, progress=progress, units=rows, unit="events")

    facts = {day.date: _check_day(day, blocks[day.date], intake) for day in days}
    collections = []
    for day in days:
        slices = [path for block in blocks[day.date] for path in block.slice_paths()]
        collections += [
            (
                day.run,
                partition,
                intake.n_partitions,
                slices,
                day.id_kind,
                end_of(day.date),
                alpha,
                mapping.n_cells,
                intake.forgotten,
            )
            for partition in start_run(day.run, intake.n_partitions)
        ]
    run_tasks(client, "ingest-collect", collect_partition, collections, progress=progress, units=int)
    for day in days:
        finish_run(
            day.run,
            DAY.kind,
            day.digest,
            intake.n_partitions,
            config={**intake.settings, "date": str(day.date), "id_kind": day.id_kind},
            inputs=[file.identity for file in day.files],
            facts=facts[day.date].to_json(),
        )
        shutil.rmtree(folders[day.date], ignore_errors=True)
        logger.info("ingested %s: %s", day.date, facts[day.date].describe("events"))


def _check_day(day: DayPlan, blocks: Sequence[ExchangeBlock], intake: Intake) -> DayFacts:
    """Add up what the blocks of a day found, set the bad rows aside, and refuse a day with too many."""
    facts = DayFacts()
    for block in blocks:
        facts.add(DayFacts.from_json(block.read_facts()))
    place = intake.quarantine / f"date={day.date}.parquet"
    collect_quarantine([block.quarantine_path for block in blocks], place, intake.forgotten)
    if facts.quarantined > intake.max_quarantine_share * facts.rows:
        raise BadInput(
            f"{facts.describe(f'events of {day.date}')}, more than quarantine.max_share"
            f" {intake.max_quarantine_share:.2%}: see {place}, then map the values in ammrank.yaml or correct the log"
        )
    return facts


def read_block(
    pieces: Sequence[FileSlice], mapping: EventMapping, end: int, n_partitions: int, block: ExchangeBlock
) -> None:
    """Read a block of a day's log and write its rows, sliced by partition, to scratch files.

    A block that is whole is not read again.
    """
    if block.is_whole():
        return
    columns = mapping.columns
    names = (columns.user_id, columns.group, columns.category, columns.timestamp)
    facts = DayFacts()
    bad_rows = QuarantineRows()
    n_batches = 0
    for piece in pieces:
        # String ids are read as dictionaries too: each distinct id is hashed once.
        dictionaries = (
            columns.group,
            columns.category,
            *([columns.user_id] if piece.file.id_kind == "string" else []),
        )
        for row, table in measure_each("read", read_batches(piece, names, dictionaries)):
            with measure("decode"):
                batch = decode_events(table, mapping, end=end, where=piece.file.path)
            _count(facts, batch, table, mapping)
            bad_rows.add(batch.status, table, columns, piece.file.name, row)
            rows = {"cell": batch.cell.astype(cell_dtype(mapping.n_cells)), "time": batch.time}
            sections = slice_by_partition(batch.ids, batch.user, batch.status == KEPT, rows, n_partitions)
            with measure("write"):
                write_slices(block.slice_path(n_batches), n_partitions, sections)
            n_batches += 1
    write_quarantine(block.quarantine_path, bad_rows)
    block.finish(n_batches, facts.to_json(VALUES_COUNTED))


def _count(facts: DayFacts, batch: EventBatch, table: pa.Table, mapping: EventMapping) -> None:
    facts.rows += len(batch.status)
    facts.late += batch.late
    found = np.bincount(batch.status, minlength=16)
    facts.counts["kept"] += int(found[KEPT])
    for code, name in {**COUNTED, **QUARANTINED}.items():
        facts.counts[name] += int(found[code])
    n_categories = len(mapping.taxonomy.categories)
    first = mapping.click_group * n_categories
    is_click = (batch.status == KEPT) & (batch.cell >= first) & (batch.cell < first + n_categories)
    clicks = np.bincount(batch.cell[is_click] - first)
    facts.clicks.update({int(code): int(clicks[code]) for code in np.flatnonzero(clicks)})
    for code, column in QuarantineRows.value_columns(mapping.columns).items():
        if found[code]:
            values = table.column(column).filter(pa.array(batch.status == code)).value_counts().to_pylist()
            counter = facts.values.setdefault(QUARANTINED[code], Counter())
            counter.update({str(entry["values"]): entry["counts"] for entry in values})


def collect_partition(
    run: Path, partition: int, n_partitions: int, slices: Sequence[Path], id_kind: str, end: int, alpha: float,
    n_cells: int, forgotten: Path | None = None,
) -> int:  # fmt: skip
    """Aggregate the slices of one partition of a day, in file order, write the partial and return its users."""
    with measure("read"):
        found = read_slices(slices, partition, n_partitions)
    with measure("kernel"):
        state = aggregate_slices(found, id_kind=id_kind, end=end, alpha=alpha, n_cells=n_cells)
    with measure("write"):
        write_part(run, partition, DAY, leave_out_forgotten(DAY, state.to_arrays(), load_forgotten(forgotten)))
    return len(state.user_ids)


def aggregate_slices(
    slices: Sequence[Mapping[str, np.ndarray]], *, id_kind: str, end: int, alpha: float, n_cells: int
) -> InterestState:
    """Return the interest state of the rows of one partition."""
    if not sum(len(part["user"]) for part in slices):
        return InterestState.empty(id_kind, n_cells)
    cell = np.concatenate([part["cell"] for part in slices])
    time = np.concatenate([part["time"] for part in slices])
    ids, user = number_users(slices, id_kind)
    return aggregate_events(ids, user, cell, time, end=end, alpha=alpha, n_cells=n_cells)

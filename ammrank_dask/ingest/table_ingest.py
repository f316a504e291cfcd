"""Take tables of the lake into runs: read blocks, slice them by partition, collect partitions, check, finish."""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from distributed import Client

from ammrank_dask.ingest.exchange import ExchangeBlock, Sections, Slices, read_slices, write_slices
from ammrank_dask.ingest.routing import slice_by_partition
from ammrank_dask.monitor.performance import measure, measure_each
from ammrank_dask.runtime.run_in_work import begin_runs
from ammrank_dask.runtime.tasks import Call, Progress, run_together, silent
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import QuarantineRows, collect_quarantine, write_quarantine
from ammrank_dask.storage.lake.files import BATCH_ROWS, FileFacts, FileSlice, plan_blocks, read_batches
from ammrank_dask.storage.lake.paths import FOLDER
from ammrank_dask.storage.objects.atomic import begin_sync
from ammrank_dask.storage.objects.folders import list_paths, make_folder, remove
from ammrank_dask.storage.site.forgotten import ForgetList, leave_out_forgotten, load_forgotten
from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.storage.store.parts import WrittenPart, write_part
from ammrank_dask.storage.store.registry import PartSchema
from ammrank_dask.storage.store.runs import Run, RunInWork, finish_run, is_finished, open_run

logger = logging.getLogger(__name__)

VALUES_SHOWN = 20
"""Distinct unknown values that a manifest lists, the most frequent first."""
ROWS_READ_A_TASK, ROWS_A_TASK = 1 << 21, 1 << 20
"""Rows that a task reads, of as many blocks, and collects, of as many partitions as have them."""
ROWS_AT_ONCE = 1 << 25
"""Rows of several days that are in the exchange at a time when history is filled in: bounds the scratch space."""
ROWS_OF_A_PART = 1 << 14
"""Rows that take as long as the files of a part."""
ROWS_OF_A_BLOCK = 1 << 16
"""Rows that take as long as the files of a block."""
VALUES_COUNTED = 10_000
"""Distinct unknown values of a block that are passed on to be counted."""


@dataclass(frozen=True)
class IngestSettings:
    """What ingest writes, where, and the share of bad rows at which it stops.

    `settings` is what the content depends on, as manifests keep it; `scratch` may be emptied between two commands.
    `forgotten` is the folder with the list of users who are to be left out, when there is one.
    """

    n_partitions: int
    scratch: Path
    quarantine: Path
    max_quarantine_share: float
    settings: Mapping[str, Any]
    forgotten: Path | None = None

    @property
    def fetched(self) -> Path:
        """The folder with the bytes of remote files that were fetched for their digests."""
        return self.scratch / FOLDER


class DecodedRows(NamedTuple):
    """Rows on their way to the partitions, as `slice_by_partition` takes them."""

    ids: UserIds
    user: np.ndarray | None
    keep: np.ndarray
    columns: Mapping[str, np.ndarray]


class CollectedPart(NamedTuple):
    """A partition as it is written: its users, its arrays, and the JSON of the counts that only it can tell."""

    n_users: int
    arrays: Mapping[str, np.ndarray]
    counts: Mapping[str, Any]


class TableReader(ABC):
    """What is particular to a table: how batches are decoded and counted, and what a partition is made of.

    Readers travel to the workers. `counts` are an object of the reader's own: they add up, and know their JSON.
    """

    stage: ClassVar[str]
    schema: ClassVar[PartSchema]
    unit: ClassVar[str]
    """What a row is."""
    remedy: ClassVar[str]
    """What to do about rows that cannot be used."""
    id_kind: str

    @abstractmethod
    def start(self, content: Mapping[str, Any] | None = None) -> Any:
        """Return counts of nothing, or those whose JSON is given."""

    @abstractmethod
    def columns(self, file: FileFacts) -> tuple[Sequence[str], Sequence[str]]:
        """Return the columns to read, and those of them to read as dictionaries."""

    @abstractmethod
    def decode(self, table: pa.Table, file: FileFacts, row: int, counts: Any, bad_rows: QuarantineRows) -> DecodedRows:
        """Return the rows of a batch that begins at `row` of a file; add to counts and bad rows."""

    def slice(self, rows: DecodedRows, n_partitions: int) -> Sections:
        """Return the rows to pass on, sorted by partition, as sections of the exchange."""
        return slice_by_partition(rows.ids, rows.user, rows.keep, rows.columns, n_partitions)

    @abstractmethod
    def collect(self, slices: Slices, partition: int, forgotten: ForgetList | None) -> CollectedPart:
        """Return one partition from the slices in file order.

        Users who are to be forgotten may be among them: they are left out of the arrays afterwards.
        """

    def check(self, counts: Any) -> None:  # noqa: B027
        """Raise BadInput when rows that can be used must not be, by the counts of the whole table."""

    @abstractmethod
    def describe(self, counts: Any) -> str:
        """Describe how many rows cannot be used, and why."""


@dataclass(frozen=True)
class LakeTable:
    """Files of the lake that become one run, and the scratch folder through which their rows pass."""

    reader: TableReader
    files: Sequence[FileFacts]
    run: Path
    digest: str
    folder: Path
    quarantine: str
    """Name of the file with the bad rows."""
    config: Mapping[str, Any]
    counts: Mapping[str, Any]
    """What the manifest says of the table beside the settings and the counts."""

    @property
    def n_rows(self) -> int:
        """Rows of all files."""
        return sum(sum(file.rows) for file in self.files)


def ingest_tables(
    client: Client, tables: Sequence[LakeTable], settings: IngestSettings, *, progress: Progress = silent
) -> list[Run]:
    """Return the runs of tables of one kind, written where they are not. What an earlier attempt left whole stays.

    Raises BadInput, with the table's run unfinished, when too many of its rows cannot be used.
    """
    for batch in _batches([table for table in tables if not is_finished(table.run)]):
        blocks = _read_tables(client, batch, settings, progress)
        runs = begin_runs(client, [table.run for table in batch], settings.n_partitions)
        with contextlib.ExitStack() as stack:
            for run in runs:
                stack.enter_context(run)
            _collect_tables(client, batch, blocks, runs, settings, progress)
            for table, own, run in zip(batch, blocks, runs, strict=True):
                counts = _count_table(table, own, run, settings)
                finish_run(
                    table.run,
                    table.reader.schema.kind,
                    table.digest,
                    run.parts,
                    config={**settings.settings, **table.config, "id_kind": table.reader.id_kind},
                    inputs=[file.identity for file in table.files],
                    counts={**table.counts, **counts.to_json(VALUES_SHOWN)},
                )
                remove(table.folder)
                logger.info("ingested: %s", table.reader.describe(counts))
    return [open_run(table.run, table.reader.schema.kind) for table in tables]


def _batches(tables: Sequence[LakeTable]) -> list[list[LakeTable]]:
    """Return the tables in batches of at most `ROWS_AT_ONCE` rows, or of one table."""
    batches: list[list[LakeTable]] = []
    rows = 0
    for table in tables:
        if not batches or rows + table.n_rows > ROWS_AT_ONCE:
            batches.append([])
            rows = 0
        batches[-1].append(table)
        rows += table.n_rows
    return batches


def _read_tables(
    client: Client, tables: Sequence[LakeTable], settings: IngestSettings, progress: Progress
) -> list[list[ExchangeBlock]]:
    """Read tables into the exchange; return the blocks of each."""
    calls: list[Call] = []
    blocks: list[list[ExchangeBlock]] = []
    rows: list[int] = []
    for table in tables:
        make_folder(table.folder)
        pieces = plan_blocks(table.files, BATCH_ROWS)
        blocks.append([ExchangeBlock(table.folder, number) for number in range(len(pieces))])
        calls += [
            (read_block, (piece, table.reader, settings.n_partitions, block, settings.fetched))
            for piece, block in zip(pieces, blocks[-1], strict=True)
        ]
        rows += [sum(one.n_rows for one in piece) for piece in pieces]
    weights = [(ROWS_OF_A_BLOCK + n) / ROWS_READ_A_TASK for n in rows]
    kind = tables[0].reader
    run_together(client, f"{kind.stage}-read", calls, weights=weights, progress=progress, units=rows, unit=kind.unit)
    return blocks


def _collect_tables(
    client: Client,
    tables: Sequence[LakeTable],
    blocks: Sequence[Sequence[ExchangeBlock]],
    runs: Sequence[RunInWork],
    settings: IngestSettings,
    progress: Progress,
) -> None:
    """Write the partitions of tables that were read."""
    n_partitions = settings.n_partitions
    calls: list[Call] = []
    weights: list[float] = []
    places: list[tuple[RunInWork, int]] = []
    for table, own, run in zip(tables, blocks, runs, strict=True):
        slices = [path for block in own for path in block.slice_paths()]
        calls += [
            (collect_partition, (table.reader, table.run, partition, n_partitions, slices, settings.forgotten))
            for partition in run.todo
        ]
        places += [(run, partition) for partition in run.todo]
        weights += [(ROWS_OF_A_PART + table.n_rows / n_partitions) / ROWS_A_TASK] * len(run.todo)

    def keep(number: int, part: WrittenPart) -> None:
        run, partition = places[number]
        run.add(partition, part)

    run_together(
        client,
        f"{tables[0].reader.stage}-collect",
        calls,
        weights=weights,
        progress=progress,
        units=attrgetter("facts.rows"),
        unit="users" if len(tables) == 1 else "user-days",  # a user has events on many days
        on_result=keep,
    )


def _count_table(table: LakeTable, blocks: Sequence[ExchangeBlock], run: RunInWork, settings: IngestSettings) -> Any:
    """Add up the counts of a table, set its bad rows aside, and refuse too many of them, or what the reader refuses."""
    reader = table.reader
    counts = reader.start()
    for content in [*(block.read_facts() for block in blocks), *run.counts]:
        counts.add(reader.start(content))
    path = settings.quarantine / table.quarantine
    collect_quarantine(list_paths(table.folder, "quarantine-*.parquet"), path, settings.forgotten)
    share = settings.max_quarantine_share
    if counts.n_bad > share * table.n_rows:
        raise BadInput(
            f"{reader.describe(counts)}, more than quarantine.max_share {share:.2%}: see {path}, then {reader.remedy}"
        )
    reader.check(counts)
    return counts


def read_block(
    pieces: Sequence[FileSlice],
    reader: TableReader,
    n_partitions: int,
    block: ExchangeBlock,
    fetched: Path | None = None,
) -> None:
    """Read a block of a table and write its rows, sliced by partition, to scratch files.

    A block that is whole is not read again. `fetched` has the bytes of remote files, fetched for their digests.
    """
    if block.is_whole(n_partitions):
        return
    counts = reader.start()
    bad_rows = QuarantineRows()
    checksums: list[int] = []
    n_rows = 0
    batches: list[Sections] = []
    for piece in pieces:
        names, dictionaries = reader.columns(piece.file)
        for row, table in measure_each("read", read_batches(piece, names, dictionaries, fetched)):
            with measure("decode"):
                rows = reader.decode(table, piece.file, row, counts, bad_rows)
            if batches and n_rows + table.num_rows > BATCH_ROWS:
                with measure("write"):
                    checksums.append(write_slices(block.slice_path(len(checksums)), n_partitions, batches))
                n_rows, batches = 0, []
            batches.append(reader.slice(rows, n_partitions))
            n_rows += table.num_rows
    with measure("write"):
        checksums.append(write_slices(block.slice_path(len(checksums)), n_partitions, batches))
    write_quarantine(block.quarantine_path, bad_rows)
    block.finish(checksums, counts.to_json(VALUES_COUNTED))


def collect_partition(
    reader: TableReader,
    run: Path,
    partition: int,
    n_partitions: int,
    slices: Sequence[Path],
    forgotten: Path | None,
) -> WrittenPart:
    """Collect the slices of one partition, in file order, write the part and return what is known of it."""
    with measure("read"):
        parts = read_slices(slices, partition, n_partitions)
    with measure("kernel"):
        listed = load_forgotten(forgotten)
        part = reader.collect(parts, partition, listed)
    with measure("write"):
        written = write_part(run, partition, reader.schema, leave_out_forgotten(reader.schema, part.arrays, listed))
        begin_sync(run / written.name)  # while others are made: the end of the run waits for all
    return WrittenPart(written, part.counts)


def describe_problems(counts: Mapping[str, int], values: Iterable[Counter[str]]) -> str:
    """Return reasons and the most frequent unknown values as a phrase.

    Examples
    --------
    >>> describe_problems({"bad age": 2, "bad gender": 1200}, [Counter({"x": 3, "y": 1})])
    "1,200 bad gender, 2 bad age; values 'x', 'y'"
    """
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in Counter(counts).most_common() if count)
    unknown = ", ".join(repr(value) for counter in values for value, _ in counter.most_common(3))
    return f"{reasons}; values {unknown}" if unknown else reasons


def most_frequent(values: Counter[str], n: int) -> dict[str, int]:
    """Return the n most frequent values with their counts; equal counts by value."""
    return dict(sorted(values.items(), key=lambda item: (-item[1], item[0]))[:n])

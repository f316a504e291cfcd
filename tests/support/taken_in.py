"""Take a day of events or the users table of a lake in without a cluster: the tasks of ingest, one after another.

day = take_day(lake, late_days=1)            # what `ammrank.yaml` would say differently
day.counts, day.bad_rows, day.state
people = take_users(lake)
people.counts, people.bad_rows, people.people
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from lakes import date_of, event_folder, lake_config

from ammrank_dask.ingest.events import DayPlan, DayReader
from ammrank_dask.ingest.exchange import ExchangeBlock, read_slices
from ammrank_dask.ingest.interest_state import InterestState
from ammrank_dask.ingest.table_ingest import TableReader, read_block
from ammrank_dask.ingest.users import TableRows, UserReader
from ammrank_dask.storage.lake.events import collect_quarantine
from ammrank_dask.storage.lake.files import BATCH_ROWS, FileFacts, plan_blocks, scan_file
from ammrank_dask.storage.lake.listing import list_files
from ammrank_dask.storage.lake.taxonomy import read_taxonomy
from ammrank_dask.storage.store.ids import ids_from_arrays
from ammrank_dask.workflows.session.config import check_config
from ammrank_dask.workflows.session.settings import event_mapping, people_mapping

ALL = 0
"""The only partition."""


@dataclass(frozen=True)
class TakenDay:
    """What became of the events of a day."""

    counts: dict[str, int]
    late: int
    bad_rows: list[dict[str, Any]]
    """The quarantine, in the order of files and rows."""
    state: dict[tuple[Any, int], tuple[float, int]]
    """Intensity and last time by user and cell."""


@dataclass(frozen=True)
class TakenUsers:
    """What became of the rows of the users table."""

    counts: dict[str, int]
    n_bad: int
    unknown_values: dict[str, int]
    bad_rows: list[dict[str, Any]]
    people: dict[Any, tuple[int, int]]
    """Age and gender by user, -1 where unknown."""


def take_day(lake: Path, day: int = 0, /, **config: Any) -> TakenDay:
    """Read the files of a day and aggregate all of them as one partition."""
    settings = check_config(lake_config(lake, **config), "test")
    mapping = event_mapping(settings, read_taxonomy(lake / "taxonomy.csv", settings.taxonomy.level))
    columns = mapping.columns
    names = (columns.user_id, columns.group, columns.category, columns.timestamp)
    files = _scan(event_folder(lake, day), list_files(event_folder(lake, day)), names)
    plan = DayPlan(date_of(day), files, Path("unused"), "unused")
    with tempfile.TemporaryDirectory() as scratch:
        reader = DayReader(plan.date, plan.id_kind, mapping, settings.alpha)
        counts, arrays, bad_rows = _take(files, reader, Path(scratch))
    state = InterestState.from_arrays(arrays)
    users = state.user_ids.to_arrow().to_pylist()
    cells = {
        (user, int(state.cell[i])): (float(state.intensity[i]), int(state.last[i]))
        for position, user in enumerate(users)
        for i in range(state.indptr[position], state.indptr[position + 1])
    }
    return TakenDay({name: n for name, n in counts.counts.items() if n}, counts.late, bad_rows, cells)


def take_users(lake: Path, /, **config: Any) -> TakenUsers:
    """Read users.parquet and collect all users in one partition."""
    mapping = people_mapping(check_config(lake_config(lake, **config), "test"))
    files = _scan(lake, [lake / "users.parquet"], mapping.columns)
    with tempfile.TemporaryDirectory() as scratch:
        reader = UserReader(files[0].id_kind, mapping, TableRows(files), Path(scratch))
        counts, arrays, bad_rows = _take(files, reader, Path(scratch))
    ids = ids_from_arrays(arrays).to_arrow().to_pylist()
    people = dict(zip(ids, zip(arrays["age"].tolist(), arrays["gender"].tolist(), strict=True), strict=True))
    return TakenUsers(dict(counts.counts), counts.n_bad, dict(counts.values), bad_rows, people)


def _scan(folder: Path, paths: Sequence[Path], columns: Sequence[str]) -> tuple[FileFacts, ...]:
    return tuple(scan_file(str(path), path.relative_to(folder).as_posix(), columns) for path in paths)


def _take(files: Sequence[FileFacts], reader: TableReader, scratch: Path) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Return the counts, the arrays of the one partition, and the bad rows."""
    blocks = []
    for number, pieces in enumerate(plan_blocks(files, BATCH_ROWS)):
        blocks.append(ExchangeBlock(scratch, number))
        read_block(pieces, reader, 1, blocks[-1])
    slices = read_slices([path for block in blocks for path in block.slice_paths()], ALL, 1)
    part = reader.collect(slices, ALL, None)
    counts = reader.start()
    for content in [*(block.read_facts() for block in blocks), part.counts]:
        counts.add(reader.start(content))
    collect_quarantine(sorted(scratch.glob("quarantine-*.parquet")), scratch / "bad.parquet")
    bad_rows = pq.read_table(scratch / "bad.parquet").to_pylist() if (scratch / "bad.parquet").exists() else []
    return counts, part.arrays, bad_rows

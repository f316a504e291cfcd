"""Find and read a lake's parquet files: the user's own logs, never changed."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.store.atomic import digest_file, digest_of, read_json, write_json
from ammrank_dask.storage.store.ids import is_string

BATCH_ROWS = 1 << 20
"""Rows that a reader holds at a time."""


@dataclass(frozen=True)
class EventColumns:
    """The names of the event columns in this lake, and how its timestamps are meant."""

    user_id: str = "user_id"
    group: str = "group"
    category: str = "category"
    timestamp: str = "timestamp"
    timezone: str | None = None
    timestamp_unit: str | None = None


@dataclass(frozen=True)
class FileFacts:
    """A parquet file as it was when it was scanned."""

    path: str
    name: str
    size: int
    mtime_ns: int
    digest: str
    rows: tuple[int, ...]
    id_kind: str

    @property
    def identity(self) -> list[Any]:
        """What of the file enters digests: content, not place or time."""
        return [self.name, self.size, self.digest]


def open_parquet(path: Path | str, **options: Any) -> pq.ParquetFile:
    """Open a parquet file or say in one sentence why it cannot be read."""
    try:
        return pq.ParquetFile(path, **options)
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{path} is not a readable parquet file ({reason}); replace or remove it") from None


def count_file_rows(path: Path) -> int | None:
    """Return the rows of a parquet file, from its footer alone; None when it cannot be read."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError):
        return None


def scan_file(path: str, name: str, columns: Sequence[str]) -> FileFacts:
    """Read the footer of a file, check that it has the columns, and hash its bytes."""
    status = os.stat(path)
    with open_parquet(path) as file:
        schema = file.schema_arrow
        require_columns(schema, columns, path)
        metadata = file.metadata
        rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return FileFacts(
        path,
        name,
        status.st_size,
        status.st_mtime_ns,
        digest_file(Path(path)),
        rows,
        # Of which type no ids are does not matter: writers of empty files often do not know it.
        id_kind_of(schema, columns[0], path) if sum(rows) else "int64",
    )


def require_columns(schema: pa.Schema, columns: Sequence[str], path: str) -> None:
    """Raise unless the file has each of the columns once."""
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise BadInput(
            f"{path} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, schema.names))}."
            " Map the names under `columns` in ammrank.yaml"
        )
    repeated = [name for name in columns if schema.names.count(name) > 1]
    if repeated:
        raise BadInput(f"{path} has more than one column {', '.join(map(repr, repeated))}; keep one")


def id_kind_of(schema: pa.Schema, column: str, path: str) -> str:
    """Return `int64` or `string`, the type of the user ids of a file."""
    found = schema.field(column).type
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_integer(found):
        return "int64"
    if is_string(found):
        return "string"
    raise BadInput(f"{path}: user ids in {column!r} must be int64 or string, found {found}; convert the column")


@dataclass(frozen=True)
class FileSlice:
    """Some row groups of a file, the unit that a reader task takes."""

    file: FileFacts
    row_groups: tuple[int, ...]

    @property
    def first_row(self) -> int:
        """Row of the file with which the slice starts."""
        return sum(self.file.rows[: self.row_groups[0]]) if self.row_groups else 0

    @property
    def n_rows(self) -> int:
        """Rows of the slice."""
        return sum(self.file.rows[group] for group in self.row_groups)


def plan_blocks(files: Sequence[FileFacts], block_rows: int) -> list[list[FileSlice]]:
    """Cut files into blocks of about `block_rows` rows, in file order; small files share a block."""
    blocks: list[list[FileSlice]] = []
    room = 0
    for file in files:
        for group, rows in enumerate(file.rows):
            if not rows:
                continue
            if room < rows or not blocks:
                blocks.append([])
                room = max(block_rows, rows)
            room -= rows
            block = blocks[-1]
            if block and block[-1].file is file:
                block[-1] = FileSlice(file, (*block[-1].row_groups, group))
            else:
                block.append(FileSlice(file, (group,)))
    return blocks


def read_batches(
    piece: FileSlice, columns: Sequence[str], dictionaries: Sequence[str]
) -> Iterator[tuple[int, pa.Table]]:
    """Yield (row of the file, table of at most BATCH_ROWS rows); `dictionaries` are read without copying strings."""
    path = piece.file.path
    _refuse_changed(piece.file)
    with open_parquet(path, read_dictionary=list(dictionaries)) as file:
        row = piece.first_row
        try:
            for batch in file.iter_batches(
                BATCH_ROWS, row_groups=list(piece.row_groups), columns=list(columns), use_threads=False
            ):
                yield row, pa.Table.from_batches([batch])
                row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            _refuse_changed(piece.file)
            reason = str(error).splitlines()[0]
            raise BadInput(f"{path} cannot be decoded ({reason}); replace or remove it") from None
    _refuse_changed(piece.file)


def _refuse_changed(file: FileFacts) -> None:
    try:
        status = os.stat(file.path)
        is_same = (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns)
    except FileNotFoundError:
        is_same = False
    if not is_same:
        raise BadInput(f"{file.path} changed while it was read; run the command again when it is complete")


def day_digest(settings: str, files: Sequence[FileFacts]) -> str:
    """Return the digest of a day's input: the settings that matter and the content of its files."""
    return digest_of([settings, [file.identity for file in files]])


def missing_days(days: Mapping[dt.date, Any], first: dt.date, last: dt.date) -> list[dt.date]:
    """Return the dates between two dates, both included, that have no folder."""
    span = (last - first).days + 1
    return [day for day in (first + dt.timedelta(n) for n in range(span)) if day not in days]


def load_scanned(path: Path, columns: Sequence[str]) -> dict[str, FileFacts]:
    """Return the files that were scanned before for the same columns, by path.

    None when the list is not there or cannot be read: it is only a cache, and the files are scanned again.
    """
    if not path.is_file():
        return {}
    try:
        content = read_json(path)
        files = [FileFacts(**{**entry, "rows": tuple(entry["rows"])}) for entry in content["files"]]
        return {file.path: file for file in files} if content["columns"] == list(columns) else {}
    except (DamagedStore, KeyError, TypeError):
        return {}


def save_scanned(path: Path, columns: Sequence[str], files: Iterable[FileFacts]) -> None:
    """Remember scanned files, so that a night does not hash the history again."""
    listed = [asdict(file) for file in sorted(files, key=lambda file: file.path)]
    write_json(path, {"columns": list(columns), "files": listed})

"""Find and read a lake's parquet files: the user's own logs, never changed."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ammrank_dask.storage.errors import BadInput, DamagedStore, StoreFailed, cut
from ammrank_dask.storage.lake.paths import (
    READ_BYTES,
    LakePath,
    RemotePath,
    current_status,
    digest_open_file,
    etag_of,
    find_fetched,
    keep_fetched,
    open_file,
    parse_path,
    say_failures,
    store_failure,
)
from ammrank_dask.storage.objects.atomic import digest_of, read_json, write_json
from ammrank_dask.storage.objects.folders import require_regular
from ammrank_dask.storage.objects.retry import is_passing, retried
from ammrank_dask.storage.store.ids import is_string

BATCH_ROWS = 1 << 20
"""Rows that a reader holds at a time."""
MAP_NAMES = "Map the names under `columns` in ammrank.yaml"


LONGEST_VALUE = 1 << 10
"""Bytes of the longest id or name. A UUID has 36, an e-mail address at most 254, an encrypted id a few hundred; and a
batch of values of this length still fits into one string array."""
LARGE_CHUNK = 64 << 20
"""Bytes of a column of a row group from which on the header of its dictionary is looked at before it is decoded."""
_BESIDE_VALUE = 64
"""Bytes that a value takes in a column beside its own, generously: length, levels, its share of page headers."""
_HEADER_BYTES = 64
_VARINT = rb"([\x80-\xff]*[\x00-\x7f])"
_DICTIONARY_HEADER = re.compile(
    rb"\x15\x04\x15" + _VARINT + rb"\x15" + _VARINT + rb"(?:\x4c|\x15" + _VARINT + rb"\x3c)\x15" + _VARINT, re.DOTALL
)
"""PageHeader of a dictionary in Thrift's compact protocol: type, bytes, compressed bytes, CRC if any, values."""

ReadAt = Callable[[int, int], bytes]
"""Returns so many bytes of a file (second) from an offset on (first)."""


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
    etag: str = ""
    """What an object store calls the version of the bytes; empty for a file of this machine."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """Columns that are not in the file but in the names of its folders, with the value of all its rows."""

    @property
    def identity(self) -> list[Any]:
        """What of the file enters digests: content, not place or time."""
        return [self.name, self.size, self.digest]


@retried
def open_parquet(path: LakePath | str, *, source: Any = None, **options: Any) -> pq.ParquetFile:
    """Open a parquet file, or one that is open already, or say in one sentence why it cannot be read."""
    lake_path = parse_path(path) if isinstance(path, str) else path
    options["page_checksum_verification"] = True  # of pages that have one: a damaged value would look like any other
    try:
        if source is None and isinstance(lake_path, Path):
            require_regular(lake_path)
            return pq.ParquetFile(lake_path, **options)
        # Of a remote file the columns of a row group are fetched together: a request costs more than bytes.
        is_remote = not isinstance(lake_path, Path)
        return pq.ParquetFile(lake_path.open() if source is None else source, pre_buffer=is_remote, **options)
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        if is_passing(error):
            raise
        failure = store_failure(lake_path, error)
        if failure is not None:
            raise failure from None
        raise BadInput(f"{path} is not a readable parquet file ({cut(str(error))}); replace or remove it") from None


@retried
def count_file_rows(path: LakePath) -> int | None:
    """Return the rows of a parquet file, from its footer alone; None when it cannot be read."""
    try:
        with open_file(path) as file:
            return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError, StoreFailed) as error:
        if is_passing(error):
            raise
        return None


@retried
def scan_file(
    path: str,
    name: str,
    columns: Sequence[str],
    constants: Mapping[str, str] | None = None,
    status: tuple[int, int] | None = None,
    fetched: Path | None = None,
    *,
    with_digest: bool = True,
) -> FileFacts:
    """Read the footer of a file, check that it has the columns, and hash its bytes, unless told not to.

    The first column holds user ids. `constants` are columns that are not in the file, with the value of all its rows.
    `status` are size and time of a remote file as it was listed, and `fetched` is the folder to keep its bytes in.
    """
    lake_path = parse_path(path)
    made = dict(constants or {})
    try:
        size, time = current_status(lake_path) if status is None else status
        with say_failures(lake_path), open_file(lake_path) as source:
            etag = etag_of(source)
            size = size if isinstance(lake_path, Path) else source.size()
            if fetched is None:
                schema, rows = _read_footer(lake_path, source, columns, made)
                digest = digest_open_file(source) if with_digest else ""
            else:
                digest, copy = keep_fetched(source, fetched)
                with open(copy, "rb") as copied:
                    schema, rows = _read_footer(lake_path, copied, columns, made)
                if size > READ_BYTES:  # it took several requests
                    _refuse_other(path, etag)
    except FileNotFoundError:
        raise _vanished(path) from None
    except PermissionError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}; check the file and its permissions") from None
    # Of which type no ids are does not matter: writers of empty files often do not know it.
    id_kind = id_kind_of(schema, columns[0], path) if sum(rows) else "int64"
    return FileFacts(path, name, size, time, digest, rows, id_kind, etag, made)


def _read_footer(
    path: LakePath, source: Any, columns: Sequence[str], made: Mapping[str, str]
) -> tuple[pa.Schema, tuple[int, ...]]:
    """Return the schema and the rows of each row group of an open file; refuse one without the columns."""
    with open_parquet(path, source=source) as file:
        require_columns(file.schema_arrow, [column for column in columns if column not in made], str(path))
        metadata = file.metadata
        return file.schema_arrow, tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))


def _vanished(path: str) -> BadInput:
    return BadInput(
        f"{path} is gone since the lake was listed (compacted, or cleaned by its writer); run the command again"
    )


def require_columns(schema: pa.Schema, columns: Sequence[str], path: str, remedy: str = MAP_NAMES) -> None:
    """Raise unless the file has each of the columns once, with single values; `remedy` is for one of another name."""
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise BadInput(
            f"{path} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, schema.names))}."
            f" {remedy}"
        )
    repeated = [name for name in columns if schema.names.count(name) > 1]
    if repeated:
        raise BadInput(f"{path} has more than one column {', '.join(map(repr, repeated))}; keep one")
    for name in columns:
        if pa.types.is_nested(schema.field(name).type):
            raise BadInput(f"{path}: {name!r} must have one value per row, found {schema.field(name).type}; convert it")


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
    piece: FileSlice, columns: Sequence[str], dictionaries: Sequence[str], fetched: Path | None = None
) -> Iterator[tuple[int, pa.Table]]:
    """Yield (row of the file, table of at most BATCH_ROWS rows); `dictionaries` are read without copying strings.

    A file of which `fetched` has the bytes is read from there. Raises BadInput for a string that is too long.
    """
    path, copy = piece.file.path, find_fetched(fetched, piece.file.digest)
    constants = piece.file.constants
    read = [name for name in columns if name not in constants]
    if copy is None:
        _refuse_changed(piece.file)
    # All strings are decoded as dictionaries first: one long value may be that of a million rows.
    with open_parquet(path if copy is None else str(copy), read_dictionary=read) as file:
        row = piece.first_row
        try:
            read_at = functools.partial(_read_at, parse_path(path) if copy is None else copy)
            refuse_long_chunks(file.metadata, piece.row_groups, read, path, read_at)
            for batch in file.iter_batches(
                BATCH_ROWS, row_groups=list(piece.row_groups), columns=read, use_threads=False
            ):
                table = _decode_dictionaries(pa.Table.from_batches([batch]), dictionaries, path)
                yield row, _add_constants(table, constants)
                row += batch.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if is_passing(error):  # the block is read again
                raise
            if copy is None:
                _refuse_changed(piece.file)
            failure = store_failure(parse_path(path), error)
            if failure is not None:
                raise failure from None
            raise BadInput(f"{path} cannot be decoded ({cut(str(error))}); replace or remove it") from None
    if copy is None:
        _refuse_changed(piece.file)


def _read_at(path: LakePath, offset: int, n_bytes: int) -> bytes:
    with open_file(path) as file:
        file.seek(offset)
        return bytes(file.read(n_bytes))


def _decode_dictionaries(table: pa.Table, kept: Collection[str], path: str) -> pa.Table:
    """Return a table of one batch whose only dictionaries of strings are those that are kept; refuse long strings."""
    for position, name in enumerate(table.column_names):
        column = table.column(position)
        if not pa.types.is_dictionary(column.type):
            continue
        for chunk in column.chunks:
            refuse_long_values(chunk.dictionary, name, path)
        if name not in kept:
            plain = pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type)
            table = table.set_column(position, name, plain)
    return table


def _add_constants(table: pa.Table, constants: Mapping[str, str]) -> pa.Table:
    for name, value in constants.items():
        codes = pa.array(np.zeros(table.num_rows, np.int32))
        table = table.append_column(name, pa.DictionaryArray.from_arrays(codes, pa.array([value])))
    return table


@retried
def _refuse_changed(file: FileFacts) -> None:
    path = parse_path(file.path)
    if isinstance(path, RemotePath) and file.etag:
        return _refuse_other(file.path, file.etag)
    try:
        is_same = current_status(path) == (file.size, file.mtime_ns)
    except FileNotFoundError:
        raise _vanished(file.path) from None
    if not is_same:
        raise _changed(file.path)


def _refuse_other(path: str, etag: str) -> None:
    """Raise if an object is no longer the version that it was, or no longer there."""
    try:
        with open_file(parse_path(path)) as source:
            is_same = etag_of(source) == etag
    except FileNotFoundError:
        raise _vanished(path) from None
    if not is_same:
        raise _changed(path)


def _changed(path: str) -> BadInput:
    return BadInput(f"{path} changed while it was read; run the command again when it is complete")


def day_digest(settings: str, files: Sequence[FileFacts]) -> str:
    """Return the digest of a day's input: the settings that matter and the content of its files."""
    return digest_of([settings, [file.identity for file in files]])


def missing_days(days: Mapping[dt.date, Any], first: dt.date, last: dt.date) -> list[dt.date]:
    """Return the dates between two dates, both included, that have no folder."""
    span = (last - first).days + 1
    return [day for day in (first + dt.timedelta(n) for n in range(span)) if day not in days]


@retried
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


def long_value(where: str, name: str, length: str) -> BadInput:
    """Return the error about a column with a value that is too long; the value itself is not shown."""
    return BadInput(
        f"{where}: a value of {name!r} may have at most {LONGEST_VALUE:,} bytes, found {length}; shorten or remove it"
    )


def refuse_long_chunks(
    metadata: pq.FileMetaData, row_groups: Sequence[int], columns: Collection[str], where: str, read_at: ReadAt
) -> None:
    """Refuse, before they are decoded, large columns of row groups with values that are too long on average.

    Of a dictionary, too: one value of it may be that of all rows.
    """
    # Of a small row group nothing more is looked at: pyarrow ends the process on some damaged facts about columns.
    large = (group for group in map(metadata.row_group, row_groups) if group.total_byte_size > LARGE_CHUNK)
    for group in large:
        for chunk in map(group.column, range(group.num_columns)):
            name, n_bytes = chunk.path_in_schema, chunk.total_uncompressed_size
            if name not in columns or chunk.physical_type != "BYTE_ARRAY" or n_bytes <= LARGE_CHUNK:
                continue
            _refuse_mean(n_bytes, chunk.num_values, name, where)
            # Not every writer names the offset of the dictionary: it is the first page.
            first_page = chunk.dictionary_page_offset or chunk.data_page_offset
            header = _DICTIONARY_HEADER.match(read_at(first_page, _HEADER_BYTES))
            if header is not None:
                _refuse_mean(_number(header[1]), _number(header[4]), name, where)


def refuse_long_values(dictionary: pa.Array, name: str, where: str) -> None:
    """Refuse a column one of whose values is too long, by the dictionary of a batch."""
    if is_string(dictionary.type) or pa.types.is_binary(dictionary.type) or pa.types.is_large_binary(dictionary.type):
        longest = pc.max(pc.binary_length(dictionary)).as_py() or 0
        if longest > LONGEST_VALUE:
            raise long_value(where, name, f"one of {longest:,}")


def _refuse_mean(n_bytes: int, n_values: int, name: str, where: str) -> None:
    mean = n_bytes // max(1, n_values) - _BESIDE_VALUE
    if mean > LONGEST_VALUE:
        raise long_value(where, name, f"{mean:,} on average")


def _number(varint: bytes) -> int:
    return sum((byte & 127) << 7 * place for place, byte in enumerate(varint)) >> 1

"""Turn a batch of log rows into codes and times, and say of every row that cannot be used why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import EventColumns
from ammrank_dask.storage.lake.taxonomy import UNRANKED, Taxonomy
from ammrank_dask.storage.objects.atomic import write_atomic
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.forgotten import load_forgotten
from ammrank_dask.storage.store.ids import IntegerIds, StringIds, UserIds, is_string
from ammrank_dask.storage.vocabulary import DAY_US, USER_ID

KEPT = 0
# Rows that are counted and left out without complaint.
IGNORED_GROUP, NULL_CATEGORY, UNRANKED_CATEGORY = 1, 2, 3
COUNTED = {
    IGNORED_GROUP: "ignored_group",
    NULL_CATEGORY: "null_category",
    UNRANKED_CATEGORY: "unranked_category",
}
CAPPED = "over_max_events_per_user"
"""What rows are counted as that are left out because their user has too many."""
# Rows that are quarantined.
NO_USER, NO_GROUP, UNKNOWN_GROUP, NO_TIME, BEFORE_1970, TOO_LATE, AFTER_NIGHT, UNKNOWN_CATEGORY = range(4, 12)
QUARANTINED = {
    NO_USER: "no_user_id",
    NO_GROUP: "no_group",
    UNKNOWN_GROUP: "unknown_group",
    NO_TIME: "no_timestamp",
    BEFORE_1970: "timestamp_before_1970",
    TOO_LATE: "timestamp_too_old",
    AFTER_NIGHT: "timestamp_after_night",
    UNKNOWN_CATEGORY: "unknown_category",
}


SCHEMA = pa.schema(
    [
        ("reason", pa.string()),
        ("file", pa.string()),
        ("row", pa.int64()),
        (USER_ID, pa.string()),
        ("value", pa.string()),
    ]
)
MAX_ROWS_A_BLOCK = 100_000
"""More bad rows than this of one block are counted, not copied: they say nothing new."""


def quarantined_share(events_by_outcome: Mapping[str, int]) -> float:
    """Return the share of a day's events that was quarantined.

    Examples
    --------
    >>> quarantined_share({"kept": 96, "unranked_category": 2, "no_user_id": 1, "unknown_category": 1})
    0.02
    """
    bad = sum(events_by_outcome.get(reason, 0) for reason in QUARANTINED.values())
    return bad / max(1, sum(events_by_outcome.values()))


def cell_dtype(n_cells: int) -> np.dtype:
    """Return the smallest type that holds a cell code."""
    return np.dtype(np.uint16 if n_cells <= 1 << 16 else np.uint32)


_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": -1_000}
_FAR = 2**62 // 1_000_000
_LAST_TIME = 253_402_300_800_000_000 - DAY_US
"""A day before the year 10000: calendars of time zones end there."""
_FIRST_TIME = 253_402_300_800_000_000 // 4


@dataclass(frozen=True)
class EventMapping:
    """How the values of a log are understood."""

    columns: EventColumns
    group_of: Mapping[str, int]
    ignored_groups: frozenset[str]
    taxonomy: Taxonomy
    n_groups: int
    click_group: int
    late_days: int
    nobody: frozenset[str] = frozenset()
    day_zone: str = "UTC"
    """The zone whose days the day folders are: times are taken as its clocks show them."""

    @property
    def n_cells(self) -> int:
        """Number of (group, category) cells; the code of a cell is group × L + category."""
        return self.n_groups * len(self.taxonomy.categories)


@dataclass(frozen=True)
class EventBatch:
    """Rows as codes. `user` is a position in `ids` for strings, and unused for integers, whose ids are in row order."""

    ids: UserIds
    user: np.ndarray | None
    cell: np.ndarray
    time: np.ndarray
    status: np.ndarray
    late: int


def decode_events(table: pa.Table, mapping: EventMapping, *, end: int, where: str) -> EventBatch:
    """Map one batch of a day's log.

    Parameters
    ----------
    end
        T of the day, microseconds since 1970 UTC.
    where
        Name of the file for messages.
    """
    columns = mapping.columns
    group, group_status = _map_groups(table.column(columns.group), mapping, where)
    category, category_status = _map_categories(table.column(columns.category), mapping, where)
    time, no_time = to_microseconds(table.column(columns.timestamp), columns, where)
    if mapping.day_zone != "UTC":
        time = to_wall_clock(time, mapping.day_zone)
    ids, user, no_user = _map_users(table.column(columns.user_id), mapping, where)

    # The first reason that applies wins: written from the last to the first.
    status = np.zeros(table.num_rows, np.uint8) if category_status is None else category_status
    begin = end - DAY_US
    oldest, newest = (int(time.min()), int(time.max())) if len(time) else (end, end)
    if oldest < begin - mapping.late_days * DAY_US:
        status[time < begin - mapping.late_days * DAY_US] = TOO_LATE
    if newest > end:
        status[time > end] = AFTER_NIGHT
    if oldest < 0:
        status[time < 0] = BEFORE_1970
    if no_time is not None:
        status[no_time] = NO_TIME
    if no_user is not None:
        status[no_user] = NO_USER
    if group_status is not None:
        status = np.where(group_status != KEPT, group_status, status)
    late = int(np.count_nonzero((status == KEPT) & (time < begin))) if oldest < begin else 0
    return EventBatch(ids, user, group + category, time, status, late)


def to_microseconds(column: pa.ChunkedArray, columns: EventColumns, where: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return times as int64 microseconds since 1970 UTC, and a mask of nulls (None without any)."""
    found = column.type
    name = columns.timestamp
    no_time = _null_mask(column)
    if pa.types.is_timestamp(found):
        unit = found.unit
        if found.tz is None and columns.timezone is None:
            raise BadInput(
                f"{where}: the times in {name!r} have no zone; set `timezone` in ammrank.yaml (for example UTC)"
            )
        values = _numbers(column.cast(pa.int64()))
        microseconds = _scale(values, unit)
        if found.tz is None and columns.timezone != "UTC":
            microseconds = _localize(microseconds, str(columns.timezone))
    elif pa.types.is_integer(found):
        if columns.timestamp_unit is None:
            raise BadInput(
                f"{where}: the times in {name!r} are integers; set `timestamp_unit` in ammrank.yaml (s, ms, us, ns)"
            )
        microseconds = _scale(_numbers(_clip_unsigned(column)), columns.timestamp_unit)
    else:
        raise BadInput(f"{where}: {name!r} must be a timestamp or an integer, found {found}; convert the column")
    if no_time is not None:
        microseconds[no_time] = 0
    return microseconds, no_time


def to_wall_clock(time: np.ndarray, zone: str) -> np.ndarray:
    """Return what the clocks of a zone show at a time, in microseconds since 1970 there: every day has 24 hours.

    Examples
    --------
    >>> to_wall_clock(np.array([0]), "Asia/Tokyo") // 3_600_000_000
    array([9])
    """
    index = pd.DatetimeIndex(np.clip(time, -_FIRST_TIME, _LAST_TIME).view("datetime64[us]")).tz_localize("UTC")
    return index.tz_convert(zone).tz_localize(None).to_numpy().astype("datetime64[us]").astype(np.int64)


def _clip_unsigned(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_uint64(column.type):
        column = pc.min_element_wise(column, pa.scalar(2**63 - 1, pa.uint64()), skip_nulls=False)
    return column.cast(pa.int64())


def _scale(values: np.ndarray, unit: str) -> np.ndarray:
    factor = _UNITS[unit]
    if factor < 0:
        return values // -factor
    # Absurd times are quarantined later; clipped here, they cannot wrap around into plausible ones.
    return np.clip(values, -_FAR, _FAR) * factor if factor > 1 else values.copy()


def _localize(naive: np.ndarray, zone: str) -> np.ndarray:
    index = pd.DatetimeIndex(np.clip(naive, -_FIRST_TIME, _LAST_TIME).view("datetime64[us]"))
    # Where clocks are turned back a time happens twice; the earlier one is taken.
    zoned = index.tz_localize(zone, ambiguous=np.ones(len(index), bool), nonexistent="shift_forward")
    return zoned.tz_convert("UTC").tz_localize(None).to_numpy().astype("datetime64[us]").astype(np.int64)


def _map_groups(column: pa.ChunkedArray, mapping: EventMapping, where: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the first cell of every row's group, and the status of every row (None when all are kept)."""
    indices, values, nulls = _dictionary(column, mapping.columns.group, where)
    cells = np.zeros(len(values) + 1, cell_dtype(mapping.n_cells))
    status = np.full(len(values) + 1, KEPT, np.uint8)
    for i, value in enumerate(values):
        if value in mapping.group_of:
            cells[i] = mapping.group_of[value] * len(mapping.taxonomy.categories)
        else:
            status[i] = IGNORED_GROUP if value in mapping.ignored_groups else UNKNOWN_GROUP
    status[-1] = NO_GROUP
    return _look_up(indices, nulls, cells, status)


def _map_categories(column: pa.ChunkedArray, mapping: EventMapping, where: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the code of every row's category, and the status of every row (None when all are kept)."""
    indices, values, nulls = _dictionary(column, mapping.columns.category, where, may_be_integers=True)
    codes = np.zeros(len(values) + 1, cell_dtype(mapping.n_cells))
    status = np.full(len(values) + 1, KEPT, np.uint8)
    code_of = mapping.taxonomy.code_of
    for i, value in enumerate(values):
        code = code_of.get(value)
        if code is None:
            status[i] = UNKNOWN_CATEGORY
        elif code == UNRANKED:
            status[i] = UNRANKED_CATEGORY
        else:
            codes[i] = code
    status[-1] = NULL_CATEGORY
    return _look_up(indices, nulls, codes, status)


def _look_up(
    indices: np.ndarray, nulls: np.ndarray | None, codes: np.ndarray, status: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return code and status of every row, given those of the values it has an index of, and last those of a null."""
    if nulls is not None:
        indices = np.where(nulls, len(codes) - 1, indices)
    elif not status[:-1].any():
        return codes.take(indices), None
    return codes.take(indices), status.take(indices)


def _map_users(
    column: pa.ChunkedArray, mapping: EventMapping, where: str
) -> tuple[UserIds, np.ndarray | None, np.ndarray | None]:
    name = mapping.columns.user_id
    no_user = _null_mask(column)
    found = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(found):
        ids = _numbers(integer_ids(_without_dictionary(column), name, where))
        absent = is_nobody(pa.array(ids), mapping.nobody, name, where)
        if absent.any():
            no_user = absent if no_user is None else no_user | absent
        return IntegerIds(ids), None, no_user
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    chunk = _combine(encoded)
    values = chunk.dictionary.cast(pa.large_string())
    codes = _numbers(chunk.indices.cast(pa.int64()))
    blank = is_nobody(values, mapping.nobody, name, where)
    if blank.any():
        absent = blank[codes] if no_user is None else np.where(no_user, True, blank[codes])
        no_user = absent
    return StringIds(values), codes, no_user


def integer_ids(column: pa.Array | pa.ChunkedArray, name: str, where: str) -> pa.Array | pa.ChunkedArray:
    """Return integer user ids as int64; the message about those that do not fit does not show any."""
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        raise BadInput(
            f"{where}: user ids in {name!r} must fit into 64-bit signed integers, found larger ones in a"
            f" {column.type} column; convert the column to strings"
        ) from None


def is_nobody(ids: pa.Array, nobody: frozenset[str], name: str, where: str) -> np.ndarray:
    """Return which ids stand for no user: those in `nobody`, and blank strings."""
    if pa.types.is_integer(ids.type):
        strangers = [int(value) for value in nobody if re.fullmatch(r"-?[0-9]+", value)]
        return np.isin(ids.to_numpy(), strangers) if strangers else np.zeros(len(ids), bool)
    listed = pc.is_in(ids, value_set=pa.array(sorted(nobody), ids.type))
    try:
        blank = pc.equal(pc.utf8_trim_whitespace(ids), "")
    except pa.ArrowInvalid:
        raise not_utf8(name, where) from None
    return np.asarray(pc.or_(blank, listed).to_numpy(zero_copy_only=False))


def not_utf8(name: str, where: str) -> BadInput:
    """Return the error about a column whose text cannot be decoded."""
    return BadInput(f"{where}: {name!r} has text that is not UTF-8; write the column in UTF-8")


def _dictionary(
    column: pa.ChunkedArray, name: str, where: str, *, may_be_integers: bool = False
) -> tuple[np.ndarray, list[str], np.ndarray | None]:
    found = column.type
    value_type = found.value_type if pa.types.is_dictionary(found) else found
    if pa.types.is_null(found):
        column = column.cast(pa.string())
    elif not (is_string(value_type) or (may_be_integers and pa.types.is_integer(value_type))):
        raise BadInput(f"{where}: {name!r} must be a string column, found {value_type}; convert the column")
    chunk = _combine(column if pa.types.is_dictionary(column.type) else column.dictionary_encode())
    nulls = _null_mask(chunk)
    try:
        # A number stands for the text of its digits, as a taxonomy has it.
        values = [str(value) for value in chunk.dictionary.to_pylist()]
    except UnicodeDecodeError:
        raise not_utf8(name, where) from None
    return _numbers(chunk.indices), values, nulls


def _combine(column: pa.ChunkedArray | pa.Array) -> pa.DictionaryArray:
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    return column


def _without_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _numbers(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    if column.null_count:
        column = column.fill_null(0)
    if isinstance(column, pa.ChunkedArray):
        return column.to_numpy()
    return column.to_numpy(zero_copy_only=False)


def _null_mask(column: pa.ChunkedArray | pa.Array) -> np.ndarray | None:
    if not column.null_count:
        return None
    return np.asarray(
        column.is_null().to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.is_null().to_numpy()
    )


class QuarantineRows:
    """Collects the bad rows of a block."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.n_rows = 0

    @staticmethod
    def value_columns(columns: EventColumns) -> dict[int, str]:
        """Return the column whose unknown values are worth counting, by reason."""
        return {UNKNOWN_GROUP: columns.group, UNKNOWN_CATEGORY: columns.category}

    def add(self, status: np.ndarray, table: pa.Table, columns: EventColumns, file: str, first_row: int) -> None:
        """Add the bad rows of a batch."""
        if (status == KEPT).all():
            return
        shown = {
            **self.value_columns(columns),
            **dict.fromkeys((BEFORE_1970, TOO_LATE, AFTER_NIGHT), columns.timestamp),
        }
        for code, reason in QUARANTINED.items():
            rows = np.flatnonzero(status == code)[: MAX_ROWS_A_BLOCK - self.n_rows]
            if not len(rows):
                continue
            self.n_rows += len(rows)
            bad = table.take(pa.array(rows))
            value = _as_text(bad.column(shown[code])) if code in shown else pa.nulls(len(rows), pa.string())
            user = _as_text(bad.column(columns.user_id)) if code != NO_USER else pa.nulls(len(rows), pa.string())
            self.add_rows(reason, file, rows + first_row, user, value)

    def add_rows(self, reason: str, file: str, rows: np.ndarray, user: pa.Array, value: pa.Array) -> None:
        """Add rows that have one reason in common."""
        n = len(rows)
        columns = [pa.array([reason] * n), pa.array([file] * n), pa.array(rows, pa.int64()), user, value]
        self.tables.append(pa.table(columns, schema=SCHEMA))


def write_quarantine(path: Path, rows: QuarantineRows) -> None:
    """Write the rows of a block, none if there are none."""
    if rows.tables:
        table = pa.concat_tables(rows.tables)
        write_atomic(path, lambda temporary: pq.write_table(table, temporary, write_page_checksum=True), durable=False)


@retried
def collect_quarantine(parts: Sequence[Path], path: Path, forgotten: Path | None = None) -> None:
    """Put the rows of all blocks into one file; without any there is no file.

    `forgotten` is the folder with the list of users whose rows are not kept.
    """
    on_list = load_forgotten(forgotten)
    found = [part for part in parts if part.is_file()]
    if not found:
        path.unlink(missing_ok=True)
        return

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, SCHEMA, write_page_checksum=True) as writer:
            for part in found:
                table = pq.read_table(part, schema=SCHEMA, page_checksum_verification=True)
                if on_list is not None:
                    known = on_list.texts_on(table.column(USER_ID).combine_chunks())
                    table = table.filter(pa.array(~known))
                writer.write_table(table)

    write_atomic(path, write)


def _as_text(column: pa.ChunkedArray) -> pa.Array:
    plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    return pc.cast(plain, pa.string()).combine_chunks()

"""Survey a lake that nobody has mapped yet: count its values and users, and look at its times."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from distributed import Client

from ammrank_dask.ingest.interest_state import end_of
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import to_microseconds
from ammrank_dask.storage.lake.files import (
    EventColumns,
    FileFacts,
    FileSlice,
    read_batches,
    scan_file,
)
from ammrank_dask.storage.lake.listing import LakeFile
from ammrank_dask.storage.store.ids import IntegerIds, StringIds, UserIds, is_string
from ammrank_dask.storage.vocabulary import DAY_US
from ammrank_dask.user_hash import hash_ids

logger = logging.getLogger(__name__)

SAMPLE_SALT = 0x7375727665793031
MAX_HASHES = 1 << 23
"""Hashes of users that the client holds at a time (64 MiB); beyond it users are sampled."""
MAX_VALUES = 100_000
"""Distinct values of a column of names; more are the sign of another kind of column, and would not fit."""
FILES_AT_ONCE = 256
"""Files whose counts the client holds before it adds them up."""
TIME_FILES = 16

Pair = tuple[str | None, str | None]

TIMES_A_BATCH = 10_000

ZONED, NAIVE, INTEGER = "zoned", "naive", "integer"
UNITS = ("s", "ms", "us", "ns")
HOUR_US = DAY_US // 24


@dataclass(frozen=True)
class Estimate:
    """A number of users, counted among one in `sampling`; exact when that is 1."""

    users: int
    sampling: int


@dataclass(frozen=True)
class DayFiles:
    """The files of one day that have rows; none when all are empty."""

    date: dt.date
    files: tuple[FileFacts, ...]


@dataclass(frozen=True)
class EventSurvey:
    """Counts of a lake: files, events by (group, category) and by day and group, times, users."""

    days: tuple[DayFiles, ...]
    events: Mapping[Pair, int]
    events_by_day: Mapping[dt.date, Mapping[str | None, int]]
    times: TimeFacts
    users: Estimate | None
    id_kind: str


@dataclass(frozen=True)
class UsersSurvey:
    """Counts of a users table: its rows, and its genders by spelling."""

    rows: int
    genders: Mapping[str | None, int]
    id_kind: str


def survey_events(
    client: Client,
    days: Mapping[dt.date, Sequence[LakeFile]],
    columns: EventColumns,
    *,
    late_days: int,
    count_users: bool,
    progress: Progress = silent,
) -> EventSurvey:
    """Count the events of every (group, category), sample times, and count the users if asked to.

    One task reads one file in batches. Raises BadInput for a file that cannot be read or has not the columns.
    """
    began = time.monotonic()
    names = (columns.user_id, columns.group, columns.category, columns.timestamp)
    wanted = [(date, file) for date, files in days.items() for file in files]
    looks = [
        (str(file.path), file.path.name, names, {} if file.group is None else {columns.group: file.group})
        for _, file in wanted
    ]
    looked = run_tasks(client, "survey-files", look_at_file, looks, progress=progress)
    filled = [(date, file) for (date, _), file in zip(wanted, looked, strict=True) if sum(file.rows)]
    if not filled:
        raise BadInput(f"the {len(wanted)} files of events have no rows; is it the right lake?")
    id_kind = _only_kind([file for _, file in filled], "events")

    times = TimeFacts()
    chosen = sorted({int(i) for i in np.linspace(0, len(filled) - 1, TIME_FILES)})
    sampling = [(filled[i][1], columns.timestamp, end_of(filled[i][0]), late_days) for i in chosen]
    for found in run_tasks(client, "survey-times", sample_times, sampling, progress=progress):
        times.add(found)

    n_rows = sum(sum(file.rows) for _, file in filled)
    one_in = _sampling(n_rows) if count_users else 0
    events: Counter[Pair] = Counter()
    by_day: dict[dt.date, Counter[str | None]] = {date: Counter() for date in days}
    hashes = np.empty(0, np.uint64)
    for first in range(0, len(filled), FILES_AT_ONCE):
        batch = filled[first : first + FILES_AT_ONCE]
        readings = [(file, columns, one_in) for _, file in batch]
        shifted = _shift(progress, first, len(filled))
        counted = run_tasks(client, "survey-values", survey_values, readings, progress=shifted)
        for (date, _), (pairs, _) in zip(batch, counted, strict=True):
            events.update(pairs)
            for (group, _), count in pairs.items():
                by_day[date][group] += count
        _refuse_many_values(events, columns, "the lake")
        hashes = np.unique(np.concatenate([hashes, *(users for _, users in counted)]))
    logger.info("surveyed %d events in %d files in %.1f s", n_rows, len(filled), time.monotonic() - began)
    return EventSurvey(
        tuple(DayFiles(day, tuple(file for date, file in filled if date == day)) for day in by_day),
        events,
        by_day,
        times,
        Estimate(len(hashes) * one_in, one_in) if count_users else None,
        id_kind,
    )


def survey_clicks(
    client: Client,
    days: Sequence[DayFiles],
    columns: EventColumns,
    *,
    click_values: Sequence[str],
    code_of: Mapping[str, int],
    n_clicks: int,
    min_categories: int,
    progress: Progress = silent,
) -> Estimate:
    """Count the users who clicked at least `min_categories` ranked categories on the given days.

    Parameters
    ----------
    code_of
        Code of the ranked category of every category; those with a negative code are not ranked.
    n_clicks
        Clicks of these days; above MAX_HASHES users are sampled.
    """
    one_in = _sampling(n_clicks)
    readings = [(file, columns, tuple(click_values), code_of, one_in) for day in days for file in day.files]
    found = run_tasks(client, "survey-clicks", find_clickers, readings, progress=progress)
    clicks = _distinct_clicks(found)
    categories_per_user = clicks.groupby("user", sort=False).size()
    return Estimate(int((categories_per_user >= min_categories).sum()) * one_in, one_in)


def survey_users(
    client: Client,
    files: Sequence[LakeFile],
    user_id: str,
    gender: str | None,
    *,
    progress: Progress = silent,
) -> UsersSurvey:
    """Count the rows of a users table and its genders by spelling (none without such a column)."""
    names = (user_id,) if gender is None else (user_id, gender)
    looks: list[tuple[Any, ...]] = [(str(file.path), file.path.name, names, {}) for file in files]
    looked = run_tasks(client, "survey-files", look_at_file, looks, progress=progress)
    readings = [(file, gender) for file in looked if gender is not None and sum(file.rows)]
    genders: Counter[str | None] = Counter()
    for found in run_tasks(client, "survey-users", count_genders, readings, progress=progress):
        genders.update(found)
    return UsersSurvey(sum(sum(file.rows) for file in looked), genders, _only_kind(looked, "users table"))


def look_at_file(path: str, name: str, columns: Sequence[str], constants: Mapping[str, str] | None = None) -> FileFacts:
    """Read the footer of a file and check that it has the columns, the first of which holds user ids."""
    return scan_file(path, name, columns, constants, with_digest=False)


def survey_values(file: FileFacts, columns: EventColumns, one_in: int) -> tuple[Counter[Pair], np.ndarray]:
    """Count the events of every (group, category) of a file, and hash its users.

    Returns
    -------
    counts, hashes
        The hashes (uint64) are those of one in `one_in` users, sorted and distinct; none when that is 0.
    """
    names = [columns.group, columns.category] + ([columns.user_id] if one_in else [])
    counts: Counter[Pair] = Counter()
    hashes = np.empty(0, np.uint64)
    for table in read_tables(file, names, [columns.group, columns.category]):
        groups, group_names = _encode_column(table.column(columns.group), columns.group, file.path)
        categories, category_names = _encode_categories(table, columns, file.path)
        cells = pd.Series(groups * len(category_names) + categories).value_counts(sort=False)
        for cell, count in zip(cells.index.tolist(), cells.tolist(), strict=True):
            group, category = divmod(cell, len(category_names))
            counts[group_names[group], category_names[category]] += count
        _refuse_many_values(counts, columns, file.path)
        if one_in:
            users, sampled = _sample_users(table.column(columns.user_id), one_in)
            hashes = np.union1d(hashes, users[sampled])
    return counts, hashes


def find_clickers(
    file: FileFacts,
    columns: EventColumns,
    click_values: Sequence[str],
    code_of: Mapping[str, int],
    one_in: int,
) -> pd.DataFrame:
    """Return the distinct clicks of a file: `user` (hash of one in `one_in` users) and `category` (ranked code)."""
    names = [columns.user_id, columns.group, columns.category]
    clicks = []
    for table in read_tables(file, names, [columns.group, columns.category]):
        groups, group_names = _encode_column(table.column(columns.group), columns.group, file.path)
        categories, category_names = _encode_categories(table, columns, file.path)
        clicked = np.array([name in click_values for name in group_names])
        codes = np.array([code_of.get(name, -1) if name is not None else -1 for name in category_names])
        kept = np.flatnonzero(clicked[groups] & (codes[categories] >= 0))
        users, sampled = _sample_users(table.column(columns.user_id).take(pa.array(kept)), one_in)
        found = {"user": users[sampled], "category": codes[categories[kept[sampled]]].astype(np.int32)}
        clicks.append(pd.DataFrame(found).drop_duplicates())
    return _distinct_clicks(clicks)


def count_genders(file: FileFacts, gender: str) -> Counter[str | None]:
    """Count the genders of a file of the users table by spelling."""
    counts: Counter[str | None] = Counter()
    for table in read_tables(file, [gender], [gender]):
        codes, names = _encode_column(table.column(gender), gender, file.path)
        for name, count in zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True):
            if count:
                counts[name] += count
        if len(counts) > MAX_VALUES:
            raise _many_values(gender, "gender", file.path)
    return counts


def _only_kind(files: Sequence[FileFacts], what: str) -> str:
    kinds = {file.id_kind for file in files}
    if len(kinds) > 1:
        raise BadInput(
            f"user ids of the {what} are integers in some files and strings in others; convert one of the two"
        )
    return kinds.pop()


def _sampling(n_rows: int) -> int:
    return max(1, -(-n_rows // MAX_HASHES))


def _shift(progress: Progress, before: int, total: int) -> Progress:
    def report(stage: str, done: int, _: int) -> None:
        if done or not before:
            progress(stage, before + done, total)

    return report


def _distinct_clicks(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    empty = pd.DataFrame({"user": np.empty(0, np.uint64), "category": np.empty(0, np.int32)})
    return pd.concat([*parts, empty], ignore_index=True).drop_duplicates(ignore_index=True)


def _encode_categories(table: pa.Table, columns: EventColumns, where: str) -> tuple[np.ndarray, list[str | None]]:
    return _encode_column(table.column(columns.category), columns.category, where, may_be_integers=True)


def _encode_column(
    column: pa.ChunkedArray, name: str, where: str, *, may_be_integers: bool = False
) -> tuple[np.ndarray, list[str | None]]:
    """Return the code of every row (int64) and the value of every code; the last one is null."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.int64), [None]
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    found = array.type.value_type
    if not (is_string(found) or (may_be_integers and pa.types.is_integer(found))):
        raise BadInput(f"{where}: {name!r} must be a string column, found {found}; convert the column")
    values = [str(value) for value in array.dictionary.to_pylist()]
    codes = array.indices.cast(pa.int64()).fill_null(len(values))
    return codes.to_numpy(zero_copy_only=False), [*values, None]


def _sample_users(column: pa.ChunkedArray, one_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash of every row's user, and the positions of the sampled rows that have a user."""
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    present = array.is_valid()
    ids: UserIds
    if is_string(array.type):
        text = array.cast(pa.large_string()).fill_null("")
        present = pc.not_equal(pc.utf8_trim_whitespace(text), "")
        ids = StringIds(text)
    else:
        ids = IntegerIds(array.cast(pa.int64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False))
    hashes = hash_ids(ids, SAMPLE_SALT) if len(ids) else np.empty(0, np.uint64)
    sampled = present.to_numpy(zero_copy_only=False) & (hashes % np.uint64(one_in) == 0)
    return hashes, np.flatnonzero(sampled)


def _refuse_many_values(counts: Counter[Pair], columns: EventColumns, where: str) -> None:
    if len(counts) <= MAX_VALUES:
        return
    n_groups = len({group for group, _ in counts})
    n_categories = len({category for _, category in counts})
    if n_groups >= n_categories:
        raise _many_values(columns.group, "group", where)
    raise _many_values(columns.category, "category", where)


def _many_values(column: str, role: str, where: str) -> BadInput:
    return BadInput(
        f"{where}: {column!r} has too many distinct values to be the {role} (the limit is {MAX_VALUES:,});"
        f" name the right column with --column {role}=NAME"
    )


@dataclass
class TimeFacts:
    """How sampled times lie to the date of their folder.

    Attributes
    ----------
    sampled
        Times looked at, by kind of column: zoned, naive or integer.
    inside
        Naive times inside the date of their folder when read as UTC.
    plausible
        Integer times between `late_days` before their folder and a day after it, by unit.
    offsets
        Times with a zone by the hour, from the midnight UTC that begins the date of their folder.
    """

    sampled: Counter[str] = field(default_factory=Counter)
    inside: int = 0
    plausible: Counter[str] = field(default_factory=Counter)
    offsets: Counter[int] = field(default_factory=Counter)

    def add(self, other: TimeFacts) -> None:
        """Add the times of another file."""
        self.sampled.update(other.sampled)
        self.inside += other.inside
        self.plausible.update(other.plausible)
        self.offsets.update(other.offsets)


def sample_times(file: FileFacts, column: str, end: int, late_days: int) -> TimeFacts:
    """Compare evenly spaced times of a file with the date of its folder, which ends at `end` (µs since 1970)."""
    facts = TimeFacts()
    for table in read_tables(file, [column], []):
        spaced = np.arange(0, table.num_rows, max(1, table.num_rows // TIMES_A_BATCH))
        times = table.column(column).take(pa.array(spaced)).drop_null()
        if pa.types.is_integer(times.type):
            facts.sampled[INTEGER] += len(times)
            for unit in UNITS:
                as_unit = EventColumns(timestamp=column, timestamp_unit=unit)
                found, _ = to_microseconds(times, as_unit, file.path)
                early = end - DAY_US - late_days * DAY_US
                facts.plausible[unit] += _count_between(found, early, end + DAY_US)
            continue
        found, _ = to_microseconds(times, EventColumns(timestamp=column, timezone="UTC"), file.path)
        facts.sampled[NAIVE if times.type.tz is None else ZONED] += len(times)
        if times.type.tz is None:
            facts.inside += _count_between(found, end - DAY_US, end)
        else:
            hours, counts = np.unique((found - (end - DAY_US)) // HOUR_US, return_counts=True)
            facts.offsets.update(dict(zip(hours.tolist(), counts.tolist(), strict=True)))
    return facts


def read_tables(file: FileFacts, columns: Sequence[str], dictionaries: Sequence[str]) -> Iterator[pa.Table]:
    """Yield all rows of a file, a batch at a time."""
    every = FileSlice(file, tuple(range(len(file.rows))))
    for _, table in read_batches(every, columns, dictionaries):
        yield table


def _count_between(times: np.ndarray, first: int, last: int) -> int:
    return int(np.count_nonzero((times >= first) & (times <= last)))

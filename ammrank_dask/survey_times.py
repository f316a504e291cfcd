"""Look at the times of a lake that nobody has mapped yet: how they lie to the date of their folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ammrank_dask.storage.lake.events import to_microseconds
from ammrank_dask.storage.lake.files import EventColumns, FileFacts, FileSlice, read_batches
from ammrank_dask.storage.vocabulary import DAY_US

TIMES_A_BATCH = 10_000

ZONED, NAIVE, INTEGER = "zoned", "naive", "integer"
UNITS = ("s", "ms", "us", "ns")
HOUR_US = DAY_US // 24


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

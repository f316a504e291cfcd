"""Pass the events of integer ids to their partitions as rows of two words, and aggregate them there.

They do what `slice_by_partition`, `number_users` and `aggregate_events` do for all kinds of ids and any times, with the
same result, in fewer passes over fewer bytes.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import numpy as np

from ammrank_dask.ingest.interest_state import InterestState
from ammrank_dask.ingest.routing import number_integer_ids
from ammrank_dask.kernels.event_rows import (
    digest_words,
    group_events,
    pack_rows,
    place_rows,
    sort_events,
    sum_events,
    weigh_events,
)
from ammrank_dask.storage.lake.events import cell_dtype
from ammrank_dask.storage.store.ids import IntegerIds
from ammrank_dask.storage.vocabulary import DAY_US
from ammrank_dask.user_hash import BUCKET_SALT, N_BUCKETS, PARTITION_SALT

_BITS = 63
"""Bits of a word that hold cell and time; one marks the first event of a user."""


class EventWords(NamedTuple):
    """How a cell and a time are one word: the cell, and in the low `time_bits` the time since `first_time`."""

    first_time: int
    time_bits: int

    @classmethod
    def between(cls, first_time: int, last_time: int, n_cells: int) -> Self | None:
        """Return the words of all cells and times, both included; None when they take too many bits.

        Examples
        --------
        >>> EventWords.between(100, 115, n_cells=300)
        EventWords(first_time=100, time_bits=4)
        >>> EventWords.between(0, 2**51, n_cells=2**20) is None
        True
        """
        time_bits = max(1, (last_time - first_time).bit_length())
        return cls(first_time, time_bits) if time_bits + (n_cells - 1).bit_length() <= _BITS else None

    def unpack(self, rows: np.ndarray, n_cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Return cells and times of rows."""
        time = rows[:, 1] & np.uint64((1 << self.time_bits) - 1)
        cell = rows[:, 1] >> np.uint64(self.time_bits)
        return cell.astype(cell_dtype(n_cells)), time.view(np.int64) + self.first_time


def slice_events(
    ids: IntegerIds, keep: np.ndarray, cell: np.ndarray, time: np.ndarray, words: EventWords, n_partitions: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the kept events sorted by partition as a section of the exchange; times of the others may be any."""
    numbers = ids.values.view(np.uint64)
    partition, counts = np.empty(len(ids), np.uint32), np.zeros(n_partitions, np.int64)
    with np.errstate(over="ignore"):  # plain numpy (without the compiler) warns where hashes wrap around
        place_rows(numbers, keep, np.uint64(PARTITION_SALT), np.uint64(n_partitions), partition, counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = np.empty((starts[-1], 2), np.uint64)
    time_bits = np.uint64(words.time_bits)
    pack_rows(partition, keep, numbers, cell, time, words.first_time, time_bits, starts[:-1].copy(), rows)
    return {"event": (rows.reshape(-1).view(np.int64), 2 * starts)}


class EventRows:
    """The events of one partition: its users, ascending, and the rows with the position of each one's user."""

    def __init__(self, section: np.ndarray, words: EventWords) -> None:
        self.rows = section.view(np.uint64).reshape(-1, 2)
        self.words = words
        self.user_ids, self.user = number_integer_ids(self.rows[:, 0].view(np.int64))

    def digest(self, salt: int, n_cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a digest of the events that ignores their order, by bucket of users, and how many each cell has."""
        sums, counts = np.zeros(N_BUCKETS, np.uint64), np.zeros(n_cells, np.int64)
        first_time, time_bits = self.words.first_time, np.uint64(self.words.time_bits)
        with np.errstate(over="ignore"):
            digest_words(self.rows, first_time, time_bits, np.uint64(salt), np.uint64(BUCKET_SALT), sums, counts)
        return sums, counts

    def aggregate(self, *, end: int, alpha: float, n_cells: int) -> tuple[InterestState, np.ndarray]:
        """Return the interest state of the events at time `end`, and how many events every user has."""
        n, n_users = len(self.rows), len(self.user_ids)
        event, in_order, weight = np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.float64)
        stop = np.zeros(n_users, np.int64)
        group_events(self.rows, self.user, stop, event)
        sort_events(event, stop, in_order)
        first_time, time_bits = self.words.first_time, np.uint64(self.words.time_bits)
        weigh_events(in_order, first_time, time_bits, end, math.log(alpha) / DAY_US, weight)
        indptr = np.empty(n_users + 1, np.int64)
        cell, intensity, last = np.empty(n, cell_dtype(n_cells)), np.empty(n, np.float64), np.empty(n, np.int64)
        written = sum_events(in_order, weight, first_time, time_bits, indptr, cell, intensity, last)
        state = InterestState(self.user_ids, indptr, cell[:written], intensity[:written], last[:written])
        return state, np.diff(stop, prepend=0)

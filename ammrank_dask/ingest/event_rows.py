"""Pass events to their partitions as rows of two words, and aggregate them there.

The first word is the user: an integer id, or of string ids the position in the list of ids that goes with the rows.
They come to what `aggregate_events` returns, bit for bit, in fewer passes over fewer bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from ammrank_dask.ingest.exchange import Slices
from ammrank_dask.ingest.interest_state import InterestState
from ammrank_dask.ingest.routing import listed_ids, number_integer_ids
from ammrank_dask.kernels.event_rows import digest_events, sum_events
from ammrank_dask.storage.lake.events import cell_dtype
from ammrank_dask.storage.store.ids import UserIds, empty_ids, union
from ammrank_dask.storage.vocabulary import DAY_US
from ammrank_dask.user_hash import N_BUCKETS, bucket_of, hash_ids

WORD_BITS = 63
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
        return cls(first_time, time_bits) if time_bits + (n_cells - 1).bit_length() <= WORD_BITS else None

    def unpack(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return cells and times of rows (int64)."""
        time = rows[:, 1] & np.uint64((1 << self.time_bits) - 1)
        cell = rows[:, 1] >> np.uint64(self.time_bits)
        return cell.view(np.int64), time.view(np.int64) + self.first_time


@dataclass(frozen=True)
class EventRows:
    """The events of one partition: its users, ascending, of every event the position of its user, and the rows."""

    user_ids: UserIds
    user: np.ndarray
    rows: np.ndarray
    words: EventWords

    @classmethod
    def from_slices(cls, slices: Slices, id_kind: str, words: EventWords) -> Self:
        """Return the events of one partition from its slices, in their order."""
        if not slices or not len(slices.joined["event"]):
            return cls(empty_ids(id_kind), np.empty(0, np.int32), np.empty((0, 2), np.uint64), words)
        rows = slices.joined["event"].view(np.uint64).reshape(-1, 2)
        if id_kind == "int64":
            return cls(*number_integer_ids(rows[:, 0].view(np.int64)), rows, words)
        lists = [listed_ids(part) for part in slices]
        ids = union(lists)
        positions = [ids.positions_of(listed)[part["event"][::2]] for listed, part in zip(lists, slices, strict=True)]
        return cls(ids, np.concatenate(positions).astype(np.int32), rows, words)

    def select(self, keep: np.ndarray) -> EventRows:
        """Return the events of the mask, and their users."""
        user, has_events = self.user[keep], np.zeros(len(self.user_ids), bool)
        has_events[user] = True
        number = np.cumsum(has_events, dtype=np.int32) - np.int32(1)
        ids = self.user_ids if has_events.all() else self.user_ids.take(np.flatnonzero(has_events))
        return EventRows(ids, number[user], self.rows[keep], self.words)

    def cap(self, most: int, n_categories: int) -> EventRows:
        """Return the events without those of a user and group that are too many: the first ones, by time, stay.

        Of those of one time the lower cells stay. Which rows stay does not depend on the order of the rows, for two of
        the same time and cell are the same.
        """
        cell, time = self.words.unpack(self.rows)
        group = cell // n_categories
        of_user_and_group = self.user.astype(np.int64) * (int(group.max(initial=0)) + 1) + group
        is_over = (np.bincount(of_user_and_group) > most)[of_user_and_group]
        if not is_over.any():
            return self
        rows = np.flatnonzero(is_over)
        rows = rows[np.lexsort((cell[rows], time[rows], of_user_and_group[rows]))]
        of_row = of_user_and_group[rows]
        first = np.flatnonzero(np.append(True, of_row[1:] != of_row[:-1]))
        number = np.arange(len(rows)) - np.repeat(first, np.diff(np.append(first, len(rows))))
        keep = np.ones(len(self.user), bool)
        keep[rows[number >= most]] = False
        return self.select(keep)

    def digest(self, salt: int, n_cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a digest of the events that ignores their order, by bucket of users, and how many each cell has."""
        sums, counts = np.zeros(N_BUCKETS, np.uint64), np.zeros(n_cells, np.int64)
        user_hash, bucket = hash_ids(self.user_ids, salt), bucket_of(self.user_ids)
        first_time, time_bits = self.words.first_time, np.uint64(self.words.time_bits)
        with np.errstate(over="ignore"):
            digest_events(self.rows, self.user, user_hash, bucket, first_time, time_bits, sums, counts)
        return sums, counts

    def aggregate(self, *, end: int, alpha: float, n_cells: int) -> tuple[InterestState, np.ndarray]:
        """Return the interest state of the events at time `end`, and how many events every user has."""
        n, n_users = len(self.rows), len(self.user_ids)
        grouped, in_order, weight = np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.float64)
        stop = np.zeros(n_users, np.int64)
        indptr = np.empty(n_users + 1, np.int64)
        cell, intensity, last = np.empty(n, cell_dtype(n_cells)), np.empty(n, np.float64), np.empty(n, np.int64)
        written = sum_events(
            self.rows, self.user, self.words.first_time, np.uint64(self.words.time_bits), end,
            math.log(alpha) / DAY_US, stop, grouped, in_order, weight, indptr, cell, intensity, last,
        )  # fmt: skip
        state = InterestState(self.user_ids, indptr, cell[:written], intensity[:written], last[:written])
        return state, np.diff(stop, prepend=0)

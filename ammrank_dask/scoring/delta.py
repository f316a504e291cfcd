"""Compare the qualifications of two nights: which are new, gone, or changed in rank or score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.selection import match_pairs
from ammrank_dask.storage.store.ids import UserIds, union
from ammrank_dask.storage.store.manifests import QualificationsManifest
from ammrank_dask.storage.store.qualifications import (
    ADDED,
    CHANGED,
    CHANGES,
    FORGOTTEN,
    REMOVED,
    Changes,
    QualificationPart,
    QualificationRows,
    qualification_parts,
)
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.user_hash import partition_of


@dataclass(frozen=True)
class PreviousQualifications:
    """Earlier qualifications: small enough to travel with a task."""

    parts: tuple[QualificationPart, ...]
    categories: tuple[str, ...]

    @classmethod
    def of(cls, run: Run) -> PreviousQualifications:
        """Return those of a finished run."""
        return cls(tuple(qualification_parts(run)), tuple(QualificationsManifest.of(run).categories))

    def read(self, partition: int, n_partitions: int) -> list[EarlierPairs]:
        """Return the qualifications of the users who are in a partition now."""
        if len(self.parts) == n_partitions:
            return [EarlierPairs.of(self.parts[partition].read(self.categories))]
        found = []
        for part in self.parts:
            held = EarlierPairs.of(part.read(self.categories))
            here = partition_of(held.users, n_partitions) == partition
            kept = here[held.user]
            position = np.cumsum(here) - 1
            found.append(
                EarlierPairs(
                    held.users.take(np.flatnonzero(here)),
                    position[held.user[kept]],
                    held.category[kept],
                    held.rank[kept],
                    held.score[kept],
                )
            )
        return found


class EarlierPairs(NamedTuple):
    """Users, and of each of their qualifications the position of its user, category code, rank and score."""

    users: UserIds
    user: np.ndarray
    category: np.ndarray
    rank: np.ndarray
    score: np.ndarray

    @classmethod
    def of(cls, rows: QualificationRows) -> EarlierPairs:
        """Return those of a file."""
        return cls(rows.user_ids, rows.user, rows.category, rows.rank, rows.score.astype(np.float32))


def compare_qualifications(
    rows: QualificationRows,
    categories: Sequence[str],
    previous: PreviousQualifications | None,
    partition: int,
    n_partitions: int,
    forgotten: UserIds | None = None,
) -> Changes:
    """Return the qualifications of a partition that are new, gone, or changed in rank or score, by user.

    Users and categories are compared by id and name: neither has to be in both. `forgotten` are users who were
    forgotten since the night before: they have one row each, for nothing else of them is left to compare.
    """
    n_new = len(rows.category)
    if previous is None:
        return Changes(rows.user_ids, rows.indptr, rows.category, np.zeros(n_new, np.int8), None, categories)
    names = [*categories, *sorted(set(previous.categories) - set(categories))]
    code_of = {name: code for code, name in enumerate(names)}
    old_code_of = np.array([code_of[name] for name in previous.categories], np.int32)
    before = previous.read(partition, n_partitions)
    tombstones = [] if forgotten is None else [forgotten.take(_positions_in(forgotten, partition, n_partitions))]
    everyone = union([rows.user_ids, *(pairs.users for pairs in before), *tombstones])
    old_user = np.concatenate([everyone.positions_of(pairs.users)[pairs.user] for pairs in before])
    order = np.argsort(old_user, kind="stable")
    old_user = old_user[order]
    old_codes = old_code_of[np.concatenate([pairs.category for pairs in before])[order]]
    old_rank = np.concatenate([pairs.rank for pairs in before])[order]
    old_score = np.concatenate([pairs.score for pairs in before])[order]
    new_user = np.repeat(everyone.positions_of(rows.user_ids), np.diff(rows.indptr))
    new_start, old_start = (_starts(user, len(everyone)) for user in (new_user, old_user))
    match, is_gone = np.empty(n_new, np.int64), np.empty(len(old_user), bool)
    match_pairs(new_start, rows.category, old_start, old_codes, np.full(len(names), -1), match, is_gone)
    is_new = match < 0
    is_changed, kept = np.zeros(n_new, bool), np.flatnonzero(~is_new)
    is_changed[kept] = (rows.rank[kept] != old_rank[match[kept]]) | (rows.score[kept] != old_score[match[kept]])
    stones = np.concatenate([everyone.positions_of(ids) for ids in tombstones]) if tombstones else np.empty(0, np.int64)
    pieces = [
        (ADDED, new_user[is_new], rows.category[is_new], np.flatnonzero(is_new)),
        (CHANGED, new_user[is_changed], rows.category[is_changed], np.flatnonzero(is_changed)),
        (REMOVED, old_user[is_gone], old_codes[is_gone], np.full(int(is_gone.sum()), -1)),
        (FORGOTTEN, stones, np.full(len(stones), -1), np.full(len(stones), -1)),
    ]
    user = np.concatenate([users for _, users, _, _ in pieces])
    by_user = np.argsort(user, kind="stable")
    change = np.repeat([CHANGES.index(name) for name, *_ in pieces], [len(users) for _, users, _, _ in pieces])
    codes = np.concatenate([codes for _, _, codes, _ in pieces]).astype(np.int32)
    row = np.concatenate([row for *_, row in pieces])
    indptr = _starts(user, len(everyone))
    return Changes(everyone, indptr, codes[by_user], change.astype(np.int8)[by_user], row[by_user], names)


def _positions_in(ids: UserIds, partition: int, n_partitions: int) -> np.ndarray:
    return np.flatnonzero(partition_of(ids, n_partitions) == partition)


def _starts(user: np.ndarray, n_users: int) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.bincount(user, minlength=n_users))])

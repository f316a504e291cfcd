"""Compare the qualifications of two nights: which are new, gone, or changed in rank or score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.changes import Pairs, count_changes, list_changes, match_pairs
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
        added = np.full(n_new, CHANGES.index(ADDED), np.int8)
        return Changes(rows.user_ids, rows.indptr, rows.category, added, np.arange(n_new), categories)
    names = [*categories, *sorted(set(previous.categories) - set(categories))]
    code_of = {name: code for code, name in enumerate(names)}
    old_code_of = np.array([code_of[name] for name in previous.categories], np.int32)
    before = previous.read(partition, n_partitions)
    tombstones = [] if forgotten is None else [forgotten.take(_positions_in(forgotten, partition, n_partitions))]
    everyone = union([rows.user_ids, *(pairs.users for pairs in before), *tombstones])
    old = _join(before, everyone, old_code_of)
    counts = np.zeros(len(everyone), np.int64)
    counts[everyone.positions_of(rows.user_ids)] = np.diff(rows.indptr)
    new = Pairs(_starts(counts), rows.category, rows.rank, rows.score)
    match, is_gone = np.empty(n_new, np.int64), np.empty(len(old.code), bool)
    match_pairs(new.start, new.code, old.start, old.code, np.full(len(names), -1), match, is_gone)
    is_forgotten = np.zeros(len(everyone), bool)
    for ids in tombstones:
        is_forgotten[everyone.positions_of(ids)] = True
    is_other, indptr = np.empty(n_new, bool), np.empty(len(everyone) + 1, np.int64)
    count_changes(new, old, match, is_gone, is_forgotten, is_other, indptr)
    codes, change, row = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.int8), np.empty(indptr[-1], np.int64)
    numbers = tuple(CHANGES.index(name) for name in (ADDED, CHANGED, REMOVED, FORGOTTEN))
    list_changes(new, old, match, is_gone, is_forgotten, is_other, numbers, indptr, codes, change, row)
    return Changes(everyone, indptr, codes, change, row, names)


def _join(before: Sequence[EarlierPairs], everyone: UserIds, new_code: np.ndarray) -> Pairs:
    """Return earlier pairs by user, with the codes of now."""
    user = np.concatenate([everyone.positions_of(pairs.users)[pairs.user] for pairs in before])
    code, rank, score = (
        np.concatenate([getattr(pairs, name) for pairs in before]) for name in ("category", "rank", "score")
    )
    if len(before) > 1:
        order = np.argsort(user, kind="stable")
        code, rank, score = code[order], rank[order], score[order]
    return Pairs(_starts(np.bincount(user, minlength=len(everyone))), new_code[code], rank, score)


def _positions_in(ids: UserIds, partition: int, n_partitions: int) -> np.ndarray:
    return np.flatnonzero(partition_of(ids, n_partitions) == partition)


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)])

"""Compare the qualifications of two nights: which are new, and which are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ammrank_dask.kernels.selection import mark_new
from ammrank_dask.storage.store.ids import UserIds, union
from ammrank_dask.storage.store.manifests import QualificationsManifest
from ammrank_dask.storage.store.qualifications import Changes, QualificationPart, QualificationRows, qualification_parts
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

    def read(self, partition: int, n_partitions: int) -> list[tuple[UserIds, np.ndarray, np.ndarray]]:
        """Return (users, the user of each qualification, its category) of the users who are in a partition now."""
        if len(self.parts) == n_partitions:
            held = self.parts[partition].read(self.categories)
            return [(held.user_ids, held.user, held.category)]
        found = []
        for part in self.parts:
            held = part.read(self.categories)
            here = partition_of(held.user_ids, n_partitions) == partition
            kept = here[held.user]
            position = np.cumsum(here) - 1
            found.append((held.user_ids.take(np.flatnonzero(here)), position[held.user[kept]], held.category[kept]))
        return found


def compare_qualifications(
    rows: QualificationRows,
    categories: Sequence[str],
    previous: PreviousQualifications | None,
    partition: int,
    n_partitions: int,
) -> Changes:
    """Return the qualifications of a partition that are new, and those that are gone, by user.

    Users and categories are compared by id and name: neither has to be in both.
    """
    if previous is None:
        return Changes(rows.row_ids, rows.category, np.ones(len(rows.category), bool), categories)
    names = [*categories, *sorted(set(previous.categories) - set(categories))]
    place = {name: code for code, name in enumerate(names)}
    old_code_of = np.array([place[name] for name in previous.categories], np.int32)
    before = previous.read(partition, n_partitions)
    everyone = union([rows.user_ids, *(users for users, _, _ in before)])
    old_user = np.concatenate([everyone.positions_of(users)[user] for users, user, _ in before])
    order = np.argsort(old_user, kind="stable")
    old_user = old_user[order]
    old_codes = old_code_of[np.concatenate([codes for _, _, codes in before])[order]]
    new_user = np.repeat(everyone.positions_of(rows.user_ids), np.diff(rows.indptr))
    new_start, old_start = (_starts(user, len(everyone)) for user in (new_user, old_user))
    is_new, is_gone = np.empty(len(new_user), bool), np.empty(len(old_user), bool)
    mark_new(new_start, rows.category, old_start, old_codes, np.full(len(names), -1), is_new)
    mark_new(old_start, old_codes, new_start, rows.category, np.full(len(names), -1), is_gone)
    user = np.concatenate([new_user[is_new], old_user[is_gone]])
    added = np.arange(len(user)) < is_new.sum()
    by_user = np.argsort(user, kind="stable")
    codes = np.concatenate([rows.category[is_new], old_codes[is_gone]])
    return Changes(everyone.take(user[by_user]), codes[by_user], added[by_user], names)


def _starts(user: np.ndarray, n_users: int) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.bincount(user, minlength=n_users))])

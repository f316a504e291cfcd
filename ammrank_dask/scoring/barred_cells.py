"""Keep single categories from single users: those they opted out of, and those whose chance is too low.

The opt-outs of a run are kept where its tasks find them, one folder per partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ammrank_dask.kernels.scoring import Filter
from ammrank_dask.storage.lake.people import OptOuts
from ammrank_dask.storage.store.ids import UserIds, ids_from_arrays
from ammrank_dask.storage.store.scratch_arrays import is_saved, load_arrays, save_arrays
from ammrank_dask.user_hash import partition_of

BARRED_BY = ("exclude", "exclude_by_group", "opt_out", "min_chance")
"""Rules of the config that keep categories from users, in the order in which they count."""
_BEFORE_NOTHING = 1e300
"""Sorts categories without planes after all scores and before what may not be held."""


def take_barred(
    barred: np.ndarray,
    codes: np.ndarray,
    scores: np.ndarray,
    everything: np.ndarray,
    *,
    tie_order: np.ndarray,
    bare: np.ndarray,
    limits: Filter,
) -> None:
    """Take barred categories from users and give them their next best instead; `codes`, `scores`, `everything` change.

    Parameters
    ----------
    barred
        (n, L) bool.
    codes, scores
        (n, k) the best categories of each user, -1 and -inf where there are fewer.
    everything
        (L, n) all scores, -inf for what a user may not hold and for categories without planes.
    bare
        (L,) bool: categories without planes, which users may hold after all others if `limits` keep them.

    Examples
    --------
    >>> limits = Filter(np.ones((0, 3), bool), np.zeros(1, np.uint8), -np.inf, True)
    >>> codes, scores = np.array([[2, 0]], np.int32), np.array([[3.0, 1.0]], np.float32)
    >>> everything = np.array([[1.0], [-np.inf], [3.0]], np.float32)
    >>> take_barred(np.array([[False, False, True]]), codes, scores, everything,
    ...             tie_order=np.arange(3), bare=np.array([False, True, False]), limits=limits)
    >>> codes.tolist(), scores.tolist()
    ([[0, 1]], [[1.0, -inf]])
    """
    everything[barred.T] = -np.inf
    lost = np.take_along_axis(barred, np.maximum(codes, 0), axis=1) & (codes >= 0)
    rows = np.flatnonzero(lost.any(axis=1))  # whoever loses nothing keeps their best
    if not len(rows):
        return
    left = everything[:, rows].T[:, tie_order]
    may_hold_bare = np.broadcast_to(bare & limits.keep_bare, (len(rows), len(bare)))
    if len(limits.allowed):
        may_hold_bare = may_hold_bare & limits.allowed[limits.group[rows]]
    may_hold_bare = (may_hold_bare & ~barred[rows])[:, tie_order]
    key = np.where(np.isfinite(left), -left.astype(np.float64), np.where(may_hold_bare, _BEFORE_NOTHING, np.inf))
    best = np.argsort(key, axis=1, kind="stable")[:, : codes.shape[1]]
    is_left = np.isfinite(np.take_along_axis(key, best, axis=1))
    codes[rows] = np.where(is_left, tie_order[best], -1)
    scores[rows] = np.where(is_left, np.take_along_axis(left, best, axis=1), -np.inf)


def count_allowed(limits: Filter, n_users: int, opted_out: np.ndarray | None, n_categories: int) -> np.ndarray:
    """Return how many users may hold each category (L,) whatever their scores are.

    Parameters
    ----------
    opted_out
        (n, L) bool: what single users opted out of; None for nothing.

    Examples
    --------
    >>> limits = Filter(np.array([[True, False], [True, True]]), np.array([0, 1, 1], np.uint8), 0.0, True)
    >>> opted_out = np.array([[True, True], [False, False], [False, False]])
    >>> count_allowed(limits, 3, None, 2).tolist(), count_allowed(limits, 3, opted_out, 2).tolist()
    ([3, 2], [2, 2])
    """
    if not len(limits.allowed):
        allowed = np.full(n_categories, n_users, np.int64)
        return allowed if opted_out is None else allowed - opted_out.sum(axis=0)
    if opted_out is not None:
        return (limits.allowed[limits.group] & ~opted_out).sum(axis=0)
    in_group = np.bincount(limits.group, minlength=len(limits.allowed))
    return (in_group @ limits.allowed).astype(np.int64)


def count_barred(
    limits: Filter, n_users: int, n_excluded: int, opted_out: np.ndarray | None, is_low: int
) -> dict[str, int]:
    """Return pairs of a user and a category by the rule that keeps them apart, each under the first rule that does.

    Parameters
    ----------
    n_excluded
        How many categories nobody gets.
    is_low
        Pairs that only a low click probability keeps apart.

    Examples
    --------
    >>> limits = Filter(np.array([[True, False, False], [True, True, False]]), np.array([0, 1, 1], np.uint8), 0.0, True)
    >>> opted_out = np.array([[True, True, True], [False, False, False], [False, False, False]])
    >>> count_barred(limits, 3, 1, opted_out, 4)
    {'exclude': 3, 'exclude_by_group': 1, 'opt_out': 1, 'min_chance': 4}
    """
    everything = n_users * n_excluded
    in_groups = 0
    if len(limits.allowed):
        in_groups = int((~limits.allowed).sum(axis=1)[limits.group].sum()) - everything
    opted = 0
    if opted_out is not None:
        opted = int((opted_out & limits.allowed[limits.group] if len(limits.allowed) else opted_out).sum())
    return dict(zip(BARRED_BY, (everything, in_groups, opted, is_low), strict=True))


def sum_barred(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums over all partitions of what `count_barred` returned; rules that keep nothing apart are left out.

    Examples
    --------
    >>> sum_barred([{"exclude": 2, "opt_out": 0}, {"exclude": 1, "opt_out": 0}])
    {'exclude': 3}
    """
    sums = {rule: sum(found.get(rule, 0) for found in counts) for rule in BARRED_BY}
    return {rule: total for rule, total in sums.items() if total}


def save_opt_outs(folder: Path, opt_outs: OptOuts, n_partitions: int) -> None:
    """Keep the pairs of every partition that has some."""
    home = partition_of(opt_outs.user_ids, n_partitions)
    for partition in np.unique(home).tolist():
        own = opt_outs.of_users(np.flatnonzero(home == partition))
        arrays = {**own.user_ids.to_arrays(), "user": own.user, "code": own.code}
        save_arrays(_part(folder, partition), arrays, {})


def load_opted_out(folder: Path, partition: int, users: UserIds, n_categories: int) -> tuple[np.ndarray | None, int]:
    """Return what the users of a partition opted out of, (n, L) bool or None, and how many who did are not there."""
    path = _part(folder, partition)
    if not is_saved(path):
        return None, 0
    arrays, _ = load_arrays(path)
    row = users.positions_of(ids_from_arrays(arrays))
    opted_out = np.zeros((len(users), n_categories), bool)
    is_there = row[arrays["user"]] >= 0
    opted_out[row[arrays["user"][is_there]], arrays["code"][is_there]] = True
    return opted_out, int((row < 0).sum())


def _part(folder: Path, partition: int) -> Path:
    return folder / f"opt-out-{partition:05d}"

"""Measure how far a night's qualifications are from those of the night before."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ammrank_dask.runtime.tasks import Call
from ammrank_dask.scoring.qualifications import NightPart
from ammrank_dask.storage.store.qualifications import QualificationRows

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Shifts are counted in bins, 100 to a decade, from a millionth to a million, up and down: a quantile is read to 2.4 %.
_EDGES = 10.0 ** (np.arange(-600, 601) / 100)
SHIFT_EDGES = np.concatenate([-_EDGES[::-1], _EDGES])


@dataclass(frozen=True)
class DriftCounts:
    """What changed for the users of some partitions; sums, so that partitions add up.

    `users` hold a category in both nights, `new` and `gone` ones in one of them only. `changed` hold another set of
    categories, `first_changed` have another one on rank 1. `kept` are the pairs (user, category) of both nights, and
    `shift_counts` are these by the change of their score.
    """

    users: int
    new: int
    gone: int
    changed: int
    first_changed: int
    jaccard: float
    kept: int
    shift: float
    shift_counts: np.ndarray

    def __add__(self, other: Self) -> DriftCounts:
        """Return the counts of both sets of users together."""
        return DriftCounts(
            self.users + other.users,
            self.new + other.new,
            self.gone + other.gone,
            self.changed + other.changed,
            self.first_changed + other.first_changed,
            self.jaccard + other.jaccard,
            self.kept + other.kept,
            self.shift + other.shift,
            self.shift_counts + other.shift_counts,
        )


NO_DRIFT = DriftCounts(0, 0, 0, 0, 0, 0.0, 0, 0.0, np.zeros(len(SHIFT_EDGES) + 1, np.int64))


def measure_drift(
    before: Sequence[NightPart],
    now: Sequence[NightPart],
    categories: Sequence[str],
    *,
    names_before: Sequence[str] | None = None,
) -> Generator[list[Call], list[DriftCounts], dict[str, Any]]:
    """Compare two nights user by user: yields a call for each partition, and goes on with what they return.

    `names_before` are the categories under the names that they had in the night before, when these are others.

    Returns
    -------
    dict
        Of the users of both nights: `changed_users` (share with another set of categories), `first_changed` (share
        with another rank 1), `jaccard` (mean of |both| ÷ |either|); of the pairs of both nights the change of score,
        `score_shift` with `mean` and `quantiles`. What there is nothing to compare for is None.
    """
    names = (list(categories if names_before is None else names_before), list(categories))
    counts = yield [(compare_parts, (old, new, *names)) for old, new in zip(before, now, strict=True)]
    total = sum(counts, start=NO_DRIFT)
    pairs = int(total.shift_counts.sum())
    return {
        "users": total.users,
        "new_users": total.new,
        "gone_users": total.gone,
        "changed_users": _mean(total.changed, total.users),
        "first_changed": _mean(total.first_changed, total.users),
        "jaccard": _mean(total.jaccard, total.users),
        "score_shift": {
            "pairs": pairs,
            "mean": _mean(total.shift, pairs),
            "quantiles": {f"{share:g}": binned_quantile(total.shift_counts, share) for share in QUANTILES},
        },
    }


def compare_parts(before: NightPart, now: NightPart, names_before: list[str], names: list[str]) -> DriftCounts:
    """Compare the files of one partition in two nights, whose categories have these names, in the same order."""
    return compare_held(before.read(names_before), now.read(names))


def compare_held(before: QualificationRows, now: QualificationRows) -> DriftCounts:
    """Compare what users hold in two nights."""
    place = now.user_ids.positions_of(before.user_ids)
    n_codes = 1 + max(before.category.max(initial=0), now.category.max(initial=0))
    old_user = place[before.user]
    is_common = old_user >= 0
    old_pairs = old_user[is_common] * n_codes + before.category[is_common]
    _, old_at, now_at = np.intersect1d(
        old_pairs, now.user * n_codes + now.category, assume_unique=True, return_indices=True
    )
    common = place[place >= 0]
    n_old = np.diff(before.indptr)[place >= 0]
    n_now = np.diff(now.indptr)[common]
    n_both = np.bincount(now.user[now_at], minlength=len(now.user_ids))[common]
    with np.errstate(invalid="ignore"):  # −inf of a category without planes in both nights
        shift = now.score[now_at] - before.score[is_common][old_at]
    shift = shift[np.isfinite(shift)]
    first_old, first_now = before.category[before.indptr[:-1]][place >= 0], now.category[now.indptr[:-1]][common]
    return DriftCounts(
        users=len(common),
        new=len(now.user_ids) - len(common),
        gone=len(before.user_ids) - len(common),
        changed=int((n_both < np.maximum(n_old, n_now)).sum()),
        first_changed=int((first_old != first_now).sum()),
        jaccard=float((n_both / (n_old + n_now - n_both)).sum()),
        kept=int(n_both.sum()),
        shift=float(shift.sum()),
        shift_counts=np.bincount(np.searchsorted(SHIFT_EDGES, shift, side="right"), minlength=len(SHIFT_EDGES) + 1),
    )


def binned_quantile(shift_counts: np.ndarray, share: float) -> float | None:
    """Return the value below which `share` of the counted shifts lie: the middle of its bin, None without any."""
    total = int(shift_counts.sum())
    if total == 0:
        return None
    at = int(np.searchsorted(np.cumsum(shift_counts), max(1.0, share * total)))
    edges = np.concatenate([SHIFT_EDGES[:1], SHIFT_EDGES, SHIFT_EDGES[-1:]])
    return float((edges[at] + edges[at + 1]) / 2)


def population_stability(before: np.ndarray, now: np.ndarray, n_before: int, n_now: int) -> np.ndarray:
    """Return the population stability index of each category: Σ (p − q) ln(p/q) over its ranks and "not held".

    Parameters
    ----------
    before, now
        (L, k) users who hold the category at each rank; with another number of ranks in the two nights only "held"
        and "not held" are compared. Half a user is added to every count, so that an empty one has a logarithm.
    n_before, n_now
        All users of the night.
    """
    if before.shape[1] != now.shape[1]:
        before, now = (exposure.sum(axis=1, keepdims=True) for exposure in (before, now))
    p, q = _spread(now, n_now), _spread(before, n_before)
    return ((p - q) * np.log(p / q)).sum(axis=1)


def align_exposure(exposure: np.ndarray, names: Sequence[str], categories: Sequence[str]) -> np.ndarray:
    """Return the exposure of a night over the categories of another one: (L, k), 0 where it has none.

    Parameters
    ----------
    exposure, names
        (L', k) users by category and rank, and the names of the categories.
    """
    aligned = np.zeros((len(categories), exposure.shape[1]), np.int64)
    code_of = {name: code for code, name in enumerate(names)}
    for code, name in enumerate(categories):
        if name in code_of:
            aligned[code] = exposure[code_of[name]]
    return aligned


def _spread(exposure: np.ndarray, n_users: int) -> np.ndarray:
    counts = np.column_stack([exposure, n_users - exposure.sum(axis=1)]) + 0.5
    return counts / counts.sum(axis=1, keepdims=True)


def _mean(total: float, count: int) -> float | None:
    return float(total / count) if count else None

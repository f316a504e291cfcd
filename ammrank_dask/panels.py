"""Score rows with planes and keep the best categories of each: what stands around the fused kernel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp

from ammrank_dask.kernels.scoring import Filter, Panels, score_top_k
from storage.vocabulary import AGE_BUCKETS, GENDERS

_PANEL_BYTES = 512 * 1024
_PANEL_WIDTH = (32, 256)
_LINE = 16  # floats of a cache line

UNKNOWN_AGE, UNKNOWN_GENDER = "unknown-age", "unknown-gender"
USER_GROUPS = (*AGE_BUCKETS, UNKNOWN_AGE, *GENDERS, UNKNOWN_GENDER)
"""Groups of users that categories can be kept from; an age below the first bucket counts as unknown."""


@dataclass(frozen=True)
class Limits:
    """What users may hold.

    `min_score` is the lowest score that qualifies, None for no limit. `exclude` are category codes that nobody holds,
    and `exclude_by_group` those that users of one of USER_GROUPS do not hold.
    """

    min_score: float | None = None
    exclude: frozenset[int] = frozenset()
    exclude_by_group: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def allowed(self, n_categories: int) -> np.ndarray:
        """Return (n_groups, L) bool by `group_of`; no rows when everything is allowed."""
        if not self.exclude and not any(self.exclude_by_group.values()):
            return np.ones((0, n_categories), bool)
        n_genders = len(GENDERS) + 1
        table = np.ones((len(AGE_BUCKETS) + 1, n_genders, n_categories), bool)
        table[:, :, sorted(self.exclude)] = False
        for group, codes in self.exclude_by_group.items():
            if group in (*AGE_BUCKETS, UNKNOWN_AGE):
                table[(*AGE_BUCKETS, UNKNOWN_AGE).index(group), :, sorted(codes)] = False
            else:
                table[:, (*GENDERS, UNKNOWN_GENDER).index(group), sorted(codes)] = False
        return table.reshape(-1, n_categories)

    def filter(self, n_categories: int, age_bucket: np.ndarray, gender: np.ndarray) -> Filter:
        """Return the limits as the kernel reads them."""
        lowest = -np.inf if self.min_score is None else float(self.min_score)
        return Filter(
            self.allowed(n_categories), group_of(age_bucket, gender), lowest, keep_bare=self.min_score is None
        )


def group_of(age_bucket: np.ndarray, gender: np.ndarray) -> np.ndarray:
    """Return the row of `Limits.allowed` of each user; -1 is unknown and stands last (uint8)."""
    n_genders = len(GENDERS) + 1
    age = np.where(age_bucket < 0, len(AGE_BUCKETS), age_bucket)
    return (age * n_genders + np.where(gender < 0, len(GENDERS), gender)).astype(np.uint8)


def arrange_planes(weights: np.ndarray, plane_category: np.ndarray, tie_order: np.ndarray, bias: float) -> Panels:
    """Return the planes as the kernel reads them.

    Parameters
    ----------
    weights
        (d + 1, n_planes) float32, the bias as last row, planes sorted by category.
    plane_category
        (n_planes,) the category of each plane.
    tie_order
        (L,) all category codes, the one to prefer among equal scores first.
    bias
        The value of the constant last feature.
    """
    n_weights, n_planes = weights.shape
    n_categories = len(tie_order)
    counts = np.bincount(plane_category, minlength=n_categories)
    slots = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    slot_of = np.zeros(n_categories, np.int64)
    slot_of[slots] = np.arange(len(slots))
    first = np.concatenate([[0], np.cumsum(counts)])[plane_category]
    number = np.arange(n_planes) - first
    order = np.lexsort((slot_of[plane_category], number))
    n_panels, width = _cut_panels(n_weights, n_planes)
    padded = np.zeros((n_weights, n_panels * width), np.float32)
    padded[:, :n_planes] = weights[:, order]
    panels = np.ascontiguousarray(padded.reshape(n_weights, n_panels, width).transpose(1, 0, 2))
    place = np.empty(n_categories, np.int64)
    place[tie_order] = np.arange(n_categories)
    return Panels(
        panels, np.bincount(number), place[slots], tie_order.astype(np.int32), np.sort(place[counts == 0]), float(bias)
    )


def top_categories(
    X: sp.csr_matrix | sp.csr_array, panels: Panels, k: int, limits: Filter | None = None, *, keep_all: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes (n, k) int32 and scores (n, k) float32, best first, and if asked for all scores (L, n).

    Where a row may hold fewer than k, codes are -1 and scores -inf.
    """
    n_rows, n_categories = X.shape[0], len(panels.tie_order)
    if limits is None:
        limits = Filter(np.ones((0, n_categories), bool), np.zeros(n_rows, np.uint8), -np.inf, keep_bare=True)
    codes = np.empty((n_rows, k), np.int32)
    scores = np.empty((n_rows, k), np.float32)
    everything = np.empty((n_categories, n_rows) if keep_all else (0, 0), np.float32)
    score_top_k(X.data, X.indices, X.indptr, panels, limits, codes, scores, everything)
    return codes, scores, everything


def codes_of(names: Sequence[str], categories: Sequence[str]) -> frozenset[int]:
    """Return the codes of categories by name."""
    known = {name: code for code, name in enumerate(categories)}
    return frozenset(known[name] for name in names)


def _cut_panels(n_weights: int, n_planes: int) -> tuple[int, int]:
    """Return the number of panels and their width, so that one stays in the cache of a core."""
    lowest, highest = _PANEL_WIDTH
    most = min(highest, max(lowest, _PANEL_BYTES // (4 * n_weights) // _LINE * _LINE))
    n_panels = max(1, -(-n_planes // most))
    return n_panels, max(_LINE, _LINE * -(-n_planes // (n_panels * _LINE)))

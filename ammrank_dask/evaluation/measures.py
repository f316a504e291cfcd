"""Measure rankings block by block: sums that add up over blocks, and what follows from them at the end.

`measure_block` is the chunk step, `+` combines, the properties and `interval` finalize.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ammrank_dask.kernels.measures import add_resampled, count_wrong_pairs
from ammrank_dask.kernels.topk import top_k_rows

TOP = 10
"""Precision, recall, F1 and NDCG are measured at 1 … TOP."""
REPLICATES = 400
_CHUNK_ROWS = 16_384
# Where a uniform uint64 passes from one Poisson weight to the next; a weight above 11 comes once in 10⁹ draws.
_LIMITS = np.array(
    [int(math.exp(-1) * sum(1 / math.factorial(i) for i in range(n + 1)) * 2**64) for n in range(11)], np.uint64
)
_ROWS, _RANKED, _ERROR = 0, 1, 2
_PRECISION, _RECALL, _NDCG = slice(3, 3 + TOP), slice(3 + TOP, 3 + 2 * TOP), slice(3 + 2 * TOP, 3 + 3 * TOP)
_COLUMNS = 3 + 3 * TOP


@dataclass(frozen=True)
class SliceSums:
    """Sums of errors and their number, by the codes of a slice."""

    error: np.ndarray
    count: np.ndarray

    def __add__(self, other: SliceSums) -> SliceSums:
        """Return the sums of both sets of users."""
        return SliceSums(self.error + other.error, self.count + other.count)


@dataclass(frozen=True)
class Measures:
    """Sums over users of what is measured, over all of them and over resampled ones.

    `sums` is (columns,), `replicates` (REPLICATES, columns); `n_complete` counts users who rank every category.
    """

    sums: np.ndarray
    replicates: np.ndarray
    n_complete: int
    slices: Mapping[str, SliceSums]

    def __add__(self, other: Measures) -> Measures:
        """Return the measures of both sets of users together."""
        slices = {name: found + other.slices[name] for name, found in self.slices.items()}
        return Measures(
            self.sums + other.sums, self.replicates + other.replicates, self.n_complete + other.n_complete, slices
        )

    @property
    def n_users(self) -> int:
        """Users measured."""
        return int(self.sums[_ROWS])

    @property
    def disagreement(self) -> float:
        """ε_dis, the mean over users with a preferred pair; NaN without any."""
        return float(_error(self.sums[None])[0])

    @property
    def kendall_tau(self) -> float | None:
        """Mean Kendall τ, None unless every user ranks every category; then it is 1 − 2 ε_dis."""
        return 1 - 2 * self.disagreement if self.n_users and self.n_complete == self.n_users else None

    @property
    def precision(self) -> np.ndarray:
        """Precision at 1 … TOP."""
        return _mean(self.sums[None], _PRECISION)[0]

    @property
    def recall(self) -> np.ndarray:
        """Recall at 1 … TOP."""
        return _mean(self.sums[None], _RECALL)[0]

    @property
    def f1(self) -> np.ndarray:
        """Harmonic mean of mean precision and mean recall at 1 … TOP."""
        return _f1(self.sums[None])[0]

    @property
    def ndcg(self) -> np.ndarray:
        """NDCG with binary relevance at 1 … TOP."""
        return _mean(self.sums[None], _NDCG)[0]

    def interval(self, measure: str, level: float = 0.95) -> np.ndarray:
        """Return the bootstrap interval of a measure, (2,) or (2, TOP): lower and upper bound."""
        return _bounds(_RESAMPLED[measure](self.replicates), level)

    def difference(self, other: Measures, measure: str = "disagreement", level: float = 0.95) -> tuple[float, ...]:
        """Return this measure minus that of other scores of the same users, with the bounds of its interval.

        Both are resampled with the same weights, so that what users have in common cancels.
        """
        pick = _RESAMPLED[measure]
        change = float(pick(self.sums[None])[0] - pick(other.sums[None])[0])
        low, high = _bounds(pick(self.replicates) - pick(other.replicates), level)
        return change, float(low), float(high)


def measure_block(
    scores: np.ndarray,
    rankings: np.ndarray,
    tied: np.ndarray,
    hashes: np.ndarray,
    slices: Mapping[str, tuple[np.ndarray, int]],
) -> Measures:
    """Measure some users.

    Parameters
    ----------
    scores
        (n, L), no NaN.
    rankings, tied
        (n, m) codes, best first, -1 after the last, every row with at least one; `tied` as `rankings_from_ranks`
        returns it, of the same shape.
    hashes
        (n,) uint64, a hash of the user: it decides the user's weights in the bootstrap.
    slices
        By name the codes (n,) of a division of the users, -1 for none, and the number of codes. The slice
        `category`, of all pairs by their preferred category, is added.
    """
    n_rows, n_categories = scores.shape
    wrong, pairs = np.empty(n_rows), np.empty(n_rows)
    category_wrong, category_pairs = np.zeros(n_categories), np.zeros(n_categories)
    count_wrong_pairs(scores, rankings, tied, wrong, pairs, category_wrong, category_pairs)
    ranked = pairs > 0
    error = np.divide(wrong, pairs, out=np.zeros(n_rows), where=ranked)
    length = (rankings >= 0).sum(axis=1)
    values = np.empty((n_rows, _COLUMNS))
    values[:, _ROWS], values[:, _RANKED], values[:, _ERROR] = 1.0, ranked, error
    for start in range(0, n_rows, _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        _measure_top(scores[part], rankings[part], length[part], values[part])
    sums = values.sum(axis=0)
    replicates = np.zeros((REPLICATES, _COLUMNS))
    with np.errstate(over="ignore"):  # plain numpy (without the compiler) warns where hashes wrap around
        add_resampled(hashes, values, _LIMITS, replicates)
    found = {"category": SliceSums(category_wrong, category_pairs)}
    for name, (codes, n_codes) in slices.items():
        inside = ranked & (codes >= 0)
        code = codes[inside].astype(np.int64)
        found[name] = SliceSums(
            np.bincount(code, error[inside], minlength=n_codes),
            np.bincount(code, minlength=n_codes).astype(np.float64),
        )
    return Measures(sums, replicates, int((length == n_categories).sum()), found)


def _measure_top(scores: np.ndarray, rankings: np.ndarray, length: np.ndarray, out_values: np.ndarray) -> None:
    """Write precision, recall and NDCG; with fewer than TOP categories the places after the last are empty."""
    n_rows, n_categories = scores.shape
    k = min(TOP, n_categories)
    codes = np.empty((n_rows, k), np.int32)
    by_code = np.arange(n_categories, dtype=np.int32)
    top_k_rows(np.ascontiguousarray(scores), by_code, codes, np.empty((n_rows, k), scores.dtype))
    inside = np.zeros((n_rows, n_categories + 1), bool)
    # The code -1 falls into a last column, which no top place has.
    np.put_along_axis(inside, rankings.astype(np.int64) % (n_categories + 1), True, axis=1)
    relevant = np.zeros((n_rows, TOP))
    relevant[:, :k] = np.take_along_axis(inside, codes, axis=1)
    places = np.arange(1, TOP + 1)
    hits = np.cumsum(relevant, axis=1)
    discount = 1 / np.log2(places + 1)
    ideal = np.cumsum(discount)[np.minimum(places, length[:, None]) - 1]
    out_values[:, _PRECISION] = hits / places
    out_values[:, _RECALL] = hits / length[:, None]
    out_values[:, _NDCG] = np.cumsum(relevant * discount, axis=1) / ideal


def _error(sums: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return sums[:, _ERROR] / sums[:, _RANKED]


def _mean(sums: np.ndarray, columns: slice) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return sums[:, columns] / sums[:, [_ROWS]]


def _f1(sums: np.ndarray) -> np.ndarray:
    precision, recall = _mean(sums, _PRECISION), _mean(sums, _RECALL)
    both = precision + recall
    return np.divide(2 * precision * recall, both, out=np.zeros_like(both), where=both > 0)


def _bounds(found: np.ndarray, level: float) -> np.ndarray:
    """Return the percentiles that enclose `level` of the replicates; those that drew nobody are left out."""
    tail = (1 - level) / 2
    with np.errstate(invalid="ignore"):
        return np.nanquantile(found, [tail, 1 - tail], axis=0)


_RESAMPLED = {
    "disagreement": _error,
    "precision": lambda sums: _mean(sums, _PRECISION),
    "recall": lambda sums: _mean(sums, _RECALL),
    "f1": _f1,
    "ndcg": lambda sums: _mean(sums, _NDCG),
}

"""What AMM-rank-plus fixes before its first step: prior, planes, clusterings and knots, and the rows made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from ammrank_dask.kernels.memberships import Centers, Members
from ammrank_dask.kernels.plus_rows import OwnCells, write_rows
from ammrank_dask.model.lagged import LaggedPopularity
from ammrank_dask.model.memberships import (
    COSINE,
    EUCLIDEAN,
    SAMPLE_ROWS,
    ClusteringSettings,
    Memberships,
    count_centers,
    fit_memberships,
    membership_arrays,
    memberships_from,
)
from ammrank_dask.model.own_term import OwnTerm
from ammrank_dask.model.rows import RowStack

_SAMPLE = 2**28
_ROWS_A_CENTER = 25
SAMPLE_VALUES = 1 << 23
"""Values of the sample, at most: 64 MiB, which are 20,000 rows of 419."""


@dataclass(frozen=True)
class RankingCounts:
    """Counts behind the prior: training rows, rows that rank each category, and the sum of the worth of its ranks.

    The first of L categories is worth 1, the last 0, tied ones their mean. `n_complete` rows rank all categories.
    """

    n_rows: int
    clicks: np.ndarray
    worth: np.ndarray
    n_complete: int

    def __add__(self, other: RankingCounts) -> RankingCounts:
        """Return the counts of both sets of rows together."""
        return RankingCounts(
            self.n_rows + other.n_rows,
            self.clicks + other.clicks,
            self.worth + other.worth,
            self.n_complete + other.n_complete,
        )

    @property
    def is_complete(self) -> bool:
        """Whether every row ranks all categories, as tables do."""
        return self.n_rows > 0 and self.n_complete == self.n_rows


def count_rankings(rankings: np.ndarray, n_categories: int, tied: np.ndarray | None = None) -> RankingCounts:
    """Return the counts of some rows.

    Examples
    --------
    >>> counts = count_rankings(np.array([[2, 0, 1], [2, 1, 0]]), 3)
    >>> counts.clicks.tolist(), counts.worth.tolist(), counts.is_complete
    ([2, 2, 2], [0.5, 0.5, 2.0], True)
    """
    present = rankings >= 0
    length = present.sum(axis=1)
    clicks = np.bincount(rankings[present], minlength=n_categories)
    full = np.flatnonzero(length == n_categories) if n_categories > 1 else np.zeros(0, np.int64)
    worth = np.zeros(n_categories)
    if len(full):
        place = np.tile(np.arange(n_categories, dtype=np.float64), (len(full), 1))
        if tied is not None and tied.size:
            group = np.cumsum(~tied[full], axis=1)
            for row in range(len(full)):
                sums, sizes = np.bincount(group[row], weights=place[row]), np.bincount(group[row])
                place[row] = (sums / np.maximum(sizes, 1))[group[row]]
        np.add.at(worth, rankings[full], 1 - place / (n_categories - 1))
    return RankingCounts(int((length > 0).sum()), clicks.astype(np.int64), worth, len(full))


def prior_of(counts: RankingCounts) -> np.ndarray:
    """Return the score of each category before its row is looked at, float32.

    For partial rankings ln((c + ½) / (n − c + ½)), where c of n rows rank the category; where every row ranks all
    categories, twice the log odds of what its places are worth on average, within .02 and .98.
    """
    if counts.is_complete:
        mean = np.clip(counts.worth / counts.n_rows, 0.02, 0.98)
        return (2 * np.log(mean / (1 - mean))).astype(np.float32)
    return np.log((counts.clicks + 0.5) / (counts.n_rows - counts.clicks + 0.5)).astype(np.float32)


@dataclass(frozen=True)
class PlusBasis:
    """Prior (L,) float32 and limit of planes (L,) of the categories, the clusterings, and the own term.

    `clicks` (L,) and `n_rows` are the counts behind the prior, `n_features` the columns of a stored row. `lagged` is
    there during a training on rows of several moments: their own popularity is then the prior, in the place of `prior`.
    """

    n_features: int
    n_rows: int
    clicks: np.ndarray
    prior: np.ndarray
    limit: np.ndarray
    memberships: Memberships
    own: OwnTerm
    lagged: LaggedPopularity | None = None

    @property
    def n_columns(self) -> int:
        """Columns of a row with its memberships, without the constant."""
        return self.n_features + self.memberships.n_centers

    @property
    def is_complete(self) -> bool:
        """Whether every training row ranks all categories, as tables do."""
        return bool(np.all(self.clicks == self.n_rows))

    @property
    def own_shape(self) -> tuple[int, int]:
        """Shape of the weights that all categories share: those of the own term, then those of popularity."""
        n_rows, width = self.own.weights.shape
        return n_rows + (self.lagged is not None), width

    def at(self, moment: int, weights: np.ndarray) -> PlusBasis:
        """Return the basis with learned weights, of `own_shape`, and the prior of a moment; it has no moments then."""
        own = self.own.with_weights(weights[: len(self.own.weights)])
        if self.lagged is None:
            return replace(self, own=own)
        prior = self.lagged.prior(moment, weights[-1])
        return replace(self, own=own, clicks=self.lagged.clicks, prior=prior, lagged=None)


def basis_arrays(basis: PlusBasis) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and attributes from which `basis_from` makes the same again."""
    arrays, geometry = membership_arrays(basis.memberships)
    own = {f"own_{name}": value for name, value in vars(basis.own).items()}
    named = {"popularity": basis.clicks, "prior": basis.prior, "limit": basis.limit}
    if basis.lagged is not None:
        named |= {"lagged_clicks": basis.lagged.clicks, "lagged_scores": basis.lagged.scores}
    return {**named, **arrays, **own}, {"n_rows": basis.n_rows, **geometry}


def basis_from(arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> PlusBasis:
    """Return the basis that `basis_arrays` took apart."""
    own = OwnTerm(*(arrays[f"own_{name}"] for name in ("columns", "group", "knots", "n_knots", "weights")))
    lagged = None
    if "lagged_clicks" in arrays:
        lagged = LaggedPopularity(arrays["lagged_clicks"], arrays["lagged_scores"])
    return PlusBasis(
        arrays["centers"].shape[1],
        attributes["n_rows"],
        arrays["popularity"],
        arrays["prior"],
        arrays["limit"],
        memberships_from(arrays, attributes),
        own,
        lagged,
    )


def make_basis(
    counts: RankingCounts,
    sample: sp.csr_matrix,
    own: OwnTerm,
    *,
    max_planes: int,
    clickers_per_plane: int,
    n_clusterings: int,
    n_centers: int | None,
    geometry: str | None,
    seed: int,
    start: Memberships | None = None,
) -> PlusBasis:
    """Return the basis of training rows that were counted and sampled.

    Parameters
    ----------
    counts
        Of all training rows.
    sample
        Some of them, as stored; knots and centres come from these.
    own
        The own columns.
    max_planes, clickers_per_plane
        A category has one plane for so many rows that rank it, between 1 and `max_planes`.
    n_clusterings, n_centers, geometry, seed, start
        As in `ClusteringSettings`; a geometry of None is Euclidean where every row ranks all categories.
    """
    settings = ClusteringSettings(counts.n_rows, n_clusterings, n_centers, geometry_of(counts, geometry), seed, start)
    memberships = fit_memberships(sample, settings)
    own = own.with_knots(sample, prior_of(counts))
    return join_basis(counts, memberships, own, max_planes=max_planes, clickers_per_plane=clickers_per_plane)


def join_basis(
    counts: RankingCounts, memberships: Memberships, own: OwnTerm, *, max_planes: int, clickers_per_plane: int
) -> PlusBasis:
    """Return the basis of training rows that were counted, of their clusterings and of an own term with its knots."""
    limit = np.clip(counts.clicks // clickers_per_plane, 1, max_planes)
    n_features = memberships.centers.shape[1]
    return PlusBasis(n_features, counts.n_rows, counts.clicks, prior_of(counts), limit, memberships, own)


def geometry_of(counts: RankingCounts, wanted: str | None) -> str:
    """Return the geometry of the clusterings: the one that is wanted, or Euclidean for tables."""
    return wanted or (EUCLIDEAN if counts.is_complete else COSINE)


def sample_size(n_rows: int, n_centers: int | None, n_values: int) -> int:
    """Return how many of the training rows centres and knots are made from.

    Rows with very many values are fewer: the sample is in the memory of one task.

    Parameters
    ----------
    n_rows, n_values
        Training rows, and the values of all of them.
    n_centers
        Centres of a clustering; None for as many as the rows are worth.

    Examples
    --------
    >>> sample_size(100_000, None, 100 * 100_000), sample_size(100_000, None, 1_000 * 100_000)
    (20000, 8388)
    """
    wanted = count_centers(n_rows) if n_centers is None else n_centers
    room = max(1, SAMPLE_VALUES * n_rows // max(1, n_values))
    return min(n_rows, max(SAMPLE_ROWS, _ROWS_A_CENTER * wanted), room)


def sample_rows(
    labelled: Sequence[np.ndarray],
    read: Callable[[int], sp.csr_matrix],
    *,
    n_rows: int,
    n_values: int,
    n_centers: int | None,
    seed: int,
) -> sp.csr_matrix:
    """Return rows drawn by (seed, block), in the order of the blocks; rows without a ranking are not drawn.

    Nothing is kept of the rows that are not drawn, nor a second copy of those that are.

    Parameters
    ----------
    labelled
        By block, (n_rows,) booleans: the row has a ranking.
    read
        Returns the rows of a block.
    n_rows, n_values, n_centers
        As in `sample_size`, which says how many are drawn; all rows have a ranking that count.
    """
    n_wanted = sample_size(n_rows, n_centers, n_values)
    stack = RowStack(n_values * n_wanted // n_rows)
    for block, drawn in enumerate(draw_rows(labelled, n_wanted, seed)):
        if len(drawn):
            stack.add(read(block)[drawn])
    return stack.rows()


def draw_rows(labelled: Sequence[np.ndarray], n_wanted: int, seed: int) -> list[np.ndarray]:
    """Return by block which of its rows are drawn: so many have the lowest numbers drawn by (seed, block).

    Of all rows only those are kept in between that may still be among the lowest.
    """
    drawn: list[tuple[np.ndarray, np.ndarray]] = []
    highest, n_kept = np.inf, 0
    for block, marks in enumerate(labelled):
        numbers = np.where(marks, np.random.default_rng([seed, _SAMPLE, block]).random(len(marks)), np.inf)
        rows = np.flatnonzero(numbers <= highest)
        drawn.append((rows, numbers[rows]))
        n_kept += len(rows)
        if n_kept > 2 * n_wanted or block + 1 == len(labelled):
            highest = np.partition(np.concatenate([kept for _, kept in drawn]), n_wanted - 1)[n_wanted - 1]
            drawn = [(rows[kept <= highest], kept[kept <= highest]) for rows, kept in drawn]
            n_kept = sum(len(rows) for rows, _ in drawn)
    return [rows for rows, _ in drawn]


@dataclass(frozen=True)
class PlusRows:
    """CSR rows with memberships (`data`, `indices`, `indptr`), and what the own term needs.

    `knot` stands beside `data`, or is empty where no column is a category's own, `own_scale` is (n_rows, n_groups);
    `kernels.plus_rows.write_rows` says what they are. `indices` has 16 bits where they are enough: rows are read from
    files in every epoch, by all workers at once.
    """

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    knot: np.ndarray
    own_scale: np.ndarray

    @property
    def n_bytes(self) -> int:
        """Memory of the arrays."""
        return sum(array.nbytes for array in vars(self).values())

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def members(self, n_features: int) -> Members:
        """Return the memberships alone: the columns of a row behind the `n_features` of the store."""
        is_member = self.indices >= n_features
        n_before = np.concatenate([[0], np.cumsum(is_member)])
        return Members(n_before[self.indptr], self.indices[is_member] - np.int32(n_features), self.data[is_member])


def prepare_plus_rows(X: sp.csr_matrix | sp.csr_array, centers: Centers, own: OwnCells) -> PlusRows:
    """Return stored rows in the form of training."""
    n_rows = X.shape[0]
    room = X.nnz + n_rows * int(centers.n_nearest.sum())
    n_columns = X.shape[1] + int(centers.start[-1])
    indptr, indices = np.empty(n_rows + 1, np.int64), np.empty(room, np.uint16 if n_columns <= 2**16 else np.int32)
    data, knot = np.empty(room, np.float32), np.empty(room if len(own.group) else 0, np.float32)
    own_scale = np.zeros((n_rows, int(own.group.max(initial=-1)) + 1), np.float32)
    n = write_rows(X.data, X.indices, X.indptr, centers, own, indptr, indices, data, knot, own_scale)
    return PlusRows(data[:n], indices[:n], indptr, knot[:n], own_scale)

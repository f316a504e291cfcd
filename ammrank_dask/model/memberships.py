"""Cluster the training rows; how much a row belongs to its nearest centres becomes columns of AMM-rank-plus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ammrank_dask.kernels.memberships import Centers, add_members, nearest_centers
from ammrank_dask.model.plane_panels import cut_into_panels

COSINE, EUCLIDEAN = "cosine", "euclidean"
GEOMETRIES = (COSINE, EUCLIDEAN)
TEMPERATURE, N_NEAREST = 0.05, 16
TABLE_CENTERS, TABLE_NEAREST = (10, 30, 100, 300), 8
SAMPLE_ROWS = 10_000
_ROWS_A_CENTER, _FEWEST_CENTERS, _MOST_CENTERS = 60, 200, 800
_PASSES, _FIRST_PASSES = 4, 2
_ROWS_AT_ONCE = 512
CENTER_UNIT = 2.0**-14
"""Centres of the cosine are whole multiples of this, from -2 to 2: kernels read them as numbers of 16 bits."""


@dataclass(frozen=True)
class Memberships:
    """The centres of some clusterings, and how rows belong to them.

    `centers` is (Σ k, d) float32, those of clustering j from `start[j]` to `start[j + 1]`. A row belongs to its
    `n_nearest` centres of each by exp(affinity / `temperature`): by cosine, divided by the sum, or in the Euclidean
    geometry with −½ distance² for affinity, divided by the norm.
    """

    centers: np.ndarray
    start: np.ndarray
    n_nearest: np.ndarray
    temperature: np.ndarray
    geometry: str

    @classmethod
    def nothing(cls, n_features: int, geometry: str) -> Memberships:
        """Return no clusterings at all."""
        whole, real = np.zeros(0, np.int64), np.zeros(0, np.float32)
        return cls(np.zeros((0, n_features), np.float32), np.zeros(1, np.int64), whole, real, geometry)

    @property
    def n_centers(self) -> int:
        """Columns that memberships add."""
        return len(self.centers)

    def kernel_form(self) -> Centers:
        """Return the centres as kernels read them, which never changes a bit of what they find.

        Centres of the cosine that are no whole multiples of the unit, of models of 0.2.0, are read as float32.
        """
        of = (self.start, self.n_nearest, self.temperature, self.geometry)
        whole = self._whole_centers() if self.geometry == COSINE else None
        return _centers_of(self.centers, *of) if whole is None else _centers_of(whole, *of, unit=CENTER_UNIT)

    def _whole_centers(self) -> np.ndarray | None:
        """Return the centres as multiples of the unit, or None where some are not; some at a time, to save memory."""
        whole = np.empty(self.centers.shape, np.int16)
        for start in range(0, len(whole), _ROWS_AT_ONCE):
            piece = self.centers[start : start + _ROWS_AT_ONCE] / np.float32(CENTER_UNIT)
            if np.any(piece != np.rint(piece)) or np.abs(piece).max(initial=0) >= 2**15:
                return None
            whole[start : start + _ROWS_AT_ONCE] = piece
        return whole


class BegunClustering(NamedTuple):
    """A clustering after its first passes: centres (k, d) float32, and which drawn row the next empty centre takes."""

    centers: np.ndarray
    n_drawn: int


@dataclass(frozen=True)
class ClusteringSettings:
    """How sampled rows are clustered.

    Parameters
    ----------
    n_rows
        Training rows behind the sample, from which the number of centres follows.
    n_clusterings, n_centers
        Clusterings, and centres of each; None for as many as `count_centers` says.
    geometry
        `cosine` for users, `euclidean` for tables: there clusterings are of 10, 30, 100 and 300 centres.
    seed
        Decides the rows to start from.
    start
        Clusterings to start from instead, over the columns of the sample, so that a centre stays what it was; their
        number of centres stays too. They are left aside where geometry or number of clusterings differ.
    """

    n_rows: int
    n_clusterings: int
    n_centers: int | None
    geometry: str
    seed: int
    start: Memberships | None = None


def fit_memberships(
    X: sp.csr_matrix, settings: ClusteringSettings, *, only: int | None = None, begun: BegunClustering | None = None
) -> Memberships:
    """Cluster sampled rows; one thread and one order of addition, so that the same rows give the same bits.

    Parameters
    ----------
    X
        The sample, as stored.
    only
        Make this one of the clusterings alone, counted from 0: `join_memberships` puts them together.
    begun
        What `begin_clustering` made of that one, of the same sample.
    """
    geometry, seed = settings.geometry, settings.seed
    X, norms = _rows_to_cluster(X, geometry)
    starts = _starts_of(X, settings)
    numbers = [number for number in range(len(starts)) if only in (None, number)]
    if not numbers or not X.shape[0]:
        return Memberships.nothing(X.shape[1], geometry)
    counts = [starts[number][0] for number in numbers]
    found = [
        cluster_rows(X, norms, k, geometry, [seed, number], start=starts[number][1], begun=begun).centers
        for number, k in zip(numbers, counts, strict=True)
    ]
    nearest = [min(N_NEAREST if geometry == COSINE else TABLE_NEAREST, k) for k in counts]
    if geometry == COSINE:
        found = [(np.rint(centers / CENTER_UNIT) * CENTER_UNIT).astype(np.float32) for centers in found]
    widths = [TEMPERATURE if geometry == COSINE else _squared_width(X, centers) for centers in found]
    return Memberships(
        np.concatenate(found),
        np.concatenate([[0], np.cumsum(counts)]),
        np.array(nearest, np.int64),
        np.array(widths, np.float32),
        geometry,
    )


def begin_clustering(X: sp.csr_matrix, settings: ClusteringSettings, only: int) -> BegunClustering | None:
    """Make the first half of the passes of one clustering; None where rows are worth fewer clusterings.

    `fit_memberships` makes the rest: halves of three share out evenly among two workers.
    """
    X, norms = _rows_to_cluster(X, settings.geometry)
    starts = _starts_of(X, settings)
    if only >= len(starts) or not X.shape[0]:
        return None
    k, centers = starts[only]
    return cluster_rows(X, norms, k, settings.geometry, [settings.seed, only], start=centers, n_passes=_FIRST_PASSES)


def _rows_to_cluster(X: sp.csr_matrix, geometry: str) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return the rows of a sample that have a direction, or with tables all, and their norms, or 1."""
    norms = np.sqrt(_sums_of_squares(X)).astype(np.float32)
    if geometry == COSINE and not norms.all():
        X, norms = _drop_rows(X, norms == 0), norms[norms > 0]
    if geometry != COSINE:
        norms = np.ones(X.shape[0], np.float32)
    return X, norms


def _starts_of(X: sp.csr_matrix, settings: ClusteringSettings) -> list[tuple[int, np.ndarray | None]]:
    """Return of every clustering its number of centres, and the centres to start from; None where they are drawn."""
    start, geometry = settings.start, settings.geometry
    if settings.n_clusterings == 0:
        counts = []
    elif geometry == COSINE:
        wanted = count_centers(settings.n_rows) if settings.n_centers is None else settings.n_centers
        counts = [min(wanted, X.shape[0])] * settings.n_clusterings
    else:
        counts = [k for k in TABLE_CENTERS if k <= X.shape[0] // 4]
    counts = [k for k in counts if k >= 2]
    # Without clusterings there is nothing to start from: an empty array still splits into one part.
    if counts and start is not None and start.geometry == geometry and len(start.n_nearest) == len(counts):
        return [(len(part), part) for part in np.split(start.centers, start.start[1:-1])]
    return [(k, None) for k in counts]


def join_memberships(parts: Sequence[Memberships]) -> Memberships:
    """Return clusterings that were made one by one as `fit_memberships` makes them together."""
    counts = np.concatenate([np.diff(part.start) for part in parts])
    return Memberships(
        np.concatenate([part.centers for part in parts]),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.concatenate([part.n_nearest for part in parts]),
        np.concatenate([part.temperature for part in parts]),
        parts[0].geometry,
    )


def count_clusterings(n_clusterings: int, geometry: str) -> int:
    """Return how many calls of `fit_memberships` with `only` make all of them, at least one.

    The number of rows may be worth fewer; the calls that are too many find nothing.
    """
    return max(1, n_clusterings if geometry == COSINE or not n_clusterings else len(TABLE_CENTERS))


def count_centers(n_rows: int) -> int:
    """Return how many centres a clustering of `n_rows` training rows has: more rows can separate more centres.

    Examples
    --------
    >>> [count_centers(n) for n in (30, 1_000, 14_000, 30_000, 200_000)]
    [1, 50, 233, 500, 800]
    """
    return max(min(_FEWEST_CENTERS, n_rows // 20), min(_MOST_CENTERS, n_rows // _ROWS_A_CENTER))


def cluster_rows(
    X: sp.csr_matrix,
    norms: np.ndarray,
    k: int,
    geometry: str,
    seed: list[int],
    *,
    start: np.ndarray | None = None,
    begun: BegunClustering | None = None,
    n_passes: int = _PASSES,
) -> BegunClustering:
    """Return k centres (k, d) float32 after some passes of Lloyd's, spherical with the cosine.

    They start at rows drawn by the seed, or at `start`; an empty centre takes the next row drawn. Passes that were
    made before, of `begun`, are not made again.
    """
    n_passes -= 0 if begun is None else _FIRST_PASSES
    drawn = np.random.default_rng([*seed, 2**29]).permutation(X.shape[0])

    def unit_rows(chosen: np.ndarray) -> np.ndarray:
        """Return some rows (n, d) divided by their norms; all of them would take three times the memory of X."""
        return (sp.diags_array(1 / norms[chosen].astype(np.float64)) @ X[chosen].astype(np.float64)).toarray()

    if begun is not None:
        centers, n_drawn = begun
    elif start is not None:
        centers, n_drawn = start, 0
    else:
        centers, n_drawn = unit_rows(drawn[:k]).astype(np.float32), k
    data = X.data.astype(np.float32, copy=False)
    for _ in range(n_passes):
        kernel_form = _one_clustering(centers.astype(np.float32, copy=False), geometry)
        nearest = np.empty((X.shape[0], 1), np.int64)
        nearest_centers(data, X.indices, X.indptr, norms, kernel_form, nearest, np.empty(nearest.shape, np.float32))
        del kernel_form
        sums, count = np.zeros((k, X.shape[1])), np.zeros(k, np.int64)
        add_members(data, X.indices, X.indptr, norms, nearest[:, 0], sums, count)
        for empty in np.flatnonzero(count == 0):
            sums[empty], count[empty] = unit_rows(drawn[[n_drawn % len(drawn)]])[0], 1
            n_drawn += 1
        sums /= count[:, None]
        if geometry == COSINE:
            lengths = np.sqrt((sums * sums).sum(axis=1))
            # Rows that cancel out have a mean without a direction: their centre stays where it was, at 0.
            sums /= np.where(lengths > 0, lengths, 1.0)[:, None]
        centers = sums.astype(np.float32)
        del sums
    return BegunClustering(centers, n_drawn)


def _squared_width(X: sp.csr_matrix, centers: np.ndarray) -> float:
    """Return the square of the median distance of the rows to their nearest centre."""
    kernel_form = _one_clustering(centers, EUCLIDEAN)
    nearest = np.empty((X.shape[0], 1), np.int64)
    affinity = np.empty(nearest.shape, np.float32)
    norms = np.ones(X.shape[0], np.float32)
    data = X.data.astype(np.float32, copy=False)
    nearest_centers(data, X.indices, X.indptr, norms, kernel_form, nearest, affinity)
    distances = np.maximum(0.0, _sums_of_squares(X) - 2.0 * affinity[:, 0])
    return float(max(np.median(distances), 1e-12))


def _drop_rows(X: sp.csr_matrix, dropped: np.ndarray) -> sp.csr_matrix:
    """Return the other rows; where those that are dropped have no values, as is usual, nothing is copied."""
    if np.diff(X.indptr)[dropped].any():
        return X[~dropped]
    indptr = np.concatenate([X.indptr[:1], X.indptr[1:][~dropped]])
    return sp.csr_matrix((X.data, X.indices, indptr), shape=(len(indptr) - 1, X.shape[1]))


def _sums_of_squares(X: sp.csr_matrix) -> np.ndarray:
    """Return the sum of the squares of every row (n,), in the precision of the rows, as float64; some at a time."""
    pieces = (X[start : start + _ROWS_AT_ONCE] for start in range(0, X.shape[0], _ROWS_AT_ONCE))
    sums = [np.asarray(piece.multiply(piece).sum(axis=1), np.float64).ravel() for piece in pieces]
    return np.concatenate([np.empty(0), *sums])


def _one_clustering(centers: np.ndarray, geometry: str) -> Centers:
    one = np.ones(1, np.float32)
    return _centers_of(centers, np.array([0, len(centers)]), np.ones(1, np.int64), one, geometry)


def _centers_of(
    centers: np.ndarray,
    start: np.ndarray,
    n_nearest: np.ndarray,
    temperature: np.ndarray,
    geometry: str,
    unit: float = 1.0,
) -> Centers:
    weights = np.zeros((centers.shape[1] + 1, len(centers)), centers.dtype)
    weights[:-1] = centers.T
    if geometry == EUCLIDEAN:
        weights[-1] = -0.5 * np.einsum("ij,ij->i", centers, centers, dtype=np.float64)
    cosine = geometry == COSINE
    return Centers(
        cut_into_panels(weights),
        start.astype(np.int64),
        n_nearest.astype(np.int64),
        temperature.astype(np.float32),
        unit_rows=cosine,
        unit_sum=cosine,
        bias=1.0,
        unit=unit,
    )


def membership_arrays(memberships: Memberships) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and attributes from which `memberships_from` makes the same again."""
    arrays = {
        "centers": memberships.centers,
        "center_start": memberships.start,
        "center_nearest": memberships.n_nearest,
        "center_temperature": memberships.temperature,
    }
    return arrays, {"geometry": memberships.geometry}


def memberships_from(arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> Memberships:
    """Return the memberships that `membership_arrays` took apart."""
    return Memberships(
        arrays["centers"],
        arrays["center_start"],
        arrays["center_nearest"],
        arrays["center_temperature"],
        attributes["geometry"],
    )

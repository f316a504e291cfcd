"""The own term of AMM-rank-plus: what a user did in a category itself counts by weights all categories share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from ammrank_dask.kernels.own_term import HAT_SCALE, N_KNOTS
from ammrank_dask.kernels.plus_rows import OwnCells
from ammrank_dask.storage.vocabulary import INTENSITY, RECENCY


@dataclass(frozen=True)
class OwnTerm:
    """h_q(v) = β_q v/‖x_group‖/√groups + 0.1 Σ_m γ_qm hat_m(v) of a category's own column of each kind q.

    A column of the first kind that is not 0 adds the category's lift, 0.1 Σ_m δ_m hat_m(b) of its prior b, as well.

    `columns` is (n_kinds, L), -1 where a category has none; `group` (n_kinds,) the event group of a kind, from 0; kinds
    of a group share a norm. `knots` (n_kinds + 1, 6) float32 rise; the first `n_knots` (n_kinds + 1,) count. `weights`
    (n_kinds + 1, 8) float32 are β, one γ a knot, and a last 0. The last row of these three is of the prior: 0 and δ.
    Models that were saved before there were lifts do not have it, nor does a term without kinds.
    """

    columns: np.ndarray
    group: np.ndarray
    knots: np.ndarray
    n_knots: np.ndarray
    weights: np.ndarray

    @classmethod
    def of_columns(cls, columns: np.ndarray, group: np.ndarray) -> OwnTerm:
        """Return the term before anything was learned: no knots, weights 0."""
        n_rows = len(columns) + 1 if len(columns) else 0
        return cls(
            np.ascontiguousarray(columns, np.int64),
            np.ascontiguousarray(group, np.int64),
            np.zeros((n_rows, N_KNOTS), np.float32),
            np.zeros(n_rows, np.int64),
            np.zeros((n_rows, N_KNOTS + 2), np.float32),
        )

    @classmethod
    def nothing(cls, n_categories: int) -> OwnTerm:
        """Return the term of rows in which no column is a category's own."""
        return cls.of_columns(np.zeros((0, n_categories), np.int64), np.zeros(0, np.int64))

    @property
    def n_kinds(self) -> int:
        """Kinds of own columns."""
        return len(self.columns)

    @property
    def n_groups(self) -> int:
        """Event groups of the kinds."""
        return int(self.group.max(initial=-1)) + 1

    @property
    def has_lift(self) -> bool:
        """Whether the prior has hats."""
        return len(self.weights) > self.n_kinds

    def with_knots(self, X: sp.csr_matrix, prior: np.ndarray) -> OwnTerm:
        """Return the term with knots at the quantiles of the stored non-zeros of some rows, and of their priors."""
        knots, n_knots = np.zeros_like(self.knots), np.zeros_like(self.n_knots)
        # Not by column, which would be one more copy of all rows.
        cells = self.cells(X.shape[1])
        kind = cells.kind.astype(np.int16)[X.indices] if self.n_kinds else np.zeros(0, np.int16)
        kind[X.data[: len(kind)] == 0] = -1
        found = [quantile_knots(X.data[kind == number]) for number in range(self.n_kinds)]
        if self.has_lift:
            found.append(quantile_knots(prior[cells.category[X.indices[kind == 0]]]))
        for row, at in enumerate(found):
            knots[row, : len(at)], n_knots[row] = at, len(at)
        return replace(self, knots=knots, n_knots=n_knots)

    def prior_knot(self, prior: np.ndarray) -> np.ndarray:
        """Return where the prior of each category stands among its knots, float32; nothing where it has no hats."""
        if not self.has_lift or not self.n_knots[-1]:
            return np.zeros(0, np.float32)
        n = self.n_knots[-1]
        return np.interp(prior, self.knots[-1, :n], np.arange(n)).astype(np.float32)

    def lifts(self, prior: np.ndarray) -> np.ndarray:
        """Return what an own column of the first kind adds to the score of each category by being there, float64."""
        if not self.has_lift or not self.n_knots[-1]:
            return np.zeros(len(prior))
        n = self.n_knots[-1]
        return np.interp(prior, self.knots[-1, :n], HAT_SCALE * self.weights[-1, 1 : n + 1].astype(np.float64))

    def with_weights(self, weights: np.ndarray) -> OwnTerm:
        """Return the term with other weights."""
        return replace(self, weights=np.ascontiguousarray(weights, np.float32))

    def cells(self, n_columns: int) -> OwnCells:
        """Return the term as kernels read it, for rows of so many columns."""
        kind, category = np.full(n_columns, -1, np.int64), np.full(n_columns, -1, np.int64)
        for number, columns in enumerate(self.columns):
            codes = np.flatnonzero(columns >= 0)
            kind[columns[codes]], category[columns[codes]] = number, codes
        return OwnCells(kind, category, self.group, self.knots[: self.n_kinds], self.n_knots[: self.n_kinds])


def quantile_knots(values: np.ndarray) -> np.ndarray:
    """Return the distinct ones of six quantiles, float32, rising; none without values.

    Examples
    --------
    >>> quantile_knots(np.arange(11, dtype=np.float32))
    array([ 0.,  2.,  4.,  6.,  8., 10.], dtype=float32)
    """
    if not len(values):
        return np.zeros(0, np.float32)
    at = np.quantile(values.astype(np.float64), np.linspace(0, 1, N_KNOTS), overwrite_input=True)
    return np.unique(at.astype(np.float32))


def check_own_columns(
    columns: np.ndarray | Sequence[Sequence[int]],
    groups: Sequence[int] | None,
    *,
    n_features: int,
    n_categories: int,
) -> OwnTerm:
    """Return the term of the columns a caller names, refusing what cannot be meant.

    Parameters
    ----------
    columns
        (n_kinds, n_categories) column numbers, -1 where a category has none.
    groups
        (n_kinds,) kinds with the same number share a norm; None: each has its own.
    """
    table = np.asarray(columns)
    if table.ndim != 2 or table.shape[1] != n_categories or not np.issubdtype(table.dtype, np.integer):
        raise ValueError(
            f"own_columns must be whole numbers of shape (kinds, {n_categories}), got {table.dtype} of {table.shape}"
        )
    named = table[table >= 0]
    if not len(named):
        raise ValueError("own_columns must name a column of at least one category, found only -1; leave it out")
    if table.min() < -1 or named.max() >= n_features:
        wrong = table.min() if table.min() < -1 else named.max()
        raise ValueError(f"own_columns must hold columns from 0 to {n_features - 1}, or -1, got {wrong}")
    if len(np.unique(named)) != len(named):
        raise ValueError("own_columns must name a column once, found one that is named twice")
    if groups is None:
        return OwnTerm.of_columns(table, np.arange(len(table)))
    if len(groups) != len(table):
        raise ValueError(f"own_groups must have a number for each of the {len(table)} kinds, got {len(groups)}")
    return OwnTerm.of_columns(table, np.unique(np.asarray(groups), return_inverse=True)[1])


def own_columns_of_names(columns: Sequence[str], categories: Sequence[str]) -> tuple[np.ndarray, list[int]] | None:
    """Return own columns and their groups as the names of a site's columns tell them, None where none is a category's.

    Examples
    --------
    >>> own_columns_of_names(["pv:intensity:a", "pv:recency:a", "sq:intensity:b", "age:13-17"], ["a", "b"])
    (array([[ 0, -1],
           [ 1, -1],
           [-1,  2]]), [0, 0, 1])
    """
    code_of = {name: code for code, name in enumerate(categories)}
    kinds: dict[tuple[str, str], dict[int, int]] = {}
    for number, name in enumerate(columns):
        group, _, rest = name.partition(":")
        what, _, category = rest.partition(":")
        if what in (INTENSITY, RECENCY) and category in code_of:
            kinds.setdefault((group, what), {})[code_of[category]] = number
    if not kinds:
        return None
    table = np.full((len(kinds), len(categories)), -1, np.int64)
    groups = list(dict.fromkeys(group for group, _ in kinds))
    for kind, numbers in enumerate(kinds.values()):
        table[kind, list(numbers)] = list(numbers.values())
    return table, [groups.index(group) for group, _ in kinds]


def name_own_kinds(own_columns: np.ndarray, columns: Sequence[str]) -> list[str]:
    """Return group and measure of every kind of own columns, from the names of a site's columns.

    Examples
    --------
    >>> name_own_kinds(np.array([[0, -1], [-1, 1]]), ["pv:intensity:a", "sq:recency:b"])
    ['pv:intensity', 'sq:recency']
    """
    return [":".join(columns[kind.max()].split(":", 2)[:2]) for kind in own_columns]


def own_parameters(columns: Sequence[str], categories: Sequence[str]) -> dict[str, Any]:
    """Return `own_columns` and `own_groups` of AMMRankPlus by the names of the columns; nothing where none is own."""
    own = own_columns_of_names(columns, categories)
    return {} if own is None else {"own_columns": own[0].tolist(), "own_groups": own[1]}

"""Explain the scores of one row by its features."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ammrank_dask.kernels.own_term import own_value
from ammrank_dask.kernels.plus_rows import OwnCells
from ammrank_dask.model.plus_basis import PlusBasis, PlusRows, prepare_plus_rows


@dataclass(frozen=True)
class CategoryScore:
    """The score of one category and where it comes from.

    `score` = `bias` + Σ `contributions`, and -inf for a category without planes. `plane` is the winning one of
    the category's planes, from 0, None without planes. `features` (k,) are the row's non-zero columns and
    `contributions` (k,) their value × weight, largest first.
    """

    category: int
    score: float
    plane: int | None
    bias: float
    features: np.ndarray
    contributions: np.ndarray


def explain_row(
    row: sp.csr_matrix | sp.csr_array,
    weights: np.ndarray,
    plane_start: np.ndarray,
    bias: float,
    categories: np.ndarray,
) -> list[CategoryScore]:
    """Return the explanation of each of `categories`, in their order.

    Parameters
    ----------
    row
        (1, d) CSR.
    weights
        (d + 1, n_planes), the bias as last row, planes sorted by category.
    plane_start
        (L + 1,) the planes of category c are `plane_start[c]:plane_start[c + 1]`.
    bias
        The value of the constant last feature.
    categories
        Category codes.
    """
    features = row.indices[row.data != 0]
    values = row.data[row.data != 0].astype(np.float64)
    plane_scores = values @ weights[features] + bias * weights[-1].astype(np.float64)
    found = []
    for category in categories:
        start, stop = plane_start[category], plane_start[category + 1]
        if start == stop:
            nothing = np.zeros(0)
            found.append(CategoryScore(int(category), -np.inf, None, 0.0, nothing.astype(np.int64), nothing))
            continue
        winner = int(start + np.argmax(plane_scores[start:stop]))
        contributions = values * weights[features, winner]
        order = np.argsort(-contributions, kind="stable")
        found.append(
            CategoryScore(
                category=int(category),
                score=float(plane_scores[winner]),
                plane=winner - int(start),
                bias=float(bias * weights[-1, winner]),
                features=features[order].astype(np.int64),
                contributions=contributions[order],
            )
        )
    return found


@dataclass(frozen=True)
class PlusScore(CategoryScore):
    """The score of one category under AMM-rank-plus, and where it comes from.

    `score` = `prior` + Σ `own_contributions` + `bias` + Σ `contributions` + Σ `membership_contributions`. `plane` is
    None where the zero plane won: nothing but prior and own term counts then. `own_features` (k,) are the row's columns
    that are the category's own, `memberships` (k,) the centres the row belongs to; all largest contribution first.
    """

    prior: float
    own_features: np.ndarray
    own_contributions: np.ndarray
    memberships: np.ndarray
    membership_contributions: np.ndarray


def explain_plus_row(
    row: sp.csr_matrix | sp.csr_array,
    basis: PlusBasis,
    weights: np.ndarray,
    plane_category: np.ndarray,
    bias: float,
    categories: np.ndarray,
) -> list[PlusScore]:
    """Return the explanation of each of `categories`, in their order.

    Parameters
    ----------
    row
        (1, d) CSR as stored.
    basis
        Prior, clusterings and own term of the model.
    weights, plane_category, bias
        As in `explain_row`, over the columns of the row and its memberships; the category of each plane.
    """
    cells = basis.own.cells(basis.n_columns)
    rows = prepare_plus_rows(row, basis.memberships.kernel_form(), cells)
    lifts = basis.own.lifts(basis.prior)
    own = np.array([_own_value(rows, cell, basis, cells, lifts) for cell in range(len(rows.data))])
    values = rows.data.astype(np.float64)
    plane_scores = values @ weights[rows.indices] + bias * weights[-1].astype(np.float64)
    is_member = rows.indices >= basis.n_features
    n_planes = np.bincount(plane_category, minlength=len(basis.prior))
    start = np.concatenate([[0], np.cumsum(n_planes)])
    explained = []
    for category in categories:
        first, stop = start[category], start[category + 1]
        winner = int(first + np.argmax(plane_scores[first:stop])) if stop > first else -1
        if winner >= 0 and plane_scores[winner] < 0 and n_planes[category] < basis.limit[category]:
            winner = -1
        by_cell = values * weights[rows.indices, winner] if winner >= 0 else np.zeros(len(values))
        constant = float(bias * weights[-1, winner]) if winner >= 0 else 0.0
        mine = np.flatnonzero(cells.category[rows.indices] == category)
        features, contributions = _largest_first(rows.indices, by_cell, np.flatnonzero(~is_member & (values != 0)))
        own_features, own_contributions = _largest_first(rows.indices, own, mine)
        members, member_contributions = _largest_first(rows.indices, by_cell, np.flatnonzero(is_member))
        prior = float(basis.prior[category])
        explained.append(
            PlusScore(
                category=int(category),
                score=prior + constant + float(own_contributions.sum() + by_cell.sum()),
                plane=winner - int(first) if winner >= 0 else None,
                bias=constant,
                features=features,
                contributions=contributions,
                prior=prior,
                own_features=own_features,
                own_contributions=own_contributions,
                memberships=members - basis.n_features,
                membership_contributions=member_contributions,
            )
        )
    return explained


def _own_value(rows: PlusRows, cell: int, basis: PlusBasis, cells: OwnCells, lifts: np.ndarray) -> float:
    """Return what a cell of a single row adds to the score of the category whose own it is."""
    kind = int(cells.kind[rows.indices[cell]])
    if kind < 0:
        return 0.0
    linear = rows.data[cell] * rows.own_scale[0, basis.own.group[kind]]
    value = float(own_value(basis.own.weights, kind, linear, rows.knot[cell]))
    if kind == 0 and rows.data[cell] != 0:
        value += float(lifts[cells.category[rows.indices[cell]]])
    return value


def _largest_first(columns: np.ndarray, values: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the chosen columns and their values, largest value first."""
    order = chosen[np.argsort(-values[chosen], kind="stable")]
    return columns[order].astype(np.int64), values[order]

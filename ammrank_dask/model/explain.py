"""Say which features carried the scores of one row."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp


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

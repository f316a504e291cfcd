"""Rank without planes: by popularity, by what a user did in a category itself, by who else clicked what they did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from ammrank_dask.methods.base import LabelledBlocks, Method
from ammrank_dask.methods.logistic import click_targets
from ammrank_dask.model.own_term import check_own_columns
from ammrank_dask.storage.vocabulary import INTENSITY, PAGE_VIEW_GROUP

MAX_PAIRS = 500_000
"""Pairs of a user and a category that own-logit learns from at most: they are in memory together."""


POPULAR_POWER, SHRINKAGE = 0.75, 0.3
"""The power of a category's clicks, ½ for the cosine, and what is added to the denominator: few clicks tell little."""


class Popularity(Method):
    """Rank categories by the training rows that rank them; equal ones by the rows' places for them.

    Places decide where every row ranks every category, as in tables: the order is then Borda's.

    Attributes
    ----------
    scores_
        (n_categories,) 0 for the least popular, equal numbers for what neither tells apart.

    Examples
    --------
    >>> Popularity().fit(np.zeros((3, 1)), np.array([[1, 0], [1, 2], [2, -1]])).decision_function(np.zeros((1, 1)))
    array([[0., 2., 1.]], dtype=float32)
    """

    method: ClassVar[str] = "popularity"

    def __init__(self, *, n_categories: int | None = None) -> None:
        self.n_categories = n_categories

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Add up, for every category, how many ranked categories its rows put it above."""
        points = np.zeros(n_categories)
        for _, rankings, tied in blocks:
            points += count_points(rankings, tied, n_categories)
        _, scores = np.unique(np.stack([self.popularity_, points]), axis=1, return_inverse=True)
        self.scores_ = scores.astype(np.float32)

    def score(self, X: Any) -> np.ndarray:
        """Return the same scores for every row."""
        return np.tile(self.scores_, (X.shape[0], 1))


def count_points(rankings: np.ndarray, tied: np.ndarray, n_categories: int) -> np.ndarray:
    """Return (L,) float64: a row gives its last category 0 points, the one before 1, …; tied ones share theirs.

    Examples
    --------
    >>> count_points(np.array([[2, 0, 1]]), np.array([[False, False, True]]), 3)
    array([0.5, 0.5, 2. ])
    """
    n_rows, width = rankings.shape
    ranked = rankings >= 0
    begins = ranked & ~tied
    # Places of a row that tie are a run; its points are the mean over the run.
    run = np.cumsum(begins.ravel()) - 1
    places = ranked.sum(axis=1, keepdims=True) - 1 - np.arange(width)
    inside = ranked.ravel()
    run, points = run[inside], np.broadcast_to(places, (n_rows, width)).ravel()[inside].astype(np.float64)
    mean = np.bincount(run, points) / np.bincount(run)
    return np.bincount(rankings.ravel()[inside], mean[run], minlength=n_categories)


class OwnHistory(Popularity):
    """Rank categories by the user's own intensity of page views; those without any, and equal ones, by popularity.

    Without columns of page views it is the sum of the intensities of all groups; without own columns, popularity.

    Parameters
    ----------
    own_columns
        (n_kinds, n_categories) the own column of a category by kind, -1 for none.
    own_kinds
        (n_kinds,) names as `pv:intensity`; None: the sum of all kinds counts.

    Examples
    --------
    >>> model = OwnHistory(own_columns=[[0, 1, -1]]).fit(np.zeros((3, 2)), np.array([[2, 0], [2, -1], [0, -1]]))
    >>> model.decision_function(np.array([[0.0, 0.5], [0.0, 0.0]]))
    array([[0., 2., 1.],
           [1., 0., 2.]], dtype=float32)
    """

    method: ClassVar[str] = "own-history"
    reads_stored_rows: ClassVar[bool] = True

    def __init__(
        self,
        *,
        own_columns: Sequence[Sequence[int]] | None = None,
        own_kinds: Sequence[str] | None = None,
        n_categories: int | None = None,
    ) -> None:
        self.own_columns = own_columns
        self.own_kinds = own_kinds
        self.n_categories = n_categories

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Count popularity, and choose the kinds of columns that are a user's history."""
        super().learn(blocks, n_categories)
        columns = _read_columns(self.own_columns, self.n_features_in_, n_categories)
        self.columns_ = columns[history_kinds(self.own_kinds)] if self.own_kinds is not None else columns

    def score(self, X: Any) -> np.ndarray:
        """Return places of the categories from 0, equal ones for equal history and popularity."""
        own = np.zeros((X.shape[0], self.n_categories_), np.float32)
        for columns in self.columns_:
            own += _own_values(X, columns)
        popularity = np.broadcast_to(self.scores_, own.shape)
        order = np.lexsort((popularity, own), axis=1)
        sorted_own, sorted_popularity = (np.take_along_axis(values, order, axis=1) for values in (own, popularity))
        rises = (np.diff(sorted_own, axis=1) > 0) | (np.diff(sorted_popularity, axis=1) > 0)
        places = np.zeros(own.shape, np.float32)
        np.put_along_axis(places, order[:, 1:], np.cumsum(rises, axis=1, dtype=np.float32), axis=1)
        return places


class OwnLogit(Popularity):
    """Rank categories by one logistic regression over pairs of a user and a category: will this user click it?

    Its features are, for each kind of own column, the category's value v as stored, √v and whether v is not 0, and the
    log-odds of the category's popularity. All categories share the weights. It learns from all pairs or, where there
    are more than `max_pairs`, from drawn ones, weighted by how rarely they are drawn; clicked ones have up to half of
    the places. Without own columns, or where every pair is a click, it is popularity.

    Parameters
    ----------
    own_columns
        (n_kinds, n_categories) the own column of a category by kind, -1 for none.
    max_pairs
        Pairs to learn from, about.
    seed
        Decides which pairs are drawn.

    Attributes
    ----------
    weights_
        (n_kinds, 3) of v, √v and v ≠ 0.
    base_
        (n_categories,) scores without own history: the weighted log-odds ln((c + ½)/(n - c + ½)) of c clicks in n rows,
        and the intercept.
    """

    method: ClassVar[str] = "own-logit"
    reads_stored_rows: ClassVar[bool] = True

    def __init__(
        self,
        *,
        own_columns: Sequence[Sequence[int]] | None = None,
        max_pairs: int = MAX_PAIRS,
        n_categories: int | None = None,
        seed: int = 0,
    ) -> None:
        self.own_columns = own_columns
        self.max_pairs = max_pairs
        self.n_categories = n_categories
        self.seed = seed

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Draw pairs and fit the regression."""
        if self.max_pairs < 2:
            raise ValueError(f"max_pairs must be at least 2, got {self.max_pairs}")
        super().learn(blocks, n_categories)
        self.columns_ = _read_columns(self.own_columns, self.n_features_in_, n_categories)
        self.weights_, self.base_ = np.zeros((len(self.columns_), 3)), self.scores_
        n_rows, n_clicked = sum(len(rankings) for _, rankings, _ in blocks), int(self.popularity_.sum())
        n_others = n_rows * n_categories - n_clicked
        if not len(self.columns_) or not n_others:
            return
        odds = np.log((self.popularity_ + 0.5) / (n_rows - self.popularity_ + 0.5))
        share = min(1.0, self.max_pairs / 2 / n_clicked)
        shares = np.array([min(1.0, (self.max_pairs - share * n_clicked) / n_others), share])  # of others, of clicked
        parts = []
        for number, (X, rankings, _) in enumerate(blocks):
            is_clicked = np.zeros((len(rankings), n_categories), np.int64)
            rows, places = np.nonzero(rankings >= 0)
            is_clicked[rows, rankings[rows, places]] = 1
            drawn = np.nonzero(np.random.default_rng([self.seed, number]).random(is_clicked.shape) < shares[is_clicked])
            kinds = [_expand(_own_values(X, columns)[drawn]) for columns in self.columns_]
            features = np.column_stack([*(part for kind in kinds for part in kind), odds[drawn[1]]])
            parts.append((features, is_clicked[drawn]))
        features, targets = (np.concatenate(column) for column in zip(*parts, strict=True))
        if len(np.unique(targets)) < 2:  # so few are drawn that all are of one kind
            return
        model = LogisticRegression(solver="newton-cholesky").fit(features, targets, sample_weight=1 / shares[targets])
        *weights, weight_of_odds = model.coef_[0]
        self.weights_, self.base_ = np.reshape(weights, (-1, 3)), model.intercept_[0] + weight_of_odds * odds

    def score(self, X: Any) -> np.ndarray:
        """Return the log-odds of a click."""
        scores = np.tile(self.base_.astype(np.float64), (X.shape[0], 1))
        for columns, weights in zip(self.columns_, self.weights_, strict=True):
            for part, weight in zip(_expand(_own_values(X, columns)), weights, strict=True):
                scores += weight * part
        return scores


def history_kinds(kinds: Sequence[str]) -> list[int]:
    """Return which kinds of own columns are a user's history: the intensity of page views, else that of all groups.

    Examples
    --------
    >>> history_kinds(["sq:intensity", "pv:intensity", "pv:recency"]), history_kinds(["sq:intensity", "sq:recency"])
    ([1], [0])
    """
    views = f"{PAGE_VIEW_GROUP}:{INTENSITY}"
    return [number for number, kind in enumerate(kinds) if kind == views] or [
        number for number, kind in enumerate(kinds) if kind.endswith(f":{INTENSITY}")
    ]


def _read_columns(own_columns: Sequence[Sequence[int]] | None, n_features: int, n_categories: int) -> np.ndarray:
    """Return (n_kinds, n_categories) int64, without kinds where no column is a category's own."""
    if own_columns is None:
        return np.zeros((0, n_categories), np.int64)
    return check_own_columns(own_columns, None, n_features=n_features, n_categories=n_categories).columns


def _own_values(X: Any, columns: np.ndarray) -> np.ndarray:
    """Return (n, n_categories) float32, a row's value of every category's own column, 0 where it has none."""
    values = np.zeros((X.shape[0], len(columns)), np.float32)
    codes = np.flatnonzero(columns >= 0)
    values[:, codes] = X[:, columns[codes]].toarray()
    return values


def _expand(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return values, np.sqrt(np.maximum(values, 0)), values != 0


class ItemKnn(Method):
    """Rank categories by the sum of their similarities to a row's columns, weighted by the row.

    With rows u = x/‖x‖, clicks y of 0 and 1, c_i = Σ y_i and c̄ the mean c of clicked categories, the similarity is

        C_fi = (Σ u_f y_i - Σ u_f Σ y_i / n) / (√(Σ u_f²) · c_i^¾ · c̄^-¼ + 0.3)

    the cosine of column and clicks beyond what chance gives, lowered for popular categories. The scores are u C.
    Where rows rank every category, y is the share of the others that the category is ranked above.

    Attributes
    ----------
    similarities_
        (n_features, n_categories) float32.

    Examples
    --------
    >>> ItemKnn().fit(np.eye(2), np.array([[1], [0]])).predict(np.array([[3.0, 0.0], [0.0, 2.0]]))
    array([[1, 0],
           [0, 1]], dtype=int32)
    """

    method: ClassVar[str] = "item-knn"

    def __init__(self, *, n_categories: int | None = None) -> None:
        self.n_categories = n_categories

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Add up what the similarities are made of, one pass over the blocks."""
        n_features = self.n_features_in_
        together = np.zeros((n_features, n_categories))
        sums, squares, clicks, n_rows = np.zeros(n_features), np.zeros(n_features), np.zeros(n_categories), 0
        for X, rankings, tied in blocks:
            rows, targets = _unit_rows(X), click_targets(rankings, tied, n_categories)
            together += rows.T @ targets
            sums += np.bincount(rows.indices, rows.data, minlength=n_features)
            squares += np.bincount(rows.indices, rows.data**2, minlength=n_features)
            clicks += targets.sum(axis=0, dtype=np.float64)
            n_rows += len(rankings)
        mean = clicks[clicks > 0].mean()
        popular = clicks**POPULAR_POWER * mean ** (0.5 - POPULAR_POWER)
        together -= np.outer(sums / n_rows, clicks)
        together /= np.outer(np.sqrt(squares), popular) + SHRINKAGE
        self.similarities_ = together.astype(np.float32)

    def score(self, X: Any) -> np.ndarray:
        """Return the sums of similarities."""
        scores: np.ndarray = _unit_rows(X) @ self.similarities_
        return scores


def _unit_rows(X: Any) -> Any:
    """Return float64 CSR rows of norm 1; rows of zeros stay."""
    return normalize(X.astype(np.float64))

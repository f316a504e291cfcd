"""Give every model the same calls: fit, fit_blocks, decision_function, predict, predict_top_k.

Parameters are those of scikit-learn without an import of it, which is a third of what a command imports.
"""

from __future__ import annotations

import inspect
import operator
import reprlib
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import Any, ClassVar, Self

import numpy as np

from ammrank_dask.kernels.topk import top_k_rows
from ammrank_dask.model.rows import Blocks, Rows, as_codes, as_csr, check_n_features, rankings_from_ranks
from ammrank_dask.storage.in_memory import is_collection
from ammrank_dask.storage.numbers import list_length

SCORE_ROWS = 8192
"""Rows of which all scores are in memory at a time while the best of each are chosen."""


class Parameters:
    """Base of what has parameters: the keyword arguments of `__init__`, kept under their own names.

    Scikit-learn's `clone`, pipelines and searches take it for an estimator.

    Examples
    --------
    >>> class Line(Parameters):
    ...     def __init__(self, *, slope=1.0, start=None):
    ...         self.slope, self.start = slope, start
    >>> Line(slope=2.0), Line(slope=2.0).set_params(start=3).get_params()
    (Line(slope=2.0), {'slope': 2.0, 'start': 3})
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; if `deep`, those of parameters that have some too, as `outer__inner`."""
        found: dict[str, Any] = {}
        for name in _names_of(type(self)):
            value = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                found |= {f"{name}__{inner}": of_inner for inner, of_inner in value.get_params().items()}
            found[name] = value
        return found

    def set_params(self, **params: Any) -> Self:
        """Change parameters; those of a parameter are named `outer__inner`."""
        names = _names_of(type(self))
        nested: dict[str, dict[str, Any]] = defaultdict(dict)
        for key, value in params.items():
            name, is_inner, inner = key.partition("__")
            if name not in names:
                raise ValueError(f"Invalid parameter {name!r} for estimator {self!r}. Valid parameters are: {names!r}.")
            if is_inner:
                nested[name][inner] = value
            else:
                setattr(self, name, value)
        for name, own in nested.items():
            getattr(self, name).set_params(**own)
        return self

    def __repr__(self) -> str:
        changed = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            if value is not parameter.default and repr(value) != repr(parameter.default):
                changed.append(f"{name}={_show(value)}")
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator  # who asks is scikit-learn

        return BaseEstimator.__sklearn_tags__(self)


def _show(value: Any) -> str:
    """Return a value as text; of lists and arrays the beginning."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return reprlib.repr(value) if isinstance(value, list | tuple) else repr(value)


def _names_of(kind: type) -> list[str]:
    return sorted(inspect.signature(kind).parameters)


class RankingEstimator(Parameters, ABC):
    """Base of everything that ranks categories: write `learn_blocks` and `decision_function`, the other calls follow.

    Parameters are the keyword arguments of `__init__`, kept under their own names, as scikit-learn has it:
    `get_params`, `set_params`, `clone` and `repr` follow from them.

    Attributes
    ----------
    popularity_
        (n_categories,) training rows that rank the category. A model is fitted once it has it.
    n_features_in_
        Columns seen in training.
    variant_
        The variant of a store's columns that it was fitted on; None is all.
    """

    method: ClassVar[str]
    """The name of the method in files and tables."""
    reads_stored_rows: ClassVar[bool] = False
    """Whether the model normalises rows itself: it is given them as they are stored, whatever the store says."""

    @property
    def normalize_rows(self) -> bool | None:
        """What to ask `Features.partition` for: rows as stored, or as the store says (None)."""
        return False if self.reads_stored_rows else None

    n_categories: int | None = None

    popularity_: np.ndarray
    n_features_in_: int
    variant_: str | None = None

    @abstractmethod
    def learn_blocks(self, blocks: Blocks, n_categories: int | None) -> Self:
        """Learn from blocks of rows and become fitted; None: as many categories as the highest code says."""

    @abstractmethod
    def decision_function(self, X: Rows) -> np.ndarray:
        """Return the scores, (n, n_categories) float32, larger is better."""

    def fit(self, X: Rows, rankings: np.ndarray | None = None, *, ranks: np.ndarray | None = None) -> Self:
        """Learn from rows and their rankings.

        Parameters
        ----------
        X
            (n, d) dense or CSR, finite.
        rankings
            (n, m) category codes, best first, padded with -1 at the end. Rows without a code teach nothing.
        ranks
            Instead of rankings: (n, n_categories), 1 best, 0 unranked, equal ranks tie. Tied pairs are not
            pairs.
        """
        if (rankings is None) == (ranks is None):
            given = "neither" if ranks is None else "both"
            raise ValueError(f"fit must be given rankings or ranks, got {given}")
        X = self.read_rows(X)
        if rankings is not None:
            return self.fit_blocks([(X, as_codes(rankings))])
        ranks = as_codes(ranks, "ranks")
        rankings, tied = rankings_from_ranks(ranks)
        if self.n_categories not in (None, ranks.shape[1]):
            raise ValueError(f"ranks must have n_categories ({self.n_categories}) columns, got {ranks.shape[1]}")
        return self.learn_blocks([(X, rankings, tied)], ranks.shape[1])

    def fit_blocks(self, blocks: Blocks) -> Self:
        """Learn from blocks of rows.

        Parameters
        ----------
        blocks
            A sequence of (X, rankings) as in `fit`, or (X, rankings, tied); reading an item again must give the
            same rows.
        """
        return self.learn_blocks(blocks, self.n_categories)

    def predict(self, X: Rows) -> np.ndarray:
        """Return all codes per row, best first; equal scores by training popularity, then lower code."""
        if is_collection(X):
            return self.call_by_block(X, "predict", self.n_categories_, np.int32)
        scores = self.decision_function(X)
        order = np.argsort(-scores[:, self.tie_order_], axis=1, kind="stable")
        return self.tie_order_[order]

    def predict_top_k(self, X: Rows, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best category codes and their scores, both (n, k), best first."""
        k = list_length(k, self.n_categories_)
        if is_collection(X):
            both = self.call_by_block(X, "predict_top_k", k, np.float32, k)
            codes, scores = (both.map_blocks(operator.itemgetter(i), dtype=kind, meta=np.empty((0, 0), kind))
                             for i, kind in enumerate((np.int32, np.float32)))  # fmt: skip
            return codes, scores
        return self.top_k(self.check_rows(X), k)

    def call_by_block(self, X: Any, call: str, width: int, dtype: Any, *args: Any) -> Any:
        """Return a lazy array of what one of the calls gives for each block of a Dask array."""
        from ammrank_dask.runtime.collections import call_by_block  # a model in memory needs no cluster

        self.check_fitted()
        check_n_features(X, self.n_features_in_)
        return call_by_block(X, self, call, width, dtype, *args)

    def top_k(self, rows: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what `predict_top_k` does, of rows that were read and a k that was checked."""
        codes = np.empty((rows.shape[0], k), np.int32)
        scores = np.empty((rows.shape[0], k), np.float32)
        for start in range(0, rows.shape[0], SCORE_ROWS):
            part = slice(start, start + SCORE_ROWS)
            top_k_rows(self.decision_function(rows[part]), self.tie_order_, codes[part], scores[part])
        return codes, scores

    def read_rows(self, X: Rows) -> Any:
        """Return rows in the form the model learns from: finite float32 CSR."""
        return as_csr(X)

    def check_rows(self, X: Rows) -> Any:
        """Return the rows to score; refuse an unfitted model, and rows of another width than in training."""
        self.check_fitted()
        rows = self.read_rows(X)
        check_n_features(rows, self.n_features_in_)
        return rows

    @property
    def n_categories_(self) -> int:
        """Number of categories ranked."""
        self.check_fitted()
        return len(self.popularity_)

    @property
    def tie_order_(self) -> np.ndarray:
        """Category codes by training popularity, then lower code."""
        self.check_fitted()
        return np.argsort(-self.popularity_, kind="stable").astype(np.int32)

    def check_fitted(self) -> None:
        """Refuse a model that has not learned yet."""
        if not self.__sklearn_is_fitted__():
            from sklearn.exceptions import NotFittedError  # takes long to import, and a night has fitted models

            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn is told: rows may be sparse, and rankings, (n, m), are the labels."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = tags.target_tags.two_d_labels = tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return "popularity_" in vars(self)

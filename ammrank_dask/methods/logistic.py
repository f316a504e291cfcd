"""Rank by logistic models: one per category, or one for each pair of categories."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from ammrank_dask.kernels.logistic import (
    add_logistic_gradient,
    add_pair_gradient,
    score_linear,
    step_pairs,
    vote_pairs,
)
from ammrank_dask.methods.base import LabelledBlocks, Method

logger = logging.getLogger(__name__)

_one_blas = threading.Lock()
"""Held by who has set BLAS to one thread: its sums differ in the last bits with the number of threads."""
MAX_PAIR_BYTES = 1 << 30
"""Limit of the weights of all pairs; training holds four arrays of this size."""
FEWEST_STEPS = 50
"""Steps an epoch has at least; with few rows batches are smaller."""


class Logistic(Method):
    """Rank categories by one logistic regression each: will this user click it?

    Each model minimises C · Σ log-loss + ½‖w‖², as scikit-learn's `LogisticRegression` does, until no component of
    the gradient of that, divided by C · rows, is above `tolerance`. A row that ranks every category has none without a
    click to learn from; there the target of a category is the share of the others it is ranked above.

    Parameters
    ----------
    C
        Inverse of the regularization.
    tolerance
        As scikit-learn's `tol`.
    max_iterations
        Steps of L-BFGS at most.

    Attributes
    ----------
    weights_
        (n_features + 1, n_categories) float32, the intercepts as last row.
    n_iterations_
        Steps made.
    """

    method: ClassVar[str] = "lr"
    grid: ClassVar[Sequence[dict[str, Any]]] = ({"C": 0.3}, {"C": 1.0}, {"C": 3.0}, {"C": 10.0}, {"C": 100.0})
    widens: ClassVar[Sequence[str]] = ("C",)

    def __init__(
        self, *, C: float = 1.0, tolerance: float = 1e-4, max_iterations: int = 500, n_categories: int | None = None
    ) -> None:
        self.C = C
        self.tolerance = tolerance
        self.max_iterations = max_iterations
        self.n_categories = n_categories

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Minimise the sum of all objectives, a pass over the blocks for each step."""
        _check_c(self.C)
        n_rows = sum(len(rankings) for _, rankings, _ in blocks)
        penalty = np.full((self.n_features_in_ + 1, 1), 1 / (self.C * n_rows))
        penalty[-1] = 0.0

        def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
            weights = flat.reshape(-1, n_categories)
            loss, total = np.zeros(n_categories), np.zeros(weights.shape)
            narrow = weights.astype(np.float32)
            for X, rankings, tied in blocks:
                gradient = np.zeros(weights.shape, np.float32)
                y = click_targets(rankings, tied, n_categories)
                add_logistic_gradient(X.data, X.indices, X.indptr, y, narrow, gradient, loss)
                total += gradient
            value = loss.sum() / n_rows + 0.5 * (penalty * weights**2).sum()
            return float(value), (total / n_rows + penalty * weights).ravel()

        start = np.zeros((self.n_features_in_ + 1) * n_categories)
        options = {"gtol": self.tolerance, "ftol": 0.0, "maxiter": self.max_iterations, "maxfun": np.inf}
        with _one_blas, threadpool_limits(1, user_api="blas"):
            found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
        self.n_iterations_ = int(found.nit)
        if not found.success:
            logger.warning("lr did not converge in %d steps; raise max_iterations or tolerance", found.nit)
        self.weights_ = found.x.reshape(-1, n_categories).astype(np.float32)

    def score(self, X: Any) -> np.ndarray:
        """Return the log-odds of a click."""
        scores = np.empty((X.shape[0], self.n_categories_), np.float32)
        score_linear(X.data, X.indices, X.indptr, self.weights_, scores)
        return scores


class PairwiseLogistic(Method):
    """Rank categories by the soft votes of one logistic regression for each pair of them.

    A model of a pair learns from the rows that prefer one of the two and minimises C · Σ log-loss + ½‖w‖². All
    pairs are trained at once by AdaGrad over small batches of rows; the result is the mean of the weights at the
    ends of the last half of the epochs.

    Parameters
    ----------
    C
        Inverse of the regularization of each pair.
    epochs, batch_rows, rate
        Passes over the rows, rows of a step, and AdaGrad's step size.
    seed
        Decides the order of the rows.

    Attributes
    ----------
    weights_
        (n_features + 1, n_categories, n_categories) float32, antisymmetric in the last two.
    """

    method: ClassVar[str] = "pw-lr"
    grid: ClassVar[Sequence[dict[str, Any]]] = ({"C": 0.3}, {"C": 1.0}, {"C": 3.0}, {"C": 10.0}, {"C": 100.0})
    widens: ClassVar[Sequence[str]] = ("C",)

    def __init__(
        self,
        *,
        C: float = 1.0,
        epochs: int = 10,
        batch_rows: int = 256,
        rate: float = 1.0,
        n_categories: int | None = None,
        seed: int = 0,
    ) -> None:
        self.C = C
        self.epochs = epochs
        self.batch_rows = batch_rows
        self.rate = rate
        self.n_categories = n_categories
        self.seed = seed

    def learn(self, blocks: LabelledBlocks, n_categories: int) -> None:
        """Visit the blocks and their rows in an order drawn from the seed, epoch after epoch."""
        _check_c(self.C)
        for name in ("epochs", "batch_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        shape = (self.n_features_in_ + 1, n_categories, n_categories)
        n_bytes = 4 * int(np.prod(shape, dtype=np.int64))
        if n_bytes > MAX_PAIR_BYTES:
            raise ValueError(
                f"pw-lr must hold features × categories² weights in {MAX_PAIR_BYTES >> 20} MiB,"
                f" {self.n_features_in_} features and {n_categories} categories take {n_bytes >> 20} MiB"
            )
        weights, gradient, squares, mean = (np.zeros(shape, np.float32) for _ in range(4))
        n_rows = sum(len(rankings) for _, rankings, _ in blocks)
        batch_rows = min(self.batch_rows, -(-n_rows // FEWEST_STEPS))
        for epoch in range(self.epochs):
            for number in np.random.default_rng([self.seed, epoch]).permutation(len(blocks)):
                X, rankings, tied = blocks[int(number)]
                order = np.random.default_rng([self.seed, epoch, int(number)]).permutation(len(rankings))
                for start in range(0, len(order), batch_rows):
                    rows = order[start : start + batch_rows]
                    add_pair_gradient(X.data, X.indices, X.indptr, rankings, tied, rows, weights, gradient)
                    decay = np.float32(len(rows) / (n_rows * self.C))
                    step_pairs(weights, gradient, squares, np.float32(self.rate), decay)
            if epoch >= self.epochs // 2:
                mean += weights
        mean /= np.float32(self.epochs - self.epochs // 2)
        self.weights_ = mean

    def score(self, X: Any) -> np.ndarray:
        """Return the sums of soft votes."""
        scores = np.empty((X.shape[0], self.n_categories_), np.float32)
        vote_pairs(X.data, X.indices, X.indptr, self.weights_, scores)
        return scores


def _check_c(C: float) -> None:
    if not (np.isfinite(C) and C > 0):
        raise ValueError(f"C must be above 0, got {C}")


def click_targets(rankings: np.ndarray, tied: np.ndarray, n_categories: int) -> np.ndarray:
    """Return (n, L) float32: the share of the others below where a row ranks all categories, else 1 for a click."""
    complete = (rankings >= 0).sum(axis=1) == n_categories
    targets = _clicks(rankings, n_categories)
    if complete.any():
        targets[complete] = _wins(rankings[complete, :n_categories], tied[complete, :n_categories], n_categories)
    return targets


def _clicks(rankings: np.ndarray, n_categories: int) -> np.ndarray:
    """Return (n, L) float32: 1 where the category is in the ranking."""
    inside = np.zeros((len(rankings), n_categories + 1), np.float32)
    # The code -1 falls into a last column, which is cut off.
    np.put_along_axis(inside, rankings.astype(np.int64) % (n_categories + 1), 1.0, axis=1)
    return np.ascontiguousarray(inside[:, :n_categories])


def _wins(rankings: np.ndarray, tied: np.ndarray, n_categories: int) -> np.ndarray:
    """Return (n, L) float32: the share of the other categories ranked below, where all are ranked; a tie is half."""
    place = np.arange(n_categories)
    first = np.maximum.accumulate(np.where(tied, 0, place), axis=1)
    ends = np.where(np.pad(tied[:, 1:], ((0, 0), (0, 1))), n_categories, place)
    last = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
    share = 1 - (first + last) / (2 * max(1, n_categories - 1))
    wins = np.empty(rankings.shape, np.float32)
    np.put_along_axis(wins, rankings.astype(np.int64), share.astype(np.float32), axis=1)
    return wins

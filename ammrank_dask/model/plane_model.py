"""Fit, score and keep models whose score of a category is the maximum over its planes."""

import hashlib
import logging
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from ammrank_dask.kernels.ammrank import score_rows
from ammrank_dask.kernels.scoring import Panels
from ammrank_dask.model.explain import CategoryScore, explain_row
from ammrank_dask.model.kept_model import KeptModel
from ammrank_dask.model.plane_panels import arrange_planes
from ammrank_dask.model.plane_sums import PlaneSums, StepSettings, WeightMean, train_block
from ammrank_dask.model.rows import (
    NO_CATEGORY,
    Blocks,
    Rows,
    as_codes,
    as_csr,
    check_n_features,
    check_rankings,
    count_categories,
)
from ammrank_dask.storage.in_memory import is_collection
from ammrank_dask.storage.numbers import finite_number, whole_number
from ammrank_dask.storage.objects.atomic import digest_of

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class PlaneModel(KeptModel):
    """What `AMMRank` and `AMM` share: parameters, training over blocks, scoring, storage.

    A subclass that adds a parameter names it as a field under the same decorator; `__init__` follows.
    """

    top_only: ClassVar[bool] = False

    regularization: float = 1e-3
    epochs: int = 5
    max_planes: int = 50
    bias: float = 1.0
    average: bool = True
    prune_every: int | None = 10_000
    prune_c: float = 10.0
    clone_probability: float = 0.0
    clone_decay: float = 0.99
    n_categories: int | None = None
    seed: int = 0

    def learn_blocks(self, blocks: Blocks, n_categories: int | None) -> Self:
        """Learn from blocks of rows; one block is in memory at a time.

        Every epoch visits the blocks in an order drawn from (seed, epoch) and the rows of a block in an order
        drawn from (seed, epoch, block).
        """
        self.check_parameters()
        if n_categories is None:
            n_categories = count_categories(blocks)
        planes: PlaneSums | None = None
        popularity = np.zeros(n_categories, np.int64)
        mean = WeightMean()
        for epoch in range(self.epochs):
            started = time.perf_counter()
            n_rows = 0
            for block in np.random.default_rng([self.seed, epoch]).permutation(len(blocks)):
                X, rankings, *tied = blocks[int(block)]
                X, rankings = as_csr(X), as_codes(rankings)
                if epoch == 0:
                    check_rankings(rankings, n_rows=X.shape[0], n_categories=n_categories)
                    popularity += np.bincount(rankings[rankings >= 0], minlength=n_categories)
                if planes is None:
                    planes = PlaneSums.empty(X.shape[1], n_categories)
                check_n_features(X, planes.sums.shape[0] - 1)
                rng = np.random.default_rng([self.seed, epoch, int(block)])
                order = rng.permutation(X.shape[0])
                draws = rng.random((len(order), n_categories), np.float32) if self.clone_probability > 0 else None
                ties = tied[0] if tied else None
                train_block(planes, X, rankings, order, self.step_settings(), tied=ties, clone_draws=draws)
                n_rows += X.shape[0]
            if planes is None or not popularity.any():
                raise ValueError(NO_CATEGORY)
            if self.average and epoch >= self.epochs // 2:
                mean.add(planes.weights(self.regularization), planes.plane_id)
            seconds = time.perf_counter() - started
            logger.info(
                "epoch %d of %d: %d rows, %d planes, %.1f s", epoch + 1, self.epochs, n_rows,
                planes.n_planes.sum(), seconds,
            )  # fmt: skip
        assert planes is not None
        weights = mean.weights() if self.average else planes.weights(self.regularization)
        self.set_planes(weights, planes.plane_category[: weights.shape[1]], popularity, n_steps=planes.step - 1)
        return self

    def make_pass(self, state: Any, rows: Any, rankings: np.ndarray, order: np.ndarray) -> Any:
        """Train on rows in an order, going on from what an earlier pass returned, and become fitted."""
        assert self.n_categories is not None
        if state is None:
            state = PlaneSums.empty(rows.shape[1], self.n_categories), np.zeros(self.n_categories, np.int64), 0
        planes, popularity, n_passes = state
        check_n_features(rows, planes.sums.shape[0] - 1)
        rng = np.random.default_rng([self.seed, n_passes, 1])
        draws = rng.random((len(order), self.n_categories), np.float32) if self.clone_probability > 0 else None
        train_block(planes, rows, rankings, order, self.step_settings(), tied=None, clone_draws=draws)
        popularity = popularity + np.bincount(rankings[rankings >= 0], minlength=self.n_categories)
        weights = planes.weights(self.regularization)
        self.set_planes(weights, planes.plane_category[: weights.shape[1]], popularity, n_steps=planes.step - 1)
        return planes, popularity, n_passes + 1

    def step_settings(self) -> StepSettings:
        """Return how a step is made with these parameters."""
        return StepSettings(
            regularization=self.regularization,
            bias=self.bias,
            max_planes=self.max_planes,
            top_only=self.top_only,
            prune_every=self.prune_every,
            prune_c=self.prune_c,
            clone_probability=self.clone_probability,
            clone_decay=self.clone_decay,
        )

    def set_planes(
        self, weights: np.ndarray, plane_category: np.ndarray, popularity: np.ndarray, *, n_steps: int
    ) -> None:
        """Become fitted with planes in any order.

        Parameters
        ----------
        weights
            (d + 1, n_planes), the bias as last row.
        plane_category
            (n_planes,) the category of each plane.
        popularity
            (L,) training rows that rank the category.
        n_steps
            Training steps made.
        """
        by_category = np.argsort(plane_category, kind="stable")
        self.weights_ = np.ascontiguousarray(weights[:, by_category], np.float32)
        self.plane_category_ = plane_category[by_category].astype(np.int32, copy=False)
        self.popularity_ = popularity.astype(np.int64, copy=False)
        self.n_features_in_ = weights.shape[0] - 1
        self.n_steps_ = n_steps
        self.categories_, self.columns_, self.variant_, self.training_ = None, None, None, None

    def decision_function(self, X: Rows) -> np.ndarray:
        """Return the scores, (n, n_categories) float32; a category without planes is -inf."""
        if is_collection(X):
            return self.call_by_block(X, "decision_function", self.n_categories_, np.float32)
        X = self.check_rows(X)
        scores = np.empty((X.shape[0], self.n_categories_), np.float32)
        score_rows(X.data, X.indices, X.indptr, self.weights_, self._plane_start, float(self.bias), scores)
        return scores

    def panels(self) -> Panels:
        """Return the planes as the fused scoring kernel reads them."""
        self.check_fitted()
        return arrange_planes(self.weights_, self.plane_category_, self.tie_order_, self.bias)

    def explain(self, x: Rows) -> list[CategoryScore]:
        """Return for each category, best first, its score, the winning plane and the features that carried it.

        Parameters
        ----------
        x
            One row: (d,) or (1, d), dense or CSR.
        """
        row = self.check_row(x)
        return explain_row(row, self.weights_, self._plane_start, self.bias, self.predict(row)[0])

    def learned(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the planes, and nothing besides."""
        arrays = {"weights": self.weights_, "plane_category": self.plane_category_, "popularity": self.popularity_}
        return arrays, {}

    def set_learned(self, arrays: dict[str, np.ndarray], attributes: dict[str, Any]) -> None:
        """Become fitted with planes that were saved."""
        names = ("weights", "plane_category", "popularity")
        self.set_planes(*(arrays[name] for name in names), n_steps=attributes["n_steps"])

    def digest(self) -> str:
        """Return a hash of the planes, the parameters and the names."""
        self.check_fitted()
        contents = [self.weights_, self.plane_category_, self.popularity_]
        names = [self.method, self.get_params(), self.categories_, self.columns_, self.variant_]
        return digest_of([*names, *(hashlib.sha256(array.tobytes()).hexdigest() for array in contents)])

    @property
    def _plane_start(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.n_planes_)])

    def check_parameters(self) -> None:
        """Refuse parameters that no training can have."""
        finite_number("regularization", self.regularization, above=0)
        for name in ("epochs", "max_planes", "n_categories", "prune_every"):
            value = getattr(self, name)
            if value is not None or name in ("epochs", "max_planes"):
                whole_number(name, value, least=1)
        finite_number("bias", self.bias)
        finite_number("prune_c", self.prune_c, least=0)
        for name in ("clone_probability", "clone_decay"):
            finite_number(name, getattr(self, name), least=0, most=1)
        whole_number("seed", self.seed, least=0)

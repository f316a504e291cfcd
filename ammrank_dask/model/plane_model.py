"""Fit, score and keep models whose score of a category is the maximum over its planes."""

import hashlib
import inspect
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ammrank_dask.kernels.ammrank import score_rows
from ammrank_dask.kernels.scoring import Panels
from ammrank_dask.model.explain import CategoryScore, explain_row
from ammrank_dask.model.halving import PLANE_LIMITS, REGULARIZATIONS, Tuning, halve, make_grid
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.model.plane_panels import arrange_planes, top_categories
from ammrank_dask.model.plane_sums import PlaneSums, WeightMean, check_rank_weight, train_block
from ammrank_dask.model.rankings import check_rankings, rankings_from_ranks
from ammrank_dask.model.rows import Blocks, Rows, as_csr, check_n_features
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.atomic import digest_of
from ammrank_dask.storage.store.models import load_model, save_model

logger = logging.getLogger(__name__)

_TUNING = 2**30


class NotFittedError(ValueError, AttributeError):
    """The ranker is asked for scores before it was fitted."""


class PlaneModel:
    """What `AMMRank` and `AMM` share: parameters by name, training over blocks, scoring, storage."""

    method: ClassVar[str]
    top_only: ClassVar[bool] = False

    regularization: float
    epochs: int
    max_planes: int
    bias: float
    average: bool
    prune_every: int | None
    prune_c: float
    clone_probability: float
    clone_decay: float
    n_categories: int | None
    seed: int

    weights_: np.ndarray
    plane_category_: np.ndarray
    popularity_: np.ndarray
    n_steps_: int
    categories_: list[str] | None
    columns_: list[str] | None
    variant_: str | None
    training_: dict[str, Any] | None
    tuning_: Tuning

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; `deep` changes nothing, as no parameter is an estimator."""
        return {name: getattr(self, name) for name in _parameter_names(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name."""
        names = _parameter_names(type(self))
        for name, value in params.items():
            if name not in names:
                raise ValueError(f"parameters of {type(self).__name__} are {', '.join(names)}, got {name}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({inside})"

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
            found = "neither" if ranks is None else "both"
            raise ValueError(f"fit must be given rankings or ranks, got {found}")
        X = as_csr(X)
        if rankings is not None:
            return self.fit_blocks([(X, np.asarray(rankings))])
        ranks = np.asarray(ranks)
        rankings, tied = rankings_from_ranks(ranks)
        if self.n_categories not in (None, ranks.shape[1]):
            raise ValueError(f"ranks must have n_categories ({self.n_categories}) columns, got {ranks.shape[1]}")
        return self._fit_blocks([(X, rankings, tied)], ranks.shape[1])

    def fit_blocks(self, blocks: Blocks) -> Self:
        """Learn from blocks of rows, of which one is in memory at a time.

        Every epoch visits the blocks in an order drawn from (seed, epoch) and the rows of a block in an order
        drawn from (seed, epoch, block).

        Parameters
        ----------
        blocks
            A sequence of (X, rankings) as in `fit`; reading an item again must give the same rows.
        """
        return self._fit_blocks(blocks, self.n_categories)

    def _fit_blocks(self, blocks: Blocks, n_categories: int | None) -> Self:
        self.check_parameters()
        if n_categories is None:
            n_categories = _count_categories(blocks)
        planes: PlaneSums | None = None
        popularity = np.zeros(n_categories, np.int64)
        mean = WeightMean()
        for epoch in range(self.epochs):
            started = time.perf_counter()
            n_rows = 0
            for block in np.random.default_rng([self.seed, epoch]).permutation(len(blocks)):
                X, rankings, *tied = blocks[int(block)]
                X = as_csr(X)
                if epoch == 0:
                    check_rankings(rankings, n_rows=X.shape[0], n_categories=n_categories)
                    popularity += np.bincount(rankings[rankings >= 0], minlength=n_categories)
                if planes is None:
                    planes = PlaneSums.empty(X.shape[1], n_categories)
                check_n_features(X, planes.sums.shape[0] - 1)
                rng = np.random.default_rng([self.seed, epoch, int(block)])
                order = rng.permutation(X.shape[0])
                draws = rng.random((len(order), n_categories), np.float32) if self.clone_probability > 0 else None
                train_block(
                    planes, X, rankings, order, tied=tied[0] if tied else None, clone_draws=draws,
                    **self.block_options(),
                )  # fmt: skip
                n_rows += X.shape[0]
            if planes is None or not popularity.any():
                raise ValueError("rankings must hold at least one category, found only -1; give labelled rows")
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

    def tune(
        self,
        X: Rows,
        rankings: np.ndarray,
        *,
        regularizations: Sequence[float] = REGULARIZATIONS,
        plane_limits: Sequence[int] = PLANE_LIMITS,
        held_out: float = 0.2,
    ) -> Self:
        """Set `regularization` and `max_planes` to the best of some values; `tuning_` has the table. Fit comes after.

        Successive halving on the disagreement error of a share of the rows that is drawn by the seed.

        Parameters
        ----------
        X, rankings
            As in `fit`.
        regularizations, plane_limits
            The values to try, each with each.
        held_out
            Share of the rows to measure on.
        """
        X, rankings = as_csr(X), np.asarray(rankings)
        if not 0 < held_out < 1:
            raise ValueError(f"held_out must be between 0 and 1, got {held_out}")
        n_categories = self.n_categories or _count_categories([(X, rankings)])
        check_rankings(rankings, n_rows=X.shape[0], n_categories=n_categories)
        labelled = np.random.default_rng([self.seed, _TUNING]).permutation(np.flatnonzero(rankings[:, 0] >= 0))
        n_held = round(len(labelled) * held_out)
        if not 0 < n_held < len(labelled):
            raise ValueError(f"there must be labelled rows on both sides of held_out {held_out}, got {len(labelled)}")
        test, train = labelled[:n_held], labelled[n_held:]

        def measure(settings: Sequence[dict[str, Any]], rows: int) -> list[float]:
            errors = []
            for setting in settings:
                model = type(self)(**{**self.get_params(), **setting, "n_categories": n_categories})
                model.fit(X[train[:rows]], rankings[train[:rows]])
                errors.append(disagreement_error(model.decision_function(X[test]), rankings[test]))
            return errors

        settings = make_grid(regularization=list(regularizations), max_planes=list(plane_limits))
        self.tuning_ = halve(settings, len(train), measure)
        return self.set_params(**self.tuning_.best)

    def block_options(self) -> dict[str, Any]:
        """Return the keywords of `train_block` that follow from the parameters."""
        return {
            "regularization": self.regularization,
            "bias": self.bias,
            "max_planes": self.max_planes,
            "rank_weight": getattr(self, "rank_weight", "uniform"),
            "top_only": self.top_only,
            "prune_every": self.prune_every,
            "prune_c": self.prune_c,
            "clone_probability": self.clone_probability,
            "clone_decay": self.clone_decay,
        }

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
        self.weights_ = np.ascontiguousarray(weights[:, by_category])
        self.plane_category_ = plane_category[by_category]
        self.popularity_ = popularity
        self.n_steps_ = n_steps
        self.categories_, self.columns_, self.variant_, self.training_ = None, None, None, None

    def decision_function(self, X: Rows) -> np.ndarray:
        """Return the scores, (n, n_categories) float32; a category without planes is -inf."""
        self._check_fitted()
        X = as_csr(X)
        check_n_features(X, self.n_features_in_)
        scores = np.empty((X.shape[0], self.n_categories_), np.float32)
        score_rows(X.data, X.indices, X.indptr, self.weights_, self._plane_start, float(self.bias), scores)
        return scores

    def predict(self, X: Rows) -> np.ndarray:
        """Return all codes per row, best first; equal scores by training popularity, then lower code."""
        scores = self.decision_function(X)
        order = np.argsort(-scores[:, self.tie_order_], axis=1, kind="stable")
        return self.tie_order_[order]

    def predict_top_k(self, X: Rows, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best category codes and their scores, both (n, k), best first."""
        self._check_fitted()
        if not 1 <= k <= self.n_categories_:
            raise ValueError(f"k must be between 1 and n_categories ({self.n_categories_}), got {k}")
        X = as_csr(X)
        check_n_features(X, self.n_features_in_)
        codes, scores, _ = top_categories(X, self.panels(), k)
        return codes, scores

    def panels(self) -> Panels:
        """Return the planes as the fused scoring kernel reads them."""
        self._check_fitted()
        return arrange_planes(self.weights_, self.plane_category_, self.tie_order_, self.bias)

    def explain(self, x: Rows) -> list[CategoryScore]:
        """Return for each category, best first, its score, the winning plane and the features that carried it.

        Parameters
        ----------
        x
            One row: (d,) or (1, d), dense or CSR.
        """
        self._check_fitted()
        row = as_csr(np.atleast_2d(x) if isinstance(x, np.ndarray) else x)
        check_n_features(row, self.n_features_in_)
        if row.shape[0] != 1:
            raise ValueError(f"x must be one row, got {row.shape[0]}")
        return explain_row(row, self.weights_, self._plane_start, self.bias, self.predict(row)[0])

    @property
    def n_planes_(self) -> np.ndarray:
        """Planes of each category."""
        self._check_fitted()
        return np.bincount(self.plane_category_, minlength=self.n_categories_)

    @property
    def n_categories_(self) -> int:
        """Number of categories ranked."""
        self._check_fitted()
        return len(self.popularity_)

    @property
    def n_features_in_(self) -> int:
        """Number of features, without the bias."""
        self._check_fitted()
        return self.weights_.shape[0] - 1

    @property
    def tie_order_(self) -> np.ndarray:
        """Category codes by training popularity, then lower code."""
        self._check_fitted()
        return np.argsort(-self.popularity_, kind="stable").astype(np.int32)

    def save(self, path: str | Path) -> None:
        """Write the fitted model to a folder."""
        self._check_fitted()
        arrays = {
            "weights": self.weights_,
            "plane_category": self.plane_category_,
            "popularity": self.popularity_,
        }
        attributes = {
            "method": self.method,
            "parameters": {name: _plain(value) for name, value in self.get_params().items()},
            "n_steps": self.n_steps_,
            "categories": self.categories_,
            "variant": self.variant_,
            "training": self.training_,
        }
        if self.columns_ is not None:
            arrays["columns"] = np.frombuffer(json.dumps(self.columns_).encode(), np.uint8)
        save_model(path, arrays, attributes)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that `save` wrote."""
        arrays, attributes = load_model(path)
        if attributes.get("method") != cls.method:
            raise BadInput(f"model at {path} must be of {cls.method}, got {attributes.get('method')}")
        model = cls(**attributes["parameters"])
        model.set_planes(
            arrays["weights"], arrays["plane_category"], arrays["popularity"], n_steps=attributes["n_steps"]
        )
        model.categories_ = attributes["categories"]
        model.columns_ = json.loads(arrays["columns"].tobytes()) if "columns" in arrays else None
        model.variant_ = attributes["variant"]
        model.training_ = attributes["training"]
        return model

    def digest(self) -> str:
        """Return a hash of the planes and of what they are of."""
        self._check_fitted()
        contents = [self.weights_, self.plane_category_, self.popularity_]
        names = [self.method, self.get_params(), self.categories_, self.columns_, self.variant_]
        return digest_of([*names, *(hashlib.sha256(array.tobytes()).hexdigest() for array in contents)])

    @property
    def _plane_start(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.n_planes_)])

    def __sklearn_is_fitted__(self) -> bool:
        return "weights_" in vars(self)

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")

    def check_parameters(self) -> None:
        """Refuse parameters that no training can have."""
        if not (np.isfinite(self.regularization) and self.regularization > 0):
            raise ValueError(f"regularization must be above 0, got {self.regularization}")
        for name in ("epochs", "max_planes", "n_categories", "prune_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        check_rank_weight(getattr(self, "rank_weight", "uniform"))
        if not np.isfinite(self.bias):
            raise ValueError(f"bias must be finite, got {self.bias}")
        if not (np.isfinite(self.prune_c) and self.prune_c >= 0):
            raise ValueError(f"prune_c must be 0 or above, got {self.prune_c}")
        for name in ("clone_probability", "clone_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or above, got {self.seed}")


def _count_categories(blocks: Blocks) -> int:
    highest = max((int(np.max(blocks[i][1], initial=-1)) for i in range(len(blocks))), default=-1)
    if highest < 0:
        raise ValueError("rankings must hold at least one category, found only -1; give labelled rows")
    return highest + 1


def _plain(value: Any) -> Any:
    """Return a parameter as JSON can hold it."""
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray | np.generic):
        return value
    return np.asarray(value).tolist()


def _parameter_names(cls: type) -> Sequence[str]:
    return sorted(name for name in inspect.signature(cls).parameters)

"""Keep a fitted model of planes in a folder, and what both kinds of it share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np

from ammrank_dask.kernels.scoring import Panels
from ammrank_dask.kernels.scoring_plus import PlusPanels
from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.model.metrics import disagreement_error, disagreement_errors, mean_error
from ammrank_dask.model.plane_panels import top_categories
from ammrank_dask.model.rows import Blocks, Rows, as_codes, check_rankings
from ammrank_dask.monitor.texts import card_html
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.in_memory import is_collection
from ammrank_dask.storage.store.models import read_model, save_model


class KeptModel(RankingEstimator):
    """Base of models of planes that can be saved: write `learned`, `set_learned` and `panels`.

    Attributes
    ----------
    weights_
        (columns + 1, n_planes) float32, the constant as last row, planes sorted by category.
    plane_category_
        (n_planes,) the category of each plane.
    n_steps_
        Training steps made.
    categories_, columns_, variant_, training_
        Names of the categories and columns, the variant of the features and what `train` measured; None if unknown.
    feature_names_in_
        The columns of the table that was fitted, if it was a table whose columns have names.
    """

    weights_: np.ndarray
    plane_category_: np.ndarray
    n_steps_: int
    categories_: list[str] | None
    columns_: list[str] | None
    variant_: str | None
    training_: dict[str, Any] | None
    seed: int
    feature_names_in_: np.ndarray

    @abstractmethod
    def check_parameters(self) -> None:
        """Refuse parameters that no training can have."""

    @abstractmethod
    def learned(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return everything learned as named arrays, and what JSON keeps of it."""

    @abstractmethod
    def set_learned(self, arrays: dict[str, np.ndarray], attributes: dict[str, Any]) -> None:
        """Become fitted with what `learned` returned; the attributes are all that `save` wrote."""

    @abstractmethod
    def panels(self) -> Panels | PlusPanels:
        """Return the model as the fused scoring kernel reads it."""

    def fit(
        self,
        X: Any,
        rankings: Any = None,
        *,
        ranks: np.ndarray | None = None,
        columns: Sequence[str] | None = None,
        categories: Sequence[str] | None = None,
        client: Any = None,
        shards: int = 8,
        scratch: str | Path | None = None,
    ) -> Self:
        """Learn from rows and their rankings, in memory or in the blocks of Dask arrays.

        Parameters
        ----------
        X
            (n, d) dense or CSR, finite; or a Dask array of such blocks, each with all columns: then the rounds of
            `train` are made on the cluster, on all rows, and the same blocks give the same bits on any cluster.
        rankings
            (n, m) category codes, best first, padded with -1 at the end. Rows without a code teach nothing. With a Dask
            array also one with its blocks.
        ranks
            Instead of rankings: (n, n_categories), 1 best, 0 unranked, equal ranks tie. Tied pairs are not
            pairs. Not for Dask arrays.
        columns, categories
            Names of the columns of X and of the category codes, as `interest_features` and `click_rankings` return
            them. The model keeps them, and lists show them. AMM-rank-plus also reads from them which columns are a
            category's own, as `train` does, unless it has `own_columns`.
        client, shards, scratch
            Only for Dask arrays: the cluster, the current one if None; how many shards of the rows learn at the same
            time; and a folder that all workers see, by default the local directory of the workers.
        """
        if columns is not None or categories is not None:
            chosen = self.parameters_of_names(X, columns, categories)
            learner = type(self)(**{**self.get_params(), **chosen})
            learner.fit(X, rankings, ranks=ranks, client=client, shards=shards, scratch=scratch)
            vars(self).pop("feature_names_in_", None)
            vars(self).pop("_passes", None)
            vars(self).update({name: value for name, value in vars(learner).items() if name.endswith("_")})
            self.columns_ = None if columns is None else list(columns)
            self.categories_ = None if categories is None else list(categories)
            return self
        names = _names_of(X)
        vars(self).pop("feature_names_in_", None)
        if not is_collection(X):
            super().fit(X, rankings, ranks=ranks)
            if names is not None:
                self.feature_names_in_ = names
            return self
        if ranks is not None or rankings is None:
            raise ValueError("fit must be given rankings with a Dask array, not ranks; pass rankings")
        # The rounds are of a later stage, which a model in memory does without.
        fit_module = import_module("ammrank_dask.training.fit")
        fit_module.fit_collections(self, X, rankings, client=client, shards=shards, scratch=scratch)
        vars(self).pop("_passes", None)
        return self

    def parameters_of_names(
        self, X: Any, columns: Sequence[str] | None, categories: Sequence[str] | None
    ) -> dict[str, Any]:
        """Return the parameters that follow from the names of the columns and categories of a training."""
        for what, given in (("columns", columns), ("categories", categories)):
            if isinstance(given, str) or len(set(given or ())) != len(given or ()):
                raise ValueError(f"{what} must be distinct names in a list, got {given!r}")
        if columns is not None and hasattr(X, "shape") and X.shape[1:] != (len(columns),):
            raise ValueError(f"X must have the {len(columns)} columns that are named, got {X.shape[-1]}")
        if categories is None:
            return {}
        if self.n_categories not in (None, len(categories)):
            raise ValueError(f"categories must be n_categories ({self.n_categories}) names, got {len(categories)}")
        return {"n_categories": len(categories)}

    def fit_blocks(self, blocks: Blocks) -> Self:
        """Learn from blocks of rows, as every method does; what `partial_fit` began is over."""
        vars(self).pop("_passes", None)
        return super().fit_blocks(blocks)

    def partial_fit(self, X: Any, rankings: Any) -> Self:
        """Make one pass over further rows, as one epoch of `fit` does over a block; the first call begins a model.

        `n_categories` must be given: the first rows may not rank all categories. AMM-rank-plus takes its prior and
        clusterings from the first rows. What earlier calls learned is in memory only: `save` keeps the model, not that.
        """
        if self.n_categories is None:
            raise ValueError("n_categories must be given for partial_fit, whose first rows may not have all categories")
        if self.__sklearn_is_fitted__() and "_passes" not in vars(self):
            raise ValueError(
                "partial_fit must begin a model or follow partial_fit, this model was fitted or loaded; go on from it"
                " with train(features, start=model)"
            )
        self.check_parameters()
        rows, rankings = self.read_rows(X), as_codes(rankings)
        check_rankings(rankings, n_rows=rows.shape[0], n_categories=self.n_categories)
        state, number = vars(self).get("_passes", (None, 0))
        order = np.random.default_rng([self.seed, number, 0]).permutation(rows.shape[0])
        self._passes = self.make_pass(state, rows, rankings, order), number + 1
        return self

    @abstractmethod
    def make_pass(self, state: Any, rows: Any, rankings: np.ndarray, order: np.ndarray) -> Any:
        """Train on rows in an order, going on from what an earlier pass returned, and become fitted."""

    def check_rows(self, X: Rows) -> Any:
        """Return the rows to score; refuse a table with other columns than were fitted."""
        names = _names_of(X)
        if (
            names is not None
            and "feature_names_in_" in vars(self)
            and names.tolist() != self.feature_names_in_.tolist()
        ):
            raise ValueError(
                "X must have the columns that were fitted, in their order; pass X[model.feature_names_in_]"
            )
        return super().check_rows(X)

    def score(self, X: Any, rankings: Any) -> float:
        """Return 1 − ε_dis, the mean share of preferred pairs in the right order: larger is better.

        Of Dask arrays, of which `rankings` has the blocks of X, it is computed at once, block by block.
        """
        if not is_collection(X):
            return 1 - disagreement_error(self.decision_function(X), as_codes(rankings))
        import dask

        from ammrank_dask.runtime.collections import blocks_of, check_blocks  # a model in memory needs no cluster

        self.check_fitted()
        check_blocks(X)
        once, errors_of = dask.delayed(self, traverse=False), dask.delayed(_errors_of_block)
        pairs = zip(np.ravel(X.to_delayed()), blocks_of("rankings", rankings, X), strict=True)
        return 1 - mean_error(np.concatenate(dask.compute(*(errors_of(once, *pair) for pair in pairs))))

    def top_k(self, rows: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best codes and their scores from the fused scoring kernel."""
        codes, scores, _ = top_categories(rows, self.panels(), k)
        return codes, scores

    def _repr_html_(self) -> str:
        if not self.__sklearn_is_fitted__():
            return card_html(type(self).__name__, {"fitted": "no", "parameters": repr(self)}, {})
        names = self.categories_ or [str(code) for code in range(self.n_categories_)]
        table = {
            "categories": self.n_categories_, "columns": self.n_features_in_, "planes": len(self.plane_category_),
            "training steps": self.n_steps_, "parameters": _short(repr(self)),
        }  # fmt: skip
        planes = dict(zip(names, self.n_planes_.tolist(), strict=True))
        return card_html(
            type(self).__name__, table, {"weight by group of columns": self._group_weights(), "planes": planes}
        )

    def _group_weights(self) -> dict[str, float]:
        """Return the share of each group of named columns in all squared weights, {} without names."""
        if self.columns_ is None:
            return {}
        squares = np.einsum("ij,ij->i", self.weights_, self.weights_, dtype=np.float64)[: len(self.columns_)]
        shares: dict[str, float] = {}
        for name, square in zip(self.columns_, squares.tolist(), strict=True):
            group = name.partition(":")[0]
            shares[group] = shares.get(group, 0.0) + square / max(float(squares.sum()), 1e-300)
        return shares

    @property
    def n_planes_(self) -> np.ndarray:
        """Planes of each category."""
        self.check_fitted()
        return np.bincount(self.plane_category_, minlength=self.n_categories_)

    def save(self, path: str | Path) -> None:
        """Write the fitted model to a folder."""
        self.check_fitted()
        arrays, about = self.learned()
        attributes = {
            "model": self.method,
            "parameters": self.json_parameters(),
            "n_steps": self.n_steps_,
            **about,
            "categories": self.categories_,
            "columns": self.columns_,
            "variant": self.variant_,
            "training": self.training_,
        }
        save_model(path, arrays, attributes)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that `save` wrote."""
        arrays, attributes = read_model(path)
        if attributes.get("model") != cls.method:
            raise BadInput(f"model at {path} must be of {cls.method}, got {attributes.get('model')}")
        model = cls(**attributes["parameters"])
        model.set_learned(arrays, attributes)
        model.categories_ = attributes["categories"]
        model.columns_ = attributes["columns"]
        model.variant_ = attributes["variant"]
        model.training_ = attributes["training"]
        return model

    def json_parameters(self) -> dict[str, Any]:
        """Return the parameters as JSON can hold them."""
        return {name: _json_value(value) for name, value in self.get_params().items()}

    def check_row(self, x: Rows) -> Any:
        """Return one row, (d,) or (1, d), as `check_rows` does; refuse more rows."""
        row = self.check_rows(np.atleast_2d(x) if isinstance(x, np.ndarray) else x)
        if row.shape[0] != 1:
            raise ValueError(f"x must be one row, got {row.shape[0]}")
        return row


def _errors_of_block(model: KeptModel, X: Rows, rankings: np.ndarray) -> np.ndarray:
    return disagreement_errors(model.decision_function(X), as_codes(rankings))


def check_model(model: Any) -> None:
    """Refuse what is none of the models that score, where one is wanted."""
    if not isinstance(model, KeptModel):
        raise TypeError(
            f"model must be an AMMRankPlus or AMMRank, got {type(model).__name__}; pass what train or load returns"
        )


def _names_of(X: Any) -> np.ndarray | None:
    """Return the names of a table's columns if they are all text, as scikit-learn keeps them."""
    names = list(getattr(X, "columns", ()))
    return np.array(names, object) if names and all(isinstance(name, str) for name in names) else None


def _short(text: str, most: int = 400) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _json_value(value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray | np.generic):
        return value
    return np.asarray(value).tolist()

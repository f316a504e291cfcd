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
from ammrank_dask.model.plane_panels import top_categories
from ammrank_dask.model.rows import Rows
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
    """

    weights_: np.ndarray
    plane_category_: np.ndarray
    n_steps_: int
    categories_: list[str] | None
    columns_: list[str] | None
    variant_: str | None
    training_: dict[str, Any] | None

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
        client, shards, scratch
            Only for Dask arrays: the cluster, the current one if None; how many shards of the rows learn at the same
            time; and a folder that all workers see, by default the local directory of the workers.
        """
        if not is_collection(X):
            return super().fit(X, rankings, ranks=ranks)
        if ranks is not None or rankings is None:
            raise ValueError("fit must be given rankings with a Dask array, not ranks; pass rankings")
        # The rounds are of a later stage, which a model in memory does without.
        fit_module = import_module("ammrank_dask.training.fit")
        fit_module.fit_collections(self, X, rankings, client=client, shards=shards, scratch=scratch)
        return self

    def top_k(self, rows: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best codes and their scores from the fused scoring kernel."""
        codes, scores, _ = top_categories(rows, self.panels(), k)
        return codes, scores

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


def check_model(model: Any) -> None:
    """Refuse what is none of the models that score, where one is wanted."""
    if not isinstance(model, KeptModel):
        raise TypeError(
            f"model must be an AMMRankPlus or AMMRank, got {type(model).__name__}; pass what train or load returns"
        )


def _json_value(value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray | np.generic):
        return value
    return np.asarray(value).tolist()

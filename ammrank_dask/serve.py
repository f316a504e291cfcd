"""Score rows with a saved model in numpy alone, for services that rank users between two nights.

Importing this loads neither Dask, numba, zarr nor scikit-learn. Scores are those of a night to 1e-6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ammrank_dask.storage.errors import BadInput, suggest
from ammrank_dask.storage.numbers import list_length
from ammrank_dask.storage.store.models import read_model

_BLOCK_ROWS = 256
# As the kernels have them, which are not imported here; tests compare the scores.
_HAT_SCALE, _LOWEST_EXPONENT = 0.1, -80.0
_COSINE = "cosine"


@dataclass(frozen=True)
class ServedModel:
    """A model that scores rows: `load` makes it.

    Attributes
    ----------
    method
        `amm-rank` or `amm-rank-plus`.
    categories
        Names of the categories by code; None in models that were fitted on arrays.
    columns
        Names of the columns of a row; None as above.
    normalize
        Whether rows are divided by their norm before anything else; AMM-rank-plus does that where it needs to.
    """

    method: str
    categories: list[str] | None
    columns: list[str] | None
    normalize: bool
    arrays: Mapping[str, np.ndarray]
    attributes: Mapping[str, Any]

    @property
    def n_categories(self) -> int:
        """Categories ranked."""
        return len(self.arrays["popularity"])

    @property
    def n_features(self) -> int:
        """Columns of a row."""
        if "centers" in self.arrays:
            return self.arrays["centers"].shape[1]
        return len(self.arrays["weights"]) - 1

    def top_k(self, rows: Any, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best category codes, (n, k) int32, and their scores, (n, k) float32, best first.

        Equal scores are ranked by training popularity, then lower code.

        Parameters
        ----------
        rows
            Values as `features` stores them, without normalisation: (n, d) dense, anything with the CSR arrays `data`,
            `indices`, `indptr` and a `shape`, or for each row a mapping from names of columns to values.
        k
            At most the number of categories.
        """
        k = list_length(k, self.n_categories)
        scores = self.scores(rows)
        tie_order = np.argsort(-self.arrays["popularity"], kind="stable").astype(np.int32)
        best = tie_order[np.argsort(-scores[:, tie_order], axis=1, kind="stable")[:, :k]]
        return best, np.take_along_axis(scores, best, axis=1)

    def scores(self, rows: Any) -> np.ndarray:
        """Return all scores, (n, n_categories) float32; of AMM-rank, a category without planes is -inf."""
        indptr, indices, data = self._read(rows)
        scores = np.empty((len(indptr) - 1, self.n_categories), np.float32)
        score = self._score_plus if "centers" in self.arrays else self._score_planes
        for first in range(0, len(scores), _BLOCK_ROWS):
            ends = indptr[first : first + _BLOCK_ROWS + 1]
            cells = slice(ends[0], ends[-1])
            used, at = np.unique(indices[cells], return_inverse=True)
            block = np.zeros((len(ends) - 1, len(used)))
            np.add.at(block, (np.repeat(np.arange(len(block)), np.diff(ends)), at), data[cells])
            scores[first : first + _BLOCK_ROWS] = score(block, used)
        return scores

    def _score_planes(self, block: np.ndarray, used: np.ndarray) -> np.ndarray:
        if self.normalize:
            block = block * _inverse(np.einsum("ij,ij->i", block, block))[:, None]
        weights = self.arrays["weights"]
        planes = block @ weights[used] + self.attributes["parameters"]["bias"] * weights[-1].astype(np.float64)
        return self._best_plane(planes)

    def _best_plane(self, planes: np.ndarray) -> np.ndarray:
        """Return the best plane of each category, -inf where it has none."""
        start = np.searchsorted(self.arrays["plane_category"], np.arange(self.n_categories))
        has_planes = np.isin(np.arange(self.n_categories), self.arrays["plane_category"])
        best = np.full((len(planes), self.n_categories), -np.inf)
        if has_planes.any():
            best[:, has_planes] = np.maximum.reduceat(planes, start[has_planes], axis=1)
        return best

    def _score_plus(self, block: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Return b_i + Σ_q h_q(x_qi) + max_j w_ij · z."""
        arrays, n_features = self.arrays, self.n_features
        weights = arrays["weights"]
        inverse = _inverse(np.einsum("ij,ij->i", block, block))
        unit = block * inverse[:, None] if self.attributes["geometry"] == _COSINE else block
        planes = unit @ weights[used] + self.attributes["parameters"]["bias"] * weights[-1].astype(np.float64)
        planes += self._belong(unit, used, inverse > 0) @ weights[n_features:-1]
        best = self._best_plane(planes)
        n_planes = np.bincount(arrays["plane_category"], minlength=self.n_categories)
        best = np.where(n_planes < arrays["limit"], np.maximum(best, 0.0), best)
        return arrays["prior"] + self._score_own(block, used) + best

    def _belong(self, block: np.ndarray, used: np.ndarray, is_there: np.ndarray) -> np.ndarray:
        """Return how much each row belongs to the nearest centres of every clustering; an empty row to none."""
        centers, start = self.arrays["centers"], self.arrays["center_start"]
        by_angle = self.attributes["geometry"] == _COSINE
        products = block @ centers[:, used].T
        if not by_angle:
            products -= 0.5 * np.einsum("ij,ij->i", centers, centers, dtype=np.float64)
        # Rounded, so that centres that are the same are also as near.
        affinity = products.astype(np.float32)
        belongs = np.zeros(affinity.shape)
        for number, n_nearest in enumerate(self.arrays["center_nearest"]):
            part = affinity[:, start[number] : start[number + 1]]
            nearest = np.argsort(-part, axis=1, kind="stable")[:, :n_nearest]
            exponent = np.take_along_axis(part, nearest, axis=1).astype(np.float64)
            exponent = (exponent - exponent[:, :1]) / self.arrays["center_temperature"][number]
            weight = np.exp(np.maximum(exponent, _LOWEST_EXPONENT))
            weight /= weight.sum(axis=1, keepdims=True) if by_angle else np.sqrt((weight**2).sum(axis=1, keepdims=True))
            np.put_along_axis(belongs, start[number] + nearest, weight * is_there[:, None], axis=1)
        return belongs

    def _score_own(self, block: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Return Σ_q h_q: what the own columns of each category add."""
        own = np.zeros((len(block), self.n_categories))
        columns, group = self.arrays["own_columns"], self.arrays["own_group"]
        n_groups = int(group.max(initial=-1)) + 1
        squares = np.zeros((len(block), n_groups))
        kinds = []
        for kind, of_category in enumerate(columns):
            codes = np.flatnonzero(np.isin(of_category, used))
            values = block[:, np.searchsorted(used, of_category[codes])]
            squares[:, group[kind]] += np.einsum("ij,ij->i", values, values)
            kinds.append((codes, values))
        scale = _inverse(squares * n_groups)
        for kind, (codes, values) in enumerate(kinds):
            weight, n_knots = self.arrays["own_weights"][kind].astype(np.float64), self.arrays["own_n_knots"][kind]
            term = weight[0] * values * scale[:, group[kind], None]
            if n_knots:
                heights = _HAT_SCALE * weight[1 : n_knots + 1]
                term += np.interp(values, self.arrays["own_knots"][kind, :n_knots], heights)
            if kind == 0 and len(self.arrays["own_weights"]) > len(columns):
                term += self._lifts()[codes]
            own[:, codes] += np.where(values != 0, term, 0.0)
        return own

    def _lifts(self) -> np.ndarray:
        """Return what an own column of the first kind adds by being there: hats of the category's prior."""
        n_knots = self.arrays["own_n_knots"][-1]
        if not n_knots:
            return np.zeros(self.n_categories)
        heights = _HAT_SCALE * self.arrays["own_weights"][-1, 1 : n_knots + 1].astype(np.float64)
        return np.interp(self.arrays["prior"], self.arrays["own_knots"][-1, :n_knots], heights)

    def _read(self, rows: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return CSR arrays of any kind of rows, checked."""
        if isinstance(rows, Mapping):
            rows = [rows]
        if hasattr(rows, "indptr"):
            n_features, read = rows.shape[1], (rows.indptr, rows.indices, rows.data)
        elif isinstance(rows, Sequence) and rows and isinstance(rows[0], Mapping):
            n_features, read = self.n_features, self._read_names(rows)
        else:
            dense = np.asarray(rows)
            if dense.ndim != 2:
                raise ValueError(f"rows must have two dimensions, got {dense.ndim}")
            row, column = np.nonzero(dense)
            n_features = dense.shape[1]
            read = (np.searchsorted(row, np.arange(len(dense) + 1)), column, dense[row, column])
        if n_features != self.n_features:
            raise ValueError(f"rows must have {self.n_features} columns, got {n_features}")
        indptr, indices, data = (np.asarray(part) for part in read)
        with np.errstate(over="ignore"):
            data = data.astype(np.float32)
        if not np.isfinite(data).all():
            raise ValueError("rows must be finite in float32, found NaN or infinity; fill or drop those values")
        return indptr.astype(np.int64), indices.astype(np.int64), data

    def _read_names(self, rows: Sequence[Mapping[str, float]]) -> tuple[Any, Any, Any]:
        if self.columns is None:
            raise ValueError("rows must be arrays: this model was fitted on arrays and knows no names of columns")
        number_of = {name: number for number, name in enumerate(self.columns)}
        for name in (name for row in rows for name in row):
            if name not in number_of:
                raise ValueError(f"the model has no column {name!r}; {suggest(name, self.columns, 'it has', limit=5)}")
        indptr = np.cumsum([0, *(len(row) for row in rows)])
        indices = [number_of[name] for row in rows for name in row]
        return indptr, indices, np.array([value for row in rows for value in row.values()], np.float64)


def load(path: str | Path, *, normalize: bool | None = None) -> ServedModel:
    """Read a model, checked: a run in `models/` of a site, or a folder that `save` wrote.

    Parameters
    ----------
    path
        The folder of the model; `ROOT` names the one that is published.
    normalize
        For AMM-rank: divide rows by their norm, as `features.normalize` says. None: as that is by default for models
        of a night or of `ammrank_dask.train`, not for those fitted on arrays. AMM-rank-plus takes rows as stored.
    """
    arrays, attributes = read_model(path)
    method = attributes.get("model")
    if method not in ("amm-rank", "amm-rank-plus"):
        raise BadInput(f"model at {path} must be of amm-rank or amm-rank-plus, got {method}")
    is_plus = "centers" in arrays
    if normalize is None:
        normalize = attributes["training"] is not None
    categories, columns = attributes["categories"], attributes["columns"]
    return ServedModel(method, categories, columns, normalize and not is_plus, arrays, attributes)


def _inverse(squares: np.ndarray) -> np.ndarray:
    """Return 1 / √squares, 0 where they are 0."""
    return np.where(squares > 0, 1.0 / np.sqrt(np.where(squares > 0, squares, 1.0)), 0.0)

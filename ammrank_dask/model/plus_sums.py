"""The state of training AMM-rank-plus, and what one block of rows does to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ammrank_dask.kernels.ammrank_plus import PlusBlock, PlusRule, PlusSums, train_plus_rows
from ammrank_dask.kernels.own_term import weigh_own
from ammrank_dask.model.plane_sums import PlaneSums, WeightMean
from ammrank_dask.model.plus_basis import PlusBasis, PlusRows

OWN_RATE = 3.0
"""η of the own weights in one shard."""
PLANE_RATE, LOW_PLANE_RATE = 3.0, 1.0
"""η of the planes in one shard: the first without an own term, when planes must carry everything."""
LOW_RATE_ROWS = 10_000
"""Beside an own term planes only correct it. With so many rows or fewer the low rate overfits less, and κ hardly
matters then; with more it grows with their root."""


class Rates(NamedTuple):
    """η of the planes, in w = S / (λt + √H/η), and of the own weights."""

    planes: float
    own: float


def rates_of(basis: PlusBasis, shards: int = 1, pace: float = 1.0) -> Rates:
    """Return the rates of a training: those of one shard times the root of the shards, whose mean is taken.

    The rate of the planes is multiplied by `pace`.
    """
    root, planes = math.sqrt(shards), PLANE_RATE
    if basis.own.n_kinds:
        planes = min(PLANE_RATE, LOW_PLANE_RATE * max(1.0, math.sqrt(basis.n_rows / LOW_RATE_ROWS)))
    return Rates(root * planes * pace, root * OWN_RATE)


@dataclass
class PlusState:
    """Sums of pushed rows by plane, of squared pushes by feature (H), and of the gradients of the own weights."""

    planes: PlaneSums
    squares: np.ndarray
    own_sums: np.ndarray
    own_squares: np.ndarray

    @classmethod
    def empty(cls, basis: PlusBasis) -> PlusState:
        """Return the state before the first step: a category whose limit is one plane has it, the others have none."""
        single = np.flatnonzero(basis.limit == 1)
        planes = PlaneSums.empty(basis.n_columns, len(basis.limit))
        planes.reserve(len(single))
        planes.plane_category[: len(single)] = single
        planes.n_planes[single] = 1
        planes.plane_id, planes.next_id = np.arange(len(single)), len(single)
        own = np.zeros(basis.own_shape)
        return cls(planes, np.zeros(basis.n_columns + 1), own, own.copy())

    array_names: ClassVar[tuple[str, ...]] = (*PlaneSums.array_names, "squares", "own_sums", "own_squares")

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint keeps, beside the numbers."""
        own = {"squares": self.squares, "own_sums": self.own_sums, "own_squares": self.own_squares}
        return {**self.planes.to_arrays(), **own}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, step: int, next_id: int) -> PlusState:
        """Return the state that `to_arrays` took apart."""
        planes = PlaneSums.from_arrays(arrays, step=step, next_id=next_id)
        return cls(planes, arrays["squares"], arrays["own_sums"], arrays["own_squares"])

    def after_first_pass(self) -> PlusState:
        """Return what the rounds begin with after a pass over a sample: the planes, and nothing learned."""
        planes = self.planes
        fresh = PlaneSums(
            np.zeros_like(planes.sums), planes.plane_category, planes.n_planes, 1, planes.plane_id, planes.next_id
        )
        return PlusState(
            fresh, np.zeros_like(self.squares), np.zeros_like(self.own_sums), np.zeros_like(self.own_squares)
        )

    def weights(self, regularization: float, rate: float) -> np.ndarray:
        """Return w, (d + 1, n_planes) float32, planes in the order of their birth."""
        scale = regularization * self.planes.step + np.sqrt(self.squares) / rate
        sums = self.planes.sums[:, : self.planes.n_planes.sum()]
        # In float64, rounded as it is written: no second copy of all planes in between.
        weights = np.empty(sums.shape, np.float32)
        return np.divide(sums, scale[:, None], out=weights, dtype=np.float64, casting="same_kind")

    def own_weights(self, rate: float) -> np.ndarray:
        """Return the weights of the own term, float32."""
        weights = np.empty(self.own_sums.shape, np.float32)
        weigh_own(self.own_sums, self.own_squares, rate, weights)
        return weights


class PlusMean:
    """The mean of models over epochs: planes by their number, own weights beside them."""

    array_names: ClassVar[tuple[str, ...]] = (*WeightMean.array_names, "mean_own")

    def __init__(self) -> None:
        self.planes = WeightMean()
        self._own = np.zeros(0)

    def add(self, weights: np.ndarray, plane_id: np.ndarray, own_weights: np.ndarray) -> None:
        """Count in a model."""
        self._own = own_weights.astype(np.float64) + (self._own if self.planes.n_models else 0.0)
        self.planes.add(weights, plane_id)

    @property
    def n_models(self) -> int:
        """Models counted in so far."""
        return self.planes.n_models

    def weights(self) -> np.ndarray:
        """Return the mean for the planes of the model added last."""
        return self.planes.weights()

    def own_weights(self) -> np.ndarray:
        """Return the mean of the own weights, float32."""
        return (self._own / self.n_models).astype(np.float32)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint keeps, beside the number of models."""
        return {**self.planes.to_arrays(), "mean_own": self._own}

    @classmethod
    def from_arrays(cls, total: np.ndarray, plane_id: np.ndarray, own: np.ndarray, *, n_models: int) -> PlusMean:
        """Return the mean that `to_arrays` took apart."""
        mean = cls()
        mean.planes, mean._own = WeightMean.from_arrays(total, plane_id, n_models=n_models), own
        return mean


def train_plus_block(
    state: PlusState,
    rows: PlusRows,
    rankings: np.ndarray,
    order: np.ndarray,
    *,
    basis: PlusBasis,
    regularization: float,
    rates: Rates,
    bias: float,
    tied: np.ndarray | None = None,
    births: bool = True,
    moment: int = 0,
) -> float:
    """Make one step per row of `order` and return the sum of their losses; `state` is changed in place.

    Parameters
    ----------
    rows, rankings, tied
        Prepared rows, category codes per row (best first, padded with -1), and ties as of `rankings_from_ranks`.
    order
        The rows to visit.
    basis
        Prior, limits of planes and own columns.
    regularization, rates, bias
        λ and η of w = S / (λt + √H/η), the η of the own weights, and the constant last feature.
    births
        Whether planes may be born; if not, categories have no zero plane either.
    moment
        Which of the moments of the basis the rows are of, if it has any.
    """
    rankings = np.ascontiguousarray(rankings, np.int32)
    tied = np.zeros((len(rankings), 0), bool) if tied is None else np.ascontiguousarray(tied)
    block = PlusBlock(rows.data, rows.indices, rows.indptr, rows.knot, rows.own_scale, rankings, tied)
    planes = state.planes
    cells = basis.own.cells(basis.n_columns)
    prior, trends = basis.prior, np.zeros((0, len(basis.prior)), np.float32)
    if basis.lagged is not None:
        prior, trends = basis.lagged.scores[moment, 0], basis.lagged.scores[moment, 1:]
    total = 0.0
    while len(order):
        limit = basis.limit if births else planes.n_planes.copy()
        # A row can give birth to the planes of the categories it ranks, and there is no use in more than the limits.
        n_total = int(planes.n_planes.sum())
        planes.reserve(n_total + rankings.shape[1] + min(2 * len(limit), int((limit - planes.n_planes).sum())))
        rule = PlusRule(
            float(regularization), rates.planes, rates.own, float(bias), prior, limit, cells.kind,
            cells.category, cells.group, basis.own.prior_knot(prior), trends, not basis.is_complete,
        )  # fmt: skip
        kernel_state = PlusSums(
            planes.sums, planes.plane_category, planes.n_planes, state.squares, state.own_sums, state.own_squares
        )
        n_done, planes.step, loss = train_plus_rows(block, order, rule, planes.step, kernel_state)
        total += loss
        order = order[n_done:]
        born = np.arange(planes.next_id, planes.next_id + int(planes.n_planes.sum()) - len(planes.plane_id))
        planes.plane_id = np.concatenate([planes.plane_id, born])
        planes.next_id += len(born)
    return total

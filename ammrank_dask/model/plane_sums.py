"""Grow the planes of a model: the state of training and what one block of rows does to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import scipy.sparse as sp

from ammrank_dask.kernels.ammrank import Block, Planes, Rule, train_rows
from ammrank_dask.model.plane_panels import LINE, zeros_at_line

RANK_WEIGHTS = ("uniform", "reciprocal")
_NEVER = 2**62


@dataclass
class PlaneSums:
    """The state of training: sums of pushed rows S, with w = S / (λ · step).

    `sums` is (d + 1, capacity) float32 feature-major, planes in the order of their birth; `plane_category`
    (capacity,), `n_planes` (L,), and `step` the t of the next row. `plane_id` (n_planes,) counts births and
    stays with a plane when others are pruned; `next_id` is the next one to give.
    """

    sums: np.ndarray
    plane_category: np.ndarray
    n_planes: np.ndarray
    step: int = 1
    plane_id: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    next_id: int = 0

    @classmethod
    def empty(cls, n_features: int, n_categories: int) -> Self:
        """Return the state before the first step: no planes."""
        return cls(
            sums=np.zeros((n_features + 1, 0), np.float32),
            plane_category=np.zeros(0, np.int32),
            n_planes=np.zeros(n_categories, np.int64),
        )

    @property
    def planes(self) -> Self:
        """The state itself, which has nothing but planes."""
        return self

    def after_first_pass(self) -> Self:
        """Return what the rounds begin with after a pass over a sample: the planes as they are."""
        return self

    array_names: ClassVar[tuple[str, ...]] = ("sums", "plane_category", "n_planes", "plane_id")

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint keeps, beside the numbers.

        Without the room for more planes, which differs from shard to shard: sums that are merged have one shape.
        """
        n_total = int(self.n_planes.sum())
        kept = self.sums[:, :n_total], self.plane_category[:n_total], self.n_planes, self.plane_id
        return dict(zip(self.array_names, kept, strict=True))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, step: int, next_id: int) -> Self:
        """Return the state that `to_arrays` took apart."""
        return cls(**{name: arrays[name] for name in cls.array_names}, step=step, next_id=next_id)

    def weights(self, regularization: float) -> np.ndarray:
        """Return w, (d + 1, n_planes) float32, planes in the order of their birth."""
        return self.sums[:, : self.n_planes.sum()] / np.float32(regularization * self.step)

    def reserve(self, capacity: int) -> None:
        """Make room for at least `capacity` planes."""
        if capacity <= self.sums.shape[1]:
            return
        # Whole cache lines, in an odd number: rows a power of two apart would share cache sets.
        capacity = LINE * (-(-capacity // LINE) | 1)
        sums = zeros_at_line((self.sums.shape[0], capacity))
        sums[:, : self.sums.shape[1]] = self.sums
        plane_category = np.zeros(capacity, np.int32)
        plane_category[: len(self.plane_category)] = self.plane_category
        self.sums, self.plane_category = sums, plane_category

    def prune(self, c: float) -> int:
        """Remove the planes of smallest ‖S‖² as long as these sum up to at most c²; return how many.

        The last plane of a category stays.
        """
        n_total = int(self.n_planes.sum())
        squares = np.einsum("ij,ij->j", self.sums[:, :n_total], self.sums[:, :n_total], dtype=np.float64)
        kept = np.ones(n_total, bool)
        room = c * c
        for plane in np.argsort(squares, kind="stable"):
            if squares[plane] > room:
                break
            category = self.plane_category[plane]
            if self.n_planes[category] > 1:
                kept[plane] = False
                self.n_planes[category] -= 1
                room -= squares[plane]
        n_kept = int(kept.sum())
        self.sums[:, :n_kept] = self.sums[:, :n_total][:, kept]
        # The room behind the planes is zero: a birth adds to what is there.
        self.sums[:, n_kept:n_total] = 0
        self.plane_category[:n_kept] = self.plane_category[:n_total][kept]
        self.plane_id = self.plane_id[kept]
        return n_total - n_kept


class WeightMean:
    """The mean of models whose planes were born and pruned between them."""

    array_names: ClassVar[tuple[str, ...]] = ("mean_total", "mean_id")

    def __init__(self) -> None:
        self._total = np.zeros((0, 0), np.float32)
        self._plane_id = np.zeros(0, np.int64)
        self._n_models = 0

    def add(self, weights: np.ndarray, plane_id: np.ndarray) -> None:
        """Count in a model; a plane that an earlier one did not have was one of its zero planes."""
        self._n_models += 1
        if self._total.shape == weights.shape and np.array_equal(self._plane_id, plane_id):
            self._total += weights
            return
        _, earlier, now = np.intersect1d(self._plane_id, plane_id, assume_unique=True, return_indices=True)
        total = weights.copy()
        if len(earlier):
            total[:, now] += self._total[:, earlier]
        self._total, self._plane_id = total, plane_id.copy()

    @property
    def n_models(self) -> int:
        """Models counted in so far."""
        return self._n_models

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint keeps, beside the number of models."""
        return {"mean_total": self._total, "mean_id": self._plane_id}

    @classmethod
    def from_arrays(cls, total: np.ndarray, plane_id: np.ndarray, *, n_models: int) -> Self:
        """Return the mean that `to_arrays` took apart."""
        mean = cls()
        mean._total, mean._plane_id, mean._n_models = total, plane_id, n_models
        return mean

    def weights(self) -> np.ndarray:
        """Return the mean for the planes of the model added last."""
        return self._total / np.float32(self._n_models)


@dataclass(frozen=True)
class StepSettings:
    """How a step is made.

    `regularization`, `bias`, `max_planes`, `rank_weight` are those of `AMMRank`; with `max_planes=0` no plane is born.
    With `top_only` only the top category is learned, against its strongest rival: multi-class AMM. After every
    `prune_every` steps `PlaneSums.prune(prune_c)` is called, never when None. `clone_probability` and `clone_decay` are
    those of `kernels.ammrank.train_rows`.
    """

    regularization: float
    bias: float
    max_planes: int
    rank_weight: str | Sequence[float] = "uniform"
    top_only: bool = False
    prune_every: int | None = None
    prune_c: float = 0.0
    clone_probability: float = 0.0
    clone_decay: float = 1.0

    @property
    def rule(self) -> Rule:
        """The settings as the kernel reads them."""
        return Rule(
            float(self.regularization), float(self.bias), int(self.max_planes), self.top_only,
            float(self.clone_probability), float(self.clone_decay),
        )  # fmt: skip


def train_block(
    planes: PlaneSums,
    X: sp.csr_matrix | sp.csr_array,
    rankings: np.ndarray,
    order: np.ndarray,
    settings: StepSettings,
    *,
    tied: np.ndarray | None = None,
    clone_draws: np.ndarray | None = None,
) -> float:
    """Make one step per row of `order` and return the sum of their losses; `planes` is changed in place.

    Parameters
    ----------
    planes
        The state.
    X, rankings, tied
        Rows, category codes per row (best first, padded with -1), and ties as of `rankings_from_ranks`.
    order
        The rows to visit.
    clone_draws
        As in `kernels.ammrank.train_rows`; no cloning when None.
    """
    rankings = np.ascontiguousarray(rankings, np.int32)
    tied = np.zeros((len(rankings), 0), bool) if tied is None else np.ascontiguousarray(tied)
    block = Block(X.data, X.indices, X.indptr, rankings, tied)
    rule, prune_every, max_planes = settings.rule, settings.prune_every, settings.max_planes
    draws = np.zeros((0, 0), np.float32) if clone_draws is None else clone_draws
    n_categories = len(planes.n_planes)
    weights = weights_of_ranks(settings.rank_weight, rankings.shape[1])
    births = rankings.shape[1] if clone_draws is None else n_categories
    planes.reserve(_room_for(planes, 2 * n_categories, max_planes) + births)
    total = 0.0
    while len(order):
        stop_step = _NEVER if prune_every is None else prune_every * ((planes.step - 1) // prune_every + 1) + 1
        state = Planes(planes.sums, planes.plane_category, planes.n_planes)
        n_done, planes.step, loss = train_rows(block, order, draws, weights, rule, planes.step, stop_step, state)
        total += loss
        order, draws = order[n_done:], draws[n_done:]
        n_total = int(planes.n_planes.sum())
        born = np.arange(planes.next_id, planes.next_id + n_total - len(planes.plane_id))
        planes.plane_id = np.concatenate([planes.plane_id, born])
        planes.next_id += len(born)
        if planes.step == stop_step:
            planes.prune(settings.prune_c)
        elif len(order):
            planes.reserve(_room_for(planes, n_total, max_planes) + births)
    return float(total)


def weights_of_ranks(rank_weight: str | Sequence[float], length: int) -> np.ndarray:
    """Return ν of the ranks 1 … length, float32."""
    if isinstance(rank_weight, str):
        reciprocal = 1.0 / np.arange(1, length + 1)
        return (reciprocal if rank_weight == "reciprocal" else np.ones(length)).astype(np.float32)
    if len(rank_weight) < length:
        raise ValueError(
            f"rank_weight must have a number for each of the {length} ranks of the longest ranking, "
            f"got {len(rank_weight)}"
        )
    return np.asarray(rank_weight[:length], np.float32)


def _room_for(planes: PlaneSums, n_more: int, max_planes: int) -> int:
    """Return the number of planes after `n_more` births, or at most that of all categories at their limit."""
    n_total = int(planes.n_planes.sum())
    return min(n_total + n_more, max(n_total, len(planes.n_planes) * max_planes))


def check_rank_weight(rank_weight: str | Sequence[float]) -> None:
    """Refuse a rank weight that is neither a known name nor finite numbers from 0 up."""
    if isinstance(rank_weight, str):
        if rank_weight not in RANK_WEIGHTS:
            raise ValueError(f"rank_weight must be one of {', '.join(RANK_WEIGHTS)}, or numbers, got {rank_weight}")
        return
    table = np.asarray(rank_weight, np.float64)
    if table.ndim != 1 or not np.isfinite(table).all() or (table < 0).any():
        raise ValueError(f"rank_weight must be finite numbers from 0 up, one per rank, got {rank_weight}")

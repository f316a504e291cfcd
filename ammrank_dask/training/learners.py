"""What the tasks of a training need to know of the kind of model: its state on disk, a block of rows, a candidate."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np

from ammrank_dask.kernels.memberships import Members
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.plane_sums import PlaneSums, WeightMean, train_block
from ammrank_dask.model.plus_basis import PlusBasis, basis_arrays, basis_from
from ammrank_dask.model.plus_sums import PlusMean, PlusState, train_plus_block
from ammrank_dask.storage.store.scratch_arrays import load_array, load_arrays, load_facts, save_arrays
from ammrank_dask.training.prepared_rows import TRAIN, PlusPreparedRows, PreparedRows

LAST, AVERAGE = "last", "average"
"""The two models of a checkpoint: as it is after the round, and the mean over the last epochs."""

_PLANE_ARRAYS = ("sums", "plane_category", "n_planes", "plane_id")
_OWN_ARRAYS = ("squares", "own_sums", "own_squares")
Model = TypeVar("Model", AMMRank, AMMRankPlus)


@dataclass(frozen=True)
class _Learner(Generic[Model]):
    """A model to train, and the scratch folder of its training."""

    model: Model
    folder: Path

    merged: ClassVar[tuple[str, ...]] = ("sums",)
    """Arrays of a state that are merged: all others are the same in every shard."""


@dataclass(frozen=True)
class PlaneLearner(_Learner[AMMRank]):
    """AMM-rank."""

    def load(self, folder: Path) -> PlaneSums:
        """Read a state."""
        return _load_planes(folder)

    def load_mean(self, folder: Path) -> WeightMean:
        """Read the mean of the models so far."""
        n_models = load_facts(folder)["n_models"]
        if not n_models:
            return WeightMean()
        return WeightMean.from_arrays(load_array(folder, "mean_total"), load_array(folder, "mean_id"), n_models)

    def empty_mean(self) -> WeightMean:
        """Return the mean of no model."""
        return WeightMean()

    def save(self, folder: Path, state: PlaneSums, mean: WeightMean, *, loss: float = 0.0, rows: int = 0) -> None:
        """Write a checkpoint: the state, the mean of models so far, and what the rows before it lost."""
        arrays = {**_plane_arrays(state), **mean.to_arrays()}
        save_arrays(folder, arrays, {**_plane_facts(state), "n_models": mean.n_models, "loss": loss, "rows": rows})

    def open_rows(self, partition: int) -> PreparedRows:
        """Open the training rows of a partition."""
        return PreparedRows(self.folder / f"rows-{partition:05d}", TRAIN)

    train_block = staticmethod(train_block)

    def block_options(self, partition: int, *, births: bool) -> dict[str, Any]:
        """Return the keywords of `train_block` for rows of a partition."""
        del partition
        settings = self.model.step_settings()
        if not births:
            settings = replace(settings, max_planes=0, prune_every=None, clone_probability=0.0)
        return {"settings": settings}

    def after_first_pass(self, state: PlaneSums) -> PlaneSums:
        """Return what the rounds begin with after a pass over a sample: its planes as they are."""
        return state

    def planes(self, state: PlaneSums) -> PlaneSums:
        """Return the planes of a state."""
        return state

    def add_to_mean(self, mean: WeightMean, state: PlaneSums) -> None:
        """Count the model of a state into a mean."""
        mean.add(state.weights(self.model.regularization), state.plane_id)

    def fit(self, checkpoint: Path, kind: str, popularity: np.ndarray, *, moment: int = 0) -> AMMRank:
        """Return the fitted model of a checkpoint: that of its state, or the mean."""
        del moment  # it learns from one window only
        planes = self.load(checkpoint)
        weights = self.load_mean(checkpoint).weights() if kind == AVERAGE else planes.weights(self.model.regularization)
        model = AMMRank(**self.model.get_params())
        model.set_planes(weights, planes.plane_category[: weights.shape[1]], popularity, n_steps=planes.step - 1)
        return model

    def members(self, partition: int) -> None:
        """Return the memberships of the validation rows of a partition: there are none."""


@dataclass(frozen=True)
class PlusLearner(_Learner[AMMRankPlus]):
    """AMM-rank-plus: w = S / (λt + √H/η), where the mean over shards asks for an η that grows with their root."""

    shards: int
    first_partitions: tuple[int, ...] = (0,)
    """The first partition of each window of rows."""
    merged: ClassVar[tuple[str, ...]] = ("sums", *_OWN_ARRAYS)

    def __getstate__(self) -> dict[str, Any]:
        # A task reads the basis from its folder, which is cheaper than sending it.
        return {name: value for name, value in vars(self).items() if name != "basis"}

    @cached_property
    def basis(self) -> PlusBasis:
        """What was fixed before the first step."""
        return basis_from(*load_arrays(self.basis_folder))

    @property
    def basis_folder(self) -> Path:
        """Where the basis is kept."""
        return self.folder / "basis"

    def save_basis(self, basis: PlusBasis) -> None:
        """Keep the basis for all tasks."""
        save_arrays(self.basis_folder, *basis_arrays(basis))

    def load(self, folder: Path) -> PlusState:
        """Read a state."""
        return PlusState(_load_planes(folder), **{name: load_array(folder, name) for name in _OWN_ARRAYS})

    def load_mean(self, folder: Path) -> PlusMean:
        """Read the mean of the models so far."""
        n_models = load_facts(folder)["n_models"]
        if not n_models:
            return PlusMean()
        total, plane_id, own = (load_array(folder, f"mean_{name}") for name in ("total", "id", "own"))
        return PlusMean.from_arrays(total, plane_id, own, n_models)

    def empty_mean(self) -> PlusMean:
        """Return the mean of no model."""
        return PlusMean()

    def save(self, folder: Path, state: PlusState, mean: PlusMean, *, loss: float = 0.0, rows: int = 0) -> None:
        """Write a checkpoint: the state, the mean of models so far, and what the rows before it lost."""
        own = {name: getattr(state, name) for name in _OWN_ARRAYS}
        arrays = {**_plane_arrays(state.planes), **own, **mean.to_arrays()}
        facts = {**_plane_facts(state.planes), "n_models": mean.n_models, "loss": loss, "rows": rows}
        save_arrays(folder, arrays, facts)

    def open_rows(self, partition: int) -> PlusPreparedRows:
        """Open the training rows of a partition, with their memberships."""
        return PlusPreparedRows(self.rows_folder(partition))

    def rows_folder(self, partition: int) -> Path:
        """Where the training rows of a partition are, with their memberships."""
        return self.folder / f"plus-{partition:05d}"

    def members_folder(self, partition: int) -> Path:
        """Where the memberships of the validation rows of a partition are."""
        return self.folder / f"members-{partition:05d}"

    train_block = staticmethod(train_plus_block)

    def block_options(self, partition: int, *, births: bool) -> dict[str, Any]:
        """Return the keywords of `train_block` for rows of a partition."""
        # Planes are born one step after the other, in the plain loop or in the first pass, and there η is that of one.
        options = self.model.block_options(self.basis, 1 if births else self.shards)
        moment = bisect_right(self.first_partitions, partition)  # tonight is the first of the moments
        return {**options, "births": births, "moment": moment}

    def after_first_pass(self, state: PlusState) -> PlusState:
        """Return what the rounds begin with after a pass over a sample: its number of planes, nothing learned."""
        return state.restart()

    def planes(self, state: PlusState) -> PlaneSums:
        """Return the planes of a state."""
        return state.planes

    def add_to_mean(self, mean: PlusMean, state: PlusState) -> None:
        """Count the model of a state into a mean."""
        self.model.add_to_mean(mean, state, self.model.block_options(self.basis, self.shards))

    def fit(self, checkpoint: Path, kind: str, popularity: np.ndarray, *, moment: int = 0) -> AMMRankPlus:
        """Return the fitted model of a checkpoint as of a moment: that of its state, or the mean."""
        del popularity  # the basis has it
        model = AMMRankPlus(**self.model.get_params())
        mean = self.load_mean(checkpoint) if kind == AVERAGE else None
        model.set_state(self.basis, self.load(checkpoint), mean, shards=self.shards, moment=moment)
        return model

    def members(self, partition: int) -> Members:
        """Return the memberships of the validation rows of a partition, which were found once."""
        folder = self.members_folder(partition)
        return Members(*(load_array(folder, name) for name in Members._fields))


Learner: TypeAlias = PlaneLearner | PlusLearner


def _plane_arrays(planes: PlaneSums) -> dict[str, np.ndarray]:
    n_total = int(planes.n_planes.sum())
    # Without the room for more planes, which differs from shard to shard: sums that are merged have one shape.
    return {
        "sums": planes.sums[:, :n_total],
        "plane_category": planes.plane_category[:n_total],
        "n_planes": planes.n_planes,
        "plane_id": planes.plane_id,
    }


def _plane_facts(planes: PlaneSums) -> dict[str, Any]:
    return {"step": planes.step, "next_id": planes.next_id}


def _load_planes(folder: Path) -> PlaneSums:
    facts: Mapping[str, Any] = load_facts(folder)
    arrays = {name: load_array(folder, name) for name in _PLANE_ARRAYS}
    return PlaneSums(**arrays, step=facts["step"], next_id=facts["next_id"])

"""What the tasks of a training need to know of the kind of model: its state on disk, a block of rows, a candidate."""

from __future__ import annotations

from bisect import bisect_right
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

State = TypeVar("State", PlaneSums, PlusState)
Mean = TypeVar("Mean", WeightMean, PlusMean)


@dataclass(frozen=True)
class _Learner(Generic[State, Mean]):
    """A model to train, and the scratch folder of its training."""

    model: Any
    folder: Path

    state_type: ClassVar[Any]
    mean_type: ClassVar[Any]
    merged: ClassVar[tuple[str, ...]] = ("sums",)
    """Arrays of a state that are merged: all others are the same in every shard."""

    def load(self, folder: Path) -> State:
        """Read a state."""
        facts, names = load_facts(folder), self.state_type.array_names
        arrays = {name: load_array(folder, name) for name in names}
        state: State = self.state_type.from_arrays(arrays, step=facts["step"], next_id=facts["next_id"])
        return state

    def load_mean(self, folder: Path) -> Mean:
        """Read the mean of the models so far."""
        n_models = load_facts(folder)["n_models"]
        if not n_models:
            return self.empty_mean()
        arrays = (load_array(folder, name) for name in self.mean_type.array_names)
        mean: Mean = self.mean_type.from_arrays(*arrays, n_models=n_models)
        return mean

    def empty_mean(self) -> Mean:
        """Return the mean of no model."""
        mean: Mean = self.mean_type()
        return mean

    def save(self, folder: Path, state: State, mean: Mean, *, loss: float = 0.0, rows: int = 0) -> None:
        """Write a checkpoint: the state, the mean of models so far, and what the rows before it lost."""
        numbers = {"step": state.planes.step, "next_id": state.planes.next_id}
        facts = {**numbers, "n_models": mean.n_models, "loss": loss, "rows": rows}
        save_arrays(folder, {**state.to_arrays(), **mean.to_arrays()}, facts)


@dataclass(frozen=True)
class PlaneLearner(_Learner[PlaneSums, WeightMean]):
    """AMM-rank."""

    model: AMMRank

    state_type: ClassVar[Any] = PlaneSums
    mean_type: ClassVar[Any] = WeightMean

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
class PlusLearner(_Learner[PlusState, PlusMean]):
    """AMM-rank-plus: w = S / (λt + √H/η), where the mean over shards asks for an η that grows with their root."""

    model: AMMRankPlus
    shards: int
    first_partitions: tuple[int, ...] = (0,)
    """The first partition of each window of rows."""

    state_type: ClassVar[Any] = PlusState
    mean_type: ClassVar[Any] = PlusMean
    merged: ClassVar[tuple[str, ...]] = ("sums", "squares", "own_sums", "own_squares")

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

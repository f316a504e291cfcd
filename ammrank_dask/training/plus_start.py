"""Make what AMM-rank-plus begins with: rows with their memberships, and the state of an earlier model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.plane_sums import PlaneSums
from ammrank_dask.model.plus_basis import PlusBasis, prepare_plus_rows
from ammrank_dask.model.plus_sums import PlusState, Rates
from ammrank_dask.model.saved import RankModel
from ammrank_dask.monitor.performance import measure, measure_each
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.scratch_arrays import ArrayWriter
from ammrank_dask.training.learners import PlusLearner
from ammrank_dask.training.prepared_rows import TRAIN, VALIDATION, PreparedRows
from ammrank_dask.training.warm_start import choose_planes, match_names


def add_memberships(learner: PlusLearner, rows: Path, output: Path, validation: Path) -> None:
    """Write the training rows of one prepared partition in the form in which AMM-rank-plus learns from them.

    Of the validation rows, which are scored after every epoch, the memberships alone are written.
    """
    basis = learner.basis
    centers, own = basis.memberships.kernel_form(), basis.own.cells(basis.n_columns)
    for name, folder in ((VALIDATION, validation), (TRAIN, output)):
        reader = PreparedRows(rows, name)
        n_values = 0
        with ArrayWriter(folder) as writer:
            # A piece without rows, the first one, says of which types arrays are, and where the first row begins.
            for X, rankings in measure_each("read", itertools.chain([reader.read(0, 0)], reader.pieces())):
                with measure("kernel"):
                    prepared = prepare_plus_rows(X, centers, own)
                arrays = {**vars(prepared), "rankings": rankings}
                if name == VALIDATION:
                    arrays = prepared.members(X.shape[1])._asdict()
                is_first = not X.shape[0]
                arrays["indptr"] = arrays["indptr"][0 if is_first else 1 :] + n_values
                n_values = int(arrays["indptr"][-1])
                with measure("write"):
                    for array_name, array in arrays.items():
                        writer.append(array_name, array)
            writer.finish({})


def state_of_model(
    model: AMMRankPlus,
    basis: PlusBasis,
    columns: Sequence[str],
    categories: Sequence[str],
    *,
    regularization: float,
    rates: Rates,
    step: int,
) -> PlusState:
    """Return the state of training whose planes and own weights are those of a fitted model.

    H shrinks to what `step` steps would have made of it, and S = w · (λt + √H/η) with the λ, η and t to come: w stays.

    Parameters
    ----------
    model
        A fitted model; columns and categories that it does not name are taken in their order.
    basis
        What the new training has fixed, its clusterings started from those of the model.
    columns, categories
        The names of the columns of a stored row, and of the categories. What the model did not know starts at 0.
    regularization, rates, step
        λ and both η of the training to come, and the t of its first step.
    """
    new_column, old_column = match_names("columns", model.columns_, model.n_features_in_, columns)
    if basis.memberships.n_centers == model.basis_.memberships.n_centers:
        n_centers = basis.memberships.n_centers
        new_column = np.concatenate([new_column, len(columns) + np.arange(n_centers)])
        old_column = np.concatenate([old_column, model.n_features_in_ + np.arange(n_centers)])
    new_column, old_column = np.append(new_column, basis.n_columns), np.append(old_column, len(model.squares_) - 1)
    shrink = step / max(model.n_steps_, step)
    squares = np.zeros(basis.n_columns + 1)
    squares[new_column] = model.squares_[old_column] * shrink
    new_category, old_category = match_names("categories", model.categories_, model.n_categories_, categories)
    code_of = np.full(model.n_categories_, -1)
    code_of[old_category] = new_category
    category = code_of[model.plane_category_]
    kept = choose_planes(model.weights_, category, basis.limit)
    # A category without planes would have none in sharded rounds: it gets one, with nothing learned.
    bare = np.setdiff1d(np.arange(len(categories)), category[kept])
    plane_category = np.concatenate([category[kept], bare]).astype(np.int32)
    sums = np.zeros((basis.n_columns + 1, len(plane_category)), np.float32)
    scale = regularization * step + np.sqrt(squares) / rates.planes
    sums[np.ix_(new_column, np.arange(len(kept)))] = (
        model.weights_[np.ix_(old_column, kept)] * scale[new_column, None]
    ).astype(np.float32)
    n_planes = np.bincount(plane_category, minlength=len(categories)).astype(np.int64)
    ids = np.arange(len(plane_category))
    planes = PlaneSums(sums, plane_category, n_planes, step=step, plane_id=ids, next_id=len(ids))
    own_sums, own_squares = np.zeros(basis.own_shape), np.zeros(basis.own_shape)
    n_own = len(basis.own.weights)
    own_sums[:n_own], own_squares[:n_own] = _own_sums(model, basis, columns, rates.own, shrink)
    return PlusState(planes, squares, own_sums, own_squares)


def _own_sums(
    model: AMMRankPlus, basis: PlusBasis, columns: Sequence[str], rate: float, shrink: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of the own weights: of kinds that the model has too, γ is read off at the new knots.

    So is δ of the prior where the first kind is the same.
    """
    own, old = basis.own, model.basis_.own
    sums, squares = np.zeros(own.weights.shape), np.zeros(own.weights.shape)
    number_of = {name: number for number, name in enumerate(model.columns_ or columns)}
    kind_of = {int(column): kind for kind in range(old.n_kinds) for column in old.columns[kind] if column >= 0}
    same: dict[int, int] = {}
    for kind in range(own.n_kinds):
        named = [number_of.get(columns[column], -1) for column in own.columns[kind] if column >= 0]
        before = next((kind_of[number] for number in named if number in kind_of), None)
        if before is not None:
            same[kind] = before
    if own.has_lift and old.has_lift and same.get(0) == 0:
        same[own.n_kinds] = old.n_kinds
    for kind, before in same.items():
        n_new, n_old = own.n_knots[kind], old.n_knots[before]
        weights = np.zeros(own.weights.shape[1])
        weights[0], squares[kind, 0] = old.weights[before, 0], model.own_squares_[before, 0] * shrink
        if n_old:
            knots, old_knots = own.knots[kind, :n_new], old.knots[before, :n_old]
            weights[1 : 1 + n_new] = np.interp(knots, old_knots, old.weights[before, 1 : 1 + n_old])
            old_squares = model.own_squares_[before, 1 : 1 + n_old]
            squares[kind, 1 : 1 + n_new] = np.interp(knots, old_knots, old_squares) * shrink
        sums[kind] = weights * np.sqrt(squares[kind]) / rate
    return sums, squares


def check_start(model: RankModel, start: RankModel | None) -> None:
    """Refuse a model of another kind to start from."""
    if start is not None and start.method != model.method:
        raise BadInput(f"the model to start from must be of {model.method}, got {start.method}; train without it")

"""Compare methods by cross-validation: one task chooses, one fits and measures each method on each fold."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from distributed import Client

from ammrank_dask.evaluation.folds import (
    AnyBlocks,
    Rows,
    activity_bounds,
    prepare_partition,
    prepare_table,
    slice_codes,
    tuning_share,
)
from ammrank_dask.evaluation.measures import COUNTERS, Measures, measure_block
from ammrank_dask.features.columns import DEMOGRAPHIC_GROUPS
from ammrank_dask.features.store import Features, open_features
from ammrank_dask.methods.registry import (
    AMM_RANK,
    POPULARITY,
    MethodName,
    Setting,
    build_method,
    grid_of,
    load_method,
    method_label,
    widens_of,
)
from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.model.metrics import disagreement_errors
from ammrank_dask.model.own_term import name_own_kinds, own_columns_of_names, own_parameters
from ammrank_dask.model.search import WIDENINGS, continue_grid, count_pairs_by_row
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.scoring.policies import PolicyCounts
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.vocabulary import GROUPS

logger = logging.getLogger(__name__)

POLICIES = {"lr": ("category_top_n", "user_top_k"), AMM_RANK: ("user_top_k",)}
"""The policies whose exposure is counted, by method: the industry's rule, and the two that are fair to compare."""
_WARM_ROWS = 64

SIMPLE_METHODS = ("own-logit", "item-knn")
"""Methods that one pass over the rows of a window fits, with nothing to choose."""


@dataclass(frozen=True)
class FoldResult:
    """What a method did on one fold; `params` are those it was fitted with, after scaling to the rows of the fold."""

    measures: Measures
    params: dict[str, Any]
    fit_seconds: float
    score_seconds: float
    exposure: Mapping[str, PolicyCounts]


Tried: TypeAlias = list[tuple[dict[str, Any], float]]
"""Parameters and their error on held-out tuning users, NaN where there was nothing to choose."""


@dataclass(frozen=True)
class MethodResult:
    """What a method did on all folds, and how its parameters were chosen.

    `tried` has for each fold (or only the first, when all share the choice) the pairs of parameters and error, and
    `popularity` the error of ranking the same held-out users by popularity.
    """

    folds: list[FoldResult]
    params: dict[str, Any]
    tried: list[Tried]
    popularity: list[float]

    @functools.cached_property
    def measures(self) -> Measures:
        """The measures over the test users of all folds."""
        return functools.reduce(lambda one, other: one + other, (fold.measures for fold in self.folds))

    def exposure(self, policy: str) -> PolicyCounts:
        """Return what a policy assigned, all folds together."""
        return functools.reduce(lambda one, other: one + other, (fold.exposure[policy] for fold in self.folds))


def check_variant(features: Features, variant: str | None) -> None:
    """Refuse a variant that the store has no columns for."""
    if variant is None:
        return
    left_out = variant.removeprefix("no-")
    if left_out != variant and left_out not in (*GROUPS, *DEMOGRAPHIC_GROUPS):
        raise BadInput(f"variant {variant!r} leaves out a group that is none; groups are {', '.join(GROUPS)}")
    present = [name for name, _ in features.feature_columns.groups]
    if left_out == variant and variant not in present:
        raise BadInput(f"the store has no columns of group {variant!r}; it has {', '.join(present)}")
    if not features.n_columns(variant):
        raise BadInput(f"variant {variant!r} leaves no column of the store; choose another one")


def prepare_features(
    client: Client,
    features: Features,
    variant: str | None,
    folder: Path,
    *,
    n_folds: int = 5,
    progress: Progress = silent,
) -> Rows:
    """Decode the labelled rows of a variant below `folder`, one task per partition."""
    check_variant(features, variant)
    if not features.has_rankings:
        raise BadInput(f"features at {features.path} must have rankings to compare methods with, found none")
    if n_folds < 2:
        raise BadInput(f"folds must be at least 2, got {n_folds}")
    folders = tuple(str(folder / f"rows-{partition:05d}") for partition in range(features.n_partitions))
    share = tuning_share(features.n_users)
    tasks = [(str(features.path), i, variant, n_folds, share, place) for i, place in enumerate(folders)]
    counts = run_tasks(client, f"evaluate-prepare-{variant or 'all'}", prepare_partition, tasks, progress=progress)
    columns, first, group_columns = features.feature_columns, 0, []
    chosen = {int(column): place for place, column in enumerate(columns.chosen(variant))}
    for name, size in columns.groups:
        if name in DEMOGRAPHIC_GROUPS and first in chosen:
            group_columns.append(tuple(chosen[column] for column in range(first, first + size)))
        first += size
    names = features.columns_of(variant)
    own = own_columns_of_names(names, features.categories)
    rows = Rows(
        folders,
        n_folds,
        features.n_categories,
        tuple(group_columns),
        tuning_fold=True,
        standardize=False,
        activity_bounds=activity_bounds(counts),
        normalize=features.normalize,
        own_columns=None if own is None else tuple(map(tuple, own[0].tolist())),
        own_groups=None if own is None else tuple(own[1]),
        own_kinds=None if own is None else tuple(name_own_kinds(own[0], names)),
    )
    for what, blocks in (*((f"fold {f + 1}", rows.test(f)) for f in range(n_folds)), ("tuning", rows.tuning(0)[1])):
        if not blocks.n_rows:
            raise BadInput(
                f"every fold and the tuning must have a user with clicks, found none in {what}"
                f" ({features.n_users} users in all); take fewer folds or a date with more clicks"
            )
    return rows


def prepare_table_rows(
    X: np.ndarray, rankings: np.ndarray, tied: np.ndarray, n_categories: int, folder: Path, *, n_folds: int = 5
) -> Rows:
    """Write the rows of a table below `folder`, which the workers see."""
    place = folder / "rows-00000"
    prepare_table(X, rankings, tied if tied.size else np.zeros(rankings.shape, bool), n_folds, str(place))
    return Rows((str(place),), n_folds, n_categories, (), tuning_fold=False, standardize=True)


def compare_methods(
    client: Client,
    rows: Rows,
    methods: Sequence[MethodName],
    *,
    stage: str = "evaluate",
    seed: int = 0,
    given: Mapping[Any, dict[str, Any]] | None = None,
    count_exposure: bool = True,
    progress: Progress = silent,
) -> dict[str, MethodResult]:
    """Choose the parameters of every method, fit it on every fold, and measure it on the users left out.

    Parameters
    ----------
    methods
        Names, as `resolve_methods` returns them.
    stage
        The name under which tasks are shown.
    given
        Parameters of a method that are not chosen, by its name; {} for its defaults.
    count_exposure
        Also count what `POLICIES` would assign to the test users.

    Returns
    -------
    dict
        By the method's label, in the order given.
    """
    tried, popularity = _tune_methods(client, rows, methods, stage, seed, given or {}, progress)
    tasks = []
    for name in methods:
        for fold in range(rows.n_folds):
            params = _best(tried[name][0 if rows.tuning_fold else fold])
            tasks.append((name, params, rows, fold, seed, count_exposure))
    results = run_tasks(client, f"{stage}-fit", run_fold, tasks, progress=progress, in_flight_per_thread=1)
    found = {}
    for number, name in enumerate(methods):
        folds = results[number * rows.n_folds : (number + 1) * rows.n_folds]
        found[method_label(name)] = MethodResult(folds, _best(tried[name][0]), tried[name], popularity)
    return found


def _tune_methods(
    client: Client,
    rows: Rows,
    methods: Sequence[MethodName],
    stage: str,
    seed: int,
    given: Mapping[Any, dict[str, Any]],
    progress: Progress,
) -> tuple[dict[MethodName, list[Tried]], list[float]]:
    """Return for each method the parameters tried, and the error of popularity; a list for each fold, or for all.

    A grid whose edge is chosen goes on beyond it, `WIDENINGS` times at most.
    """
    choices = range(1 if rows.tuning_fold else rows.n_folds)
    [mean_pairs] = run_tasks(client, f"{stage}-pairs", measure_pairs, [(rows,)], progress=progress)
    grids = {
        name: [given[name]] if name in given else grid_of(name, mean_pairs, is_table=rows.standardize)
        for name in methods
    }
    tried: dict[MethodName, list[Tried]] = {
        name: [[] if len(grid) > 1 else [(grid[0], math.nan)] for _ in choices] for name, grid in grids.items()
    }
    waiting = [
        (name, params, fold) for name, grid in grids.items() if len(grid) > 1 for fold in choices for params in grid
    ]
    for number in range(1 + WIDENINGS):
        asked = waiting if number else [*waiting, *((POPULARITY, {}, fold) for fold in choices)]
        tasks = [(name, params, rows, fold, seed) for name, params, fold in asked]
        errors = run_tasks(client, f"{stage}-tune", try_parameters, tasks, progress=progress)
        for (name, params, fold), error in zip(waiting, errors[: len(waiting)], strict=True):
            tried[name][fold].append((params, error))
        if number == 0:
            popularity = errors[len(waiting) :]
        waiting = [
            (name, params, fold)
            for name in methods
            for fold in choices
            for params in settings_beyond(tried[name][fold], widens_of(name))
        ]
        if not waiting:
            break
    return tried, popularity


def settings_beyond(tried: Tried, widens: Sequence[str]) -> list[dict[str, Any]]:
    """Return the settings that continue a grid, none where nothing was measured."""
    if all(math.isnan(error) for _, error in tried):
        return []
    return continue_grid([params for params, _ in tried], _best(tried), widens)


def measure_pairs(rows: Rows) -> float:
    """Return the mean number of pairs that a tuning row of the first choice prefers, 0 without rows."""
    blocks = rows.tuning(0)[0]
    counts = [count_pairs_by_row(blocks[block][1], rows.n_categories) for block in range(len(blocks))]
    return float(np.concatenate(counts).mean()) if counts else 0.0


def _best(tried: Sequence[tuple[dict[str, Any], float]]) -> dict[str, Any]:
    """Return the parameters with the least error, the earlier of equal ones."""
    return min(tried, key=lambda item: math.inf if math.isnan(item[1]) else item[1])[0]


def try_parameters(name: MethodName, params: dict[str, Any], rows: Rows, fold: int, seed: int) -> float:
    """Fit a method on tuning rows and return its disagreement error on those held out; NaN where there are none."""
    rows = rows.for_method(name)
    tuning = rows.tuning(fold)
    if not all(blocks.n_rows for blocks in tuning):  # a table of hardly more rows than folds
        return math.nan
    train, held_out = rows.standardized(*tuning)
    setting = rows.setting(train.n_rows, seed)
    model = fit_on_blocks(name, params, setting, train)
    blocks = (held_out[block] for block in range(len(held_out)))
    errors = [disagreement_errors(score_block(model, X), rankings, tied) for X, rankings, tied in blocks]
    return float(np.nanmean(np.concatenate(errors)))


def run_fold(
    name: MethodName, params: dict[str, Any], rows: Rows, fold: int, seed: int, count_exposure: bool
) -> FoldResult:
    """Fit a method on the other folds, score the users of the fold, and measure."""
    rows = rows.for_method(name)
    train, test = rows.standardized(rows.training(fold), rows.test(fold))
    tuned_rows = rows.tuning(fold)[0].n_rows
    setting = rows.setting(train.n_rows, seed, tuned_rows)
    _warm_up(name, params, setting, train)
    started = time.perf_counter()
    model = fit_on_blocks(name, params, setting, train)
    fit_seconds = time.perf_counter() - started
    score_seconds = 0.0
    parts: list[Measures] = []
    policies = POLICIES.get(method_label(name), ()) if count_exposure else ()
    counters = {policy: COUNTERS[policy](test.n_rows, model.tie_order_) for policy in policies}
    for block in range(len(test)):
        X, rankings, tied = test[block]
        started = time.perf_counter()
        scores = score_block(model, X)
        score_seconds += time.perf_counter() - started
        users = test.users(block)
        parts.append(measure_block(scores, rankings, tied, users.hashes, slice_codes(users, rows)))
        for counter in counters.values():
            counter.add(scores)
    return FoldResult(
        functools.reduce(lambda one, other: one + other, parts),
        _fitted_params(model, params),
        fit_seconds,
        score_seconds,
        {policy: counter.counts() for policy, counter in counters.items()},
    )


def fit_on_blocks(name: MethodName, params: Mapping[str, Any], setting: Setting, blocks: Any) -> RankingEstimator:
    """Return a method with these parameters, fitted; one that cannot be fitted says why."""
    model = build_method(name, params, setting)
    try:
        model.fit_blocks(blocks)
    except ValueError as error:
        raise BadInput(f"{method_label(name)} cannot be fitted: {error}") from None
    return model


def _fitted_params(model: RankingEstimator, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen parameters as the method got them, and its epochs if it has any."""
    return {key: value for key, value in model.get_params().items() if key in params or key == "epochs"}


def score_block(model: RankingEstimator, X: Any) -> np.ndarray:
    """Return the scores (n, L) of rows."""
    try:
        return model.decision_function(X)
    except ValueError as error:
        raise BadInput(str(error)) from None


_warm: set[MethodName] = set()


def _warm_up(name: MethodName, params: Mapping[str, Any], setting: Setting, blocks: AnyBlocks) -> None:
    """Fit a few rows once a process, so that compiling is not measured."""
    if name not in _warm and len(blocks):
        X, rankings, tied = blocks[0]
        few = slice(0, _WARM_ROWS)
        small = replace(setting, n_rows=_WARM_ROWS, tuned_rows=None)
        quick = {"epochs": 1} if "epochs" in inspect.signature(load_method(name)).parameters else {}
        fit_on_blocks(name, {**params, **quick}, small, [(X[few], rankings[few], tied[few])]).decision_function(X[few])
        _warm.add(name)


class PartitionBlocks:
    """The rows of features as blocks, one for each partition, read whenever it is asked for."""

    def __init__(self, features: Features, variant: str | None, *, normalize: bool | None) -> None:
        self.features, self.variant, self.normalize = features, variant, normalize

    def __len__(self) -> int:
        return self.features.n_partitions

    def __getitem__(self, block: int) -> tuple[Any, np.ndarray]:
        part = self.features.partition(block, variant=self.variant, normalize=self.normalize)
        assert part.rankings is not None  # a window has labels
        return part.X, part.rankings


def fit_on_window(name: str, features_path: Path, variant: str | None, seed: int) -> RankingEstimator | None:
    """Return a method with its defaults, fitted on all rows of a window; None if it cannot be."""
    features = open_features(features_path)
    setting = Setting(
        features.n_users,
        features.n_categories,
        seed=seed,
        **own_parameters(features.columns_of(variant), features.categories),
    )
    method = build_method(name, {}, setting)
    try:
        method.fit_blocks(PartitionBlocks(features, variant, normalize=method.normalize_rows))
    except ValueError:
        return None
    method.variant_ = variant
    return method

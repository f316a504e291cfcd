"""Measure the price of fairness with the lists of the best method for the users of its first fold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.evaluation.compare import MethodResult, fit_on_blocks, score_block
from ammrank_dask.evaluation.folds import AnyBlocks, Rows
from ammrank_dask.evaluation.measures import TOP_K
from ammrank_dask.kernels.scoring import Filter
from ammrank_dask.kernels.topk import top_k_rows
from ammrank_dask.methods.registry import method_label
from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.report.fairness import MOST_CATEGORIES, n_users_to_sample, price_fairness
from ammrank_dask.report.thresholds import Thresholds
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.scoring.chances import fit_chances
from ammrank_dask.scoring.learn_chances import clicked_table
from ammrank_dask.scoring.score_partition import SampledUsers
from ammrank_dask.storage.errors import TooFewUsers


def price_comparison(
    client: Client,
    results: Mapping[str, MethodResult],
    rows: Rows,
    methods: Sequence[str],
    categories: Sequence[str],
    clicks: np.ndarray,
    folder: Path,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any] | None:
    """Return what `price_fairness` measures with the method of the least error, and which one that is.

    None where there is nothing to learn chances from, and for more than `MOST_CATEGORIES`.

    Parameters
    ----------
    results
        By the label of the method, as `compare_methods` returns them.
    methods
        The same methods, as they were given.
    folder
        A folder that all workers see.
    """
    if len(categories) > MOST_CATEGORIES:
        return None
    best = min(results, key=lambda label: results[label].measures.disagreement)
    name = next(method for method in methods if method_label(method) == best)
    task = (name, results[best].params, rows, seed)
    try:
        [(users, tie_order)] = run_tasks(client, "evaluate-fairness", sample_fold, [task], progress=progress)
    except TooFewUsers:
        return None
    measured = price_fairness(
        client, users, categories, clicks, tie_order, folder, starved_ratio=Thresholds().starved_ratio,
        progress=progress,
    )  # fmt: skip
    return {"method": best, **measured}


def sample_fold(name: str, params: Mapping[str, Any], rows: Rows, seed: int) -> tuple[SampledUsers, np.ndarray]:
    """Fit a method as for the first fold, and return users of that fold with their chances, and the order of ties.

    Chances are learnt from the tuning users, who are in no fold.
    """
    rows = rows.for_method(name)
    train, tuning = rows.training(0), rows.tuning(0)
    model = fit_on_blocks(name, params, rows.setting(train.n_rows, seed, tuning[0].n_rows), train)
    learnt = [_gather_rows(model, blocks, n_users_to_sample(rows.n_categories)) for blocks in tuning]
    chances = fit_chances(*(np.concatenate(column) for column in zip(*learnt, strict=True)))
    scores, _, activity = _gather_rows(model, rows.test(0), n_users_to_sample(rows.n_categories))
    codes = np.empty((len(scores), min(TOP_K, rows.n_categories)), np.int32)
    top_k_rows(scores, model.tie_order_, codes, np.empty(codes.shape, np.float32))
    everything = Filter(np.ones((0, rows.n_categories), bool), np.zeros(1, np.uint8), -np.inf, True)
    bare = (scores == -np.inf).all(axis=0)
    table = chances.of_users(np.ascontiguousarray(scores.T), activity, np.asarray(bare), everything)
    return SampledUsers(codes, scores, table), model.tie_order_


def _gather_rows(
    model: RankingEstimator, blocks: AnyBlocks, n_wanted: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores (n, L), clicked (n, L) and activity (n,) of the first `n_wanted` users of some blocks."""
    parts = list(_read_blocks(model, blocks, n_wanted))
    if not parts:
        raise TooFewUsers("chances need users who are in no fold, found none")
    scores, clicked, activity = (np.concatenate(column)[:n_wanted] for column in zip(*parts, strict=True))
    return scores, clicked, activity


def _read_blocks(
    model: RankingEstimator, blocks: AnyBlocks, n_wanted: int
) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    n_users = 0
    for block in range(len(blocks)):
        if n_users >= n_wanted:
            return
        X, rankings, _ = blocks[block]
        scores = score_block(model, X)
        n_users += len(scores)
        yield scores, clicked_table(rankings, scores.shape[1]), blocks.users(block).activity

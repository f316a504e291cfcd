"""Choose the parameters of a model on a sample of the stored users, on the cluster."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client

from ammrank_dask.features.store import Features, check_features
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.metrics import disagreement_errors
from ammrank_dask.model.own_term import own_parameters
from ammrank_dask.model.saved import make_model
from ammrank_dask.model.search import (
    CLICKERS_PER_PLANE,
    KAPPAS,
    PLANE_LIMITS,
    REGULARIZATIONS,
    Tuning,
    count_pairs_by_row,
    make_grid,
    scale_to_pairs,
    search,
)
from ammrank_dask.runtime.client import client_by_name, current_client
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.objects.folders import local_path, remove
from ammrank_dask.storage.store.scratch_arrays import load_facts
from ammrank_dask.training.prepared_rows import TRAIN, VALIDATION, PreparedRows, prepare_rows

logger = logging.getLogger(__name__)

SAMPLE_ROWS = 50_000
FEWEST_ROWS = 10_000
"""Rows of the sample even if a shard has fewer: a few hundred would choose by chance."""


@client_by_name
def tune(
    features: Features,
    *,
    client: Client | None = None,
    model: str = AMMRankPlus.method,
    kappas: Sequence[float] | None = None,
    clickers_per_plane: Sequence[int] = CLICKERS_PER_PLANE,
    regularizations: Sequence[float] | None = None,
    plane_limits: Sequence[int] = PLANE_LIMITS,
    shards: int = 8,
    block_rows: int = 1024,
    epochs: int = 5,
    rank_weight: str = "uniform",
    max_planes: int | None = None,
    n_clusterings: int | None = None,
    sample_rows: int = SAMPLE_ROWS,
    seed: int = 0,
    variant: str | None = None,
    scratch: str | Path | None = None,
    progress: Progress = silent,
) -> Tuning:
    """Return the parameters with the least error on validation users, and the table behind them.

    Of amm-rank-plus κ and the clickers a plane needs are chosen, of amm-rank λ and the limit of planes. The first
    values stay unless others are better by more than a standard error.

    Every setting is one task that trains a plain loop on a sample. The sample has the rows that one shard sees in an
    epoch, 10,000 at least (or all) and `sample_rows` at most: with λ it is the number of steps of a shard that decides
    how far planes move.

    Parameters
    ----------
    model
        `amm-rank-plus` or `amm-rank`.
    kappas, clickers_per_plane
        The values of amm-rank-plus to try, each with each. None: κ from .001 to .1, and on beyond the edge while that
        is better.
    regularizations, plane_limits
        Those of amm-rank. None: values of λ that follow the number of pairs a user has, and go on beyond the edge while
        that is better.
    shards, block_rows, epochs, rank_weight, max_planes, n_clusterings, seed, variant, scratch
        As in `train`, for which the values are chosen.
    sample_rows
        Most training rows of the sample.
    """
    client = current_client(client)
    check_features(features)
    _refuse_values_of_other(model, kappas, regularizations)
    if not features.has_rankings:
        raise BadInput(f"features at {features.path} must have rankings to tune on, found none")
    is_plus = model == AMMRankPlus.method
    names = ("kappa", "clickers_per_plane") if is_plus else ("regularization", "max_planes")
    others = clickers_per_plane if is_plus else plane_limits
    rest: dict[str, Any] = {"epochs": epochs, "seed": seed, "average": True, "n_categories": len(features.categories)}
    plus = {"max_planes": max_planes, "n_clusterings": n_clusterings}
    rest |= _plus_parameters(features, variant, plus) if is_plus else {"rank_weight": rank_weight}

    def grid(values: Sequence[float]) -> list[dict[str, Any]]:
        return make_grid(**dict(zip(names, (values, others), strict=True)))

    given = kappas if is_plus else regularizations
    for setting in grid(given or (KAPPAS if is_plus else REGULARIZATIONS)):
        make_model(model, **rest, **setting).check_parameters()
    base = local_path(scratch, "scratch") if scratch is not None else features.path.parent
    folder = base / f".tuning-{uuid.uuid4().hex}"
    try:
        sample = _prepare_sample(
            client, features, variant, normalize=False if is_plus else None, shards=shards, most_rows=sample_rows,
            folder=folder, progress=progress,
        )  # fmt: skip
        mean_pairs, popularity = _measure_popularity(client, sample, len(features.categories), progress)

        def measure(settings: Sequence[dict[str, Any]]) -> list[np.ndarray]:
            tasks = [(sample.folders, sample.n_rows, block_rows, model, {**each, **rest}) for each in settings]
            units = [sample.n_rows] * len(tasks)
            return run_tasks(client, "tune", measure_setting, tasks, progress=progress, units=units)

        settings = grid(given or (KAPPAS if is_plus else scale_to_pairs(REGULARIZATIONS, mean_pairs)))
        tuning = search(settings, measure, widens=[] if given else names[:1], popularity=popularity)
    finally:
        remove(folder)
    _tell(tuning, sample.n_rows)
    return tuning


def _refuse_values_of_other(
    model: str, kappas: Sequence[float] | None, regularizations: Sequence[float] | None
) -> None:
    is_plus = model == AMMRankPlus.method
    if is_plus and regularizations is not None:
        raise BadInput(f"regularizations must not be given for {model}, it has kappas; leave them out")
    if not is_plus and kappas is not None:
        raise BadInput(f"kappas must not be given for {model}; leave it out")


def _plus_parameters(features: Features, variant: str | None, options: dict[str, int | None]) -> dict[str, Any]:
    """Return the parameters of amm-rank-plus that are not tried: the options that are given, and the own columns."""
    given = {name: value for name, value in options.items() if value is not None}
    return given | own_parameters(features.columns_of(variant), features.categories)


def _tell(tuning: Tuning, n_rows: int) -> None:
    logger.info("tuned on %d rows: %s", n_rows, tuning.best)
    if not tuning.beats_popularity:
        logger.warning("no setting is better than popularity (%.4f) on the validation users", tuning.popularity)


@dataclass(frozen=True)
class _Sample:
    """The rows to tune on: prepared partitions, and the training rows to take of them."""

    folders: list[Path]
    n_rows: int


def _measure_popularity(client: Client, sample: _Sample, n_categories: int, progress: Progress) -> tuple[float, float]:
    """Return the mean pairs of a training row, and the mean error of popularity."""
    task = (sample.folders, sample.n_rows, n_categories)
    [(mean_pairs, errors)] = run_tasks(client, "tune-popularity", measure_popularity, [task], progress=progress)
    if not len(errors):
        raise TooFewUsers("no validation user prefers one category over another")
    return mean_pairs, float(errors.mean())


def _prepare_sample(
    client: Client,
    features: Features,
    variant: str | None,
    *,
    normalize: bool | None,
    shards: int,
    most_rows: int,
    folder: Path,
    progress: Progress,
) -> _Sample:
    """Decode as many partitions as have the rows of a shard and a validation user.

    Users are placed in partitions by a hash, so the first ones are as good a sample as any.
    """
    folders: list[Path] = []
    found = {TRAIN: 0, VALIDATION: 0}
    wanted = most_rows
    for partition in range(features.n_partitions):
        place = folder / f"rows-{partition:05d}"
        task = (str(features.path), partition, variant, 1024, place, normalize)
        run_tasks(client, "tune-prepare", prepare_rows, [task], progress=progress)
        folders.append(place)
        found = {name: count + load_facts(place)[name] for name, count in found.items()}
        rows_of_a_shard = found[TRAIN] / len(folders) * features.n_partitions / shards
        wanted = min(most_rows, max(FEWEST_ROWS, math.ceil(rows_of_a_shard)))
        if found[TRAIN] >= wanted and found[VALIDATION]:
            break
    if not found[TRAIN] or not found[VALIDATION]:
        raise TooFewUsers(
            f"features at {features.path} must have training and validation users with rankings to tune on,"
            f" found {found[TRAIN]} and {found[VALIDATION]}; ingest more days"
        )
    return _Sample(folders, min(found[TRAIN], wanted))


def measure_setting(
    sample: list[Path], n_rows: int, block_rows: int, kind: str, parameters: dict[str, Any]
) -> np.ndarray:
    """Train on the first rows of the sample and return the disagreement error of each of its validation users."""
    parts = [PreparedRows(folder, TRAIN).read() for folder in sample]
    X = sp.vstack([part[0] for part in parts], format="csr")[:n_rows]
    rankings = _stack_rankings([part[1] for part in parts])[:n_rows]
    blocks = [(X[i : i + block_rows], rankings[i : i + block_rows]) for i in range(0, X.shape[0], block_rows)]
    model = make_model(kind, **parameters).fit_blocks(blocks)
    return _measure_validation(sample, model.decision_function)


def measure_popularity(sample: list[Path], n_rows: int, n_categories: int) -> tuple[float, np.ndarray]:
    """Return the mean pairs of the first rows of the sample, and the errors of their popularity by validation user."""
    rankings = _stack_rankings([PreparedRows(folder, TRAIN).read()[1] for folder in sample])[:n_rows]
    popularity = np.bincount(rankings[rankings >= 0], minlength=n_categories).astype(np.float32)
    errors = _measure_validation(sample, lambda X: np.tile(popularity, (X.shape[0], 1)))
    return float(count_pairs_by_row(rankings, n_categories).mean()), errors


def _measure_validation(sample: list[Path], score: Callable[[Any], np.ndarray]) -> np.ndarray:
    """Return the error of each validation user who has a preferred pair."""
    parts = [PreparedRows(folder, VALIDATION).read() for folder in sample]
    errors = np.concatenate([disagreement_errors(score(X), rankings) for X, rankings in parts if len(rankings)])
    return errors[~np.isnan(errors)]


def _stack_rankings(parts: Sequence[np.ndarray]) -> np.ndarray:
    width = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=-1) for p in parts])

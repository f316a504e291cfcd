"""Choose the parameters of a model on a sample of the stored users, on the cluster."""

from __future__ import annotations

import logging
import math
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client

from ammrank_dask.features.store import Features
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.halving import (
    CLICKERS_PER_PLANE,
    KAPPAS,
    PLANE_LIMITS,
    REGULARIZATIONS,
    Tuning,
    count_pairs_by_row,
    halve,
    make_grid,
    prefer_default,
    scale_to_pairs,
)
from ammrank_dask.model.metrics import disagreement_errors
from ammrank_dask.model.saved import make_model
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.store.scratch_arrays import load_facts
from ammrank_dask.tasks import Progress, run_tasks, silent
from ammrank_dask.training.own_parameters import own_parameters
from ammrank_dask.training.prepared_rows import TRAIN, VALIDATION, PreparedRows, prepare_rows

logger = logging.getLogger(__name__)

SAMPLE_ROWS = 50_000
FEWEST_ROWS = 10_000
"""Rows of the sample even if a shard has fewer: with a few hundred the last rung would choose by chance."""
FEWEST_VALIDATION_USERS = 200
"""With fewer a night chooses nothing."""
QUICK_EPOCHS = 2


@dataclass(frozen=True)
class SampleSize:
    """How many rows to tune on: one of `parts` equal parts of the training rows, between `fewest` and `most`.

    Partitions are read until they have the rows and `validation` held-out users.
    """

    parts: int
    fewest: int = FEWEST_ROWS
    most: int = SAMPLE_ROWS
    validation: int = 1


QUICK = SampleSize(parts=10, fewest=1_000, most=20_000, validation=1_000)
"""What a night tunes on by itself: with two epochs about a fifth of the steps of its training, or seconds."""


def tune(
    client: Client,
    features: Features,
    *,
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
    quick: bool = False,
    seed: int = 0,
    variant: str | None = None,
    scratch: str | Path | None = None,
    progress: Progress = silent,
) -> Tuning:
    """Return the parameters with the least error on validation users, and the table behind them.

    Of amm-rank-plus κ and the clickers a plane needs are chosen, of amm-rank λ and the limit of planes.

    Every setting is one task that trains a plain loop on a sample; a third of the settings goes on to three times the
    rows, twice. The sample has the rows that one shard sees in an epoch, 10,000 at least (or all) and `sample_rows` at
    most: with λ it is the number of steps of a shard that decides how far planes move.

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
        Most training rows of the last rung.
    quick
        Of amm-rank-plus: two epochs over a tenth of the rows, and the default stays unless another setting is better
        by more than a standard error. That takes 200 validation users; with fewer TooFewUsers is raised.
    """
    if not features.has_rankings:
        raise BadInput(f"features at {features.path} must have rankings to tune on, found none")
    is_plus = model == AMMRankPlus.method
    if is_plus and regularizations is not None:
        raise BadInput(f"regularizations must not be given for {model}, it has kappas; leave them out")
    if not is_plus and (kappas is not None or quick):
        raise BadInput(f"{'quick' if quick else 'kappas'} must not be given for {model}; leave it out")
    rest: dict[str, Any] = {"epochs": min(epochs, QUICK_EPOCHS) if quick else epochs, "seed": seed, "average": True}
    rest["n_categories"] = len(features.categories)
    plus = {"max_planes": max_planes, "n_clusterings": n_clusterings}
    rest |= plus_parameters(features, variant, plus) if is_plus else {"rank_weight": rank_weight}

    def grid(values: Sequence[float]) -> list[dict[str, Any]]:
        if is_plus:
            return make_grid(kappa=list(values), clickers_per_plane=list(clickers_per_plane))
        return make_grid(regularization=list(values), max_planes=list(plane_limits))

    given = kappas if is_plus else regularizations
    for setting in grid(given or (KAPPAS if is_plus else REGULARIZATIONS)):
        make_model(model, **rest, **setting).check_parameters()
    base = Path(scratch) if scratch is not None else features.path.parent
    folder = base / f".tuning-{uuid.uuid4().hex}"
    size = QUICK if quick else SampleSize(shards, most=sample_rows)
    try:
        sample = prepare_sample(client, features, variant, False if is_plus else None, size, folder, progress)
        if quick and sample.n_users < FEWEST_VALIDATION_USERS:
            raise TooFewUsers(f"{sample.n_users:,} validation users are fewer than {FEWEST_VALIDATION_USERS}")
        tuning = _Trials(client, sample, block_rows, model, rest, progress).choose(grid, given, quick=quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return replace(tuning, users=sample.n_users)


def plus_parameters(features: Features, variant: str | None, options: dict[str, int | None]) -> dict[str, Any]:
    """Return the parameters of amm-rank-plus that are not tried: the options that are given, and the own columns.

    Validation users choose, so no training rows are held out.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return given | own_parameters(features, variant) | {"hold_out": False}


@dataclass(frozen=True)
class Sample:
    """The rows to tune on: prepared partitions, the training rows to take of them, and their validation users."""

    folders: list[Path]
    n_rows: int
    n_users: int


class _Trials:
    """Settings tried on a sample, one task each; the errors of every validation user are kept."""

    def __init__(
        self, client: Client, sample: Sample, block_rows: int, kind: str, rest: dict[str, Any], progress: Progress
    ) -> None:
        self.client, self.sample, self.block_rows = client, sample, block_rows
        self.kind, self.rest, self.progress = kind, rest, progress
        self.errors: dict[tuple[Any, ...], np.ndarray] = {}

    def choose(
        self, grid: Callable[[Sequence[float]], list[dict[str, Any]]], given: Sequence[float] | None, *, quick: bool
    ) -> Tuning:
        """Return the best of the settings that `grid` makes of the given values, or of the usual ones."""
        is_plus = self.kind == AMMRankPlus.method
        mean_pairs, popularity = self.measure_popularity()
        settings = grid(given or (KAPPAS if is_plus else scale_to_pairs(REGULARIZATIONS, mean_pairs)))
        widens = [] if given else ["kappa" if is_plus else "regularization"]
        default = _find_default(settings) if quick else None
        n_rows = self.sample.n_rows
        tuning = halve(settings, n_rows, self.measure, widens=widens, popularity=popularity, default=default)
        if default is not None:
            tuning = prefer_default(tuning, default, self.gains(tuning.best, default))
        logger.info("tuned on %d rows: %s", n_rows, tuning.best)
        if not tuning.beats_popularity:
            logger.warning("no setting is better than popularity (%.4f) on the validation users", popularity)
        return tuning

    def measure(self, settings: Sequence[dict[str, Any]], n_rows: int) -> list[float]:
        """Return the mean error of each setting after training on `n_rows` rows."""
        tasks = [
            (self.sample.folders, n_rows, self.block_rows, self.kind, {**setting, **self.rest}) for setting in settings
        ]
        units = [n_rows] * len(tasks)
        errors = run_tasks(self.client, f"tune-{n_rows}", measure_setting, tasks, progress=self.progress, units=units)
        self.errors |= {(*setting.items(),): found for setting, found in zip(settings, errors, strict=True)}
        return [float(found.mean()) for found in errors]

    def measure_popularity(self) -> tuple[float, float]:
        """Return the mean pairs of a training row, and the mean error of popularity."""
        task = (self.sample.folders, self.sample.n_rows, self.rest["n_categories"])
        [(mean_pairs, errors)] = run_tasks(
            self.client, "tune-popularity", measure_popularity, [task], progress=self.progress
        )
        if not len(errors):
            raise TooFewUsers("no validation user prefers one category over another")
        return mean_pairs, float(errors.mean())

    def gains(self, setting: dict[str, Any], default: dict[str, Any]) -> np.ndarray:
        """Return by validation user how much lower the last error of a setting is than that of the default."""
        return self.errors[(*default.items(),)] - self.errors[(*setting.items(),)]


def _find_default(settings: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the setting that AMMRankPlus has by itself, None when it is not among them."""
    usual = AMMRankPlus()
    return next((s for s in settings if all(getattr(usual, name) == value for name, value in s.items())), None)


def prepare_sample(
    client: Client,
    features: Features,
    variant: str | None,
    normalize: bool | None,
    size: SampleSize,
    folder: Path,
    progress: Progress,
) -> Sample:
    """Decode as many partitions as the sample needs.

    Users are placed in partitions by a hash, so the first ones are as good a sample as any.
    """
    folders: list[Path] = []
    found = {TRAIN: 0, VALIDATION: 0}
    wanted = size.most
    for partition in range(features.n_partitions):
        place = folder / f"rows-{partition:05d}"
        task = (str(features.path), partition, variant, 1024, place, normalize)
        run_tasks(client, "tune-prepare", prepare_rows, [task], progress=progress)
        folders.append(place)
        found = {name: count + load_facts(place)[name] for name, count in found.items()}
        rows_of_a_part = found[TRAIN] / len(folders) * features.n_partitions / size.parts
        wanted = min(size.most, max(size.fewest, math.ceil(rows_of_a_part)))
        if found[TRAIN] >= wanted and found[VALIDATION] >= size.validation:
            break
    if not found[TRAIN] or not found[VALIDATION]:
        raise TooFewUsers(
            f"features at {features.path} must have training and validation users with rankings to tune on,"
            f" found {found[TRAIN]} and {found[VALIDATION]}; ingest more days"
        )
    return Sample(folders, min(found[TRAIN], wanted), found[VALIDATION])


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

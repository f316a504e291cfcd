"""Learn chances from users who were held out of training, and measure them on others: one task per partition.

`measure_chances` is the chunk step of the measure, `+` combines, the properties and `reliability` finalize.

The cells of one user are not independent: who clicks more than their chances say does so in many categories. So users
are dealt to folds by a hash of their id, and standard errors come from how much the folds differ. Those of independent
cells are kept beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import Client

from ammrank_dask.features.store import Features, check_features, open_features
from ammrank_dask.kernels.scoring import Panels
from ammrank_dask.kernels.scoring_plus import PlusPanels
from ammrank_dask.model.plane_panels import panel_arrays, panels_from, top_categories
from ammrank_dask.runtime.client import client_by_name, current_client
from ammrank_dask.runtime.tasks import Call, Progress, run_side_by_side, run_together, silent
from ammrank_dask.scoring.chances import Chances, fit_chances
from ammrank_dask.scoring.score_partition import read_rows
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.objects.folders import local_path
from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.storage.store.scratch_arrays import load_arrays, save_arrays
from ammrank_dask.user_hash import SPLITS, hash_ids, split_of

N_FOLDS = 32
"""Folds of users by which standard errors are known to an eighth of themselves."""
FOLD_SALT = 0x6572726F72666C31

_FINE = 2000
_LOGIT = 16.0
_COUNT, _CHANCE, _CLICKED, _BRIER, _LOSS = range(5)
_COLUMNS = 5


@dataclass(frozen=True)
class ChanceSums:
    """Sums over cells of (1, chance, clicked, Brier score, log loss), by bins of the chance, category and activity.

    `bins` is (bins, 5), `categories` (L, 5), `classes` (A, 5). By fold of users there are the sums of (1, clicked −
    chance): `bin_folds` is (bins, folds, 2), `class_folds` (A, folds, 2).
    """

    bins: np.ndarray
    categories: np.ndarray
    classes: np.ndarray
    bin_folds: np.ndarray
    class_folds: np.ndarray

    def __add__(self, other: ChanceSums) -> ChanceSums:
        """Return the sums of both sets of users."""
        return ChanceSums(
            self.bins + other.bins,
            self.categories + other.categories,
            self.classes + other.classes,
            self.bin_folds + other.bin_folds,
            self.class_folds + other.class_folds,
        )

    @property
    def n_cells(self) -> int:
        """Cells (user, category) measured."""
        return int(self.bins[:, _COUNT].sum())

    @property
    def brier(self) -> float:
        """Mean of (chance − clicked)²."""
        return float(self.bins[:, _BRIER].sum() / self.bins[:, _COUNT].sum())

    @property
    def log_loss(self) -> float:
        """Mean of −ln of the chance of what happened."""
        return float(self.bins[:, _LOSS].sum() / self.bins[:, _COUNT].sum())

    @property
    def base_brier(self) -> float:
        """The Brier score of giving everybody the share of users who clicked the category."""
        rate = self._base_rate()
        return float((self.categories[:, _COUNT] * rate * (1 - rate)).sum() / self.categories[:, _COUNT].sum())

    @property
    def base_log_loss(self) -> float:
        """The log loss of giving everybody the share of users who clicked the category."""
        rate = self._base_rate()
        inside = (rate > 0) & (rate < 1)
        entropy = np.zeros(len(rate))
        entropy[inside] = -rate[inside] * np.log(rate[inside]) - (1 - rate[inside]) * np.log(1 - rate[inside])
        return float((self.categories[:, _COUNT] * entropy).sum() / self.categories[:, _COUNT].sum())

    def _base_rate(self) -> np.ndarray:
        return self.categories[:, _CLICKED] / np.maximum(1, self.categories[:, _COUNT])

    def reliability(self, n_bins: int = 20) -> np.ndarray:
        """Return (n_bins, 5) of about as many cells each, as `_rates` has them."""
        count = self.bins[:, _COUNT]
        middle = np.cumsum(count) - 0.5 * count
        of_bin = np.minimum((middle * n_bins / max(1.0, count.sum())).astype(np.int64), n_bins - 1)
        sums, folds = np.zeros((n_bins, _COLUMNS)), np.zeros((n_bins, N_FOLDS, 2))
        np.add.at(sums, of_bin, self.bins)
        np.add.at(folds, of_bin, self.bin_folds)
        return _rates(sums, folds)

    def by_activity(self) -> np.ndarray:
        """Return (A, 7) by class of activity: as `reliability`, then Brier score and log loss."""
        count = np.maximum(1, self.classes[:, [_COUNT]])
        rates = _rates(self.classes, self.class_folds)
        return np.concatenate([rates, self.classes[:, [_BRIER, _LOSS]] / count], axis=1)

    def to_json(self) -> dict[str, Any]:
        """Return the measures as manifests and reports have them: numbers, no user."""
        names = ("cells", "chance", "clicked", "error", "cell_error", "brier", "log_loss")

        def rows(table: np.ndarray) -> list[dict[str, float]]:
            return [dict(zip(names, row, strict=False)) for row in table.tolist()]

        return {
            "cells": self.n_cells,
            "brier": self.brier,
            "base_brier": self.base_brier,
            "log_loss": self.log_loss,
            "base_log_loss": self.base_log_loss,
            "unreliable_bins": self.n_unreliable(),
            "unreliable_bins_by_cells": self.n_unreliable(by_cells=True),
            "reliability": rows(self.reliability()),
            "activity": rows(self.by_activity()),
        }

    def n_unreliable(self, n_bins: int = 20, share: float = 0.1, errors: float = 3.0, *, by_cells: bool = False) -> int:
        """Return how many bins are off by more than `share` of the clicked share and `errors` standard errors.

        With `by_cells` the errors are those of independent cells, which are too small where users differ.
        """
        table = self.reliability(n_bins)
        allowed = np.maximum(share * table[:, 2], errors * table[:, 4 if by_cells else 3])
        return int((np.abs(table[:, 1] - table[:, 2]) > allowed).sum())


def _rates(sums: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return (n, 5): cells, mean chance, share clicked, its standard error by user and that of independent cells.

    Parameters
    ----------
    sums, folds
        (n, 5) sums over cells, and (n, folds, 2) those of every fold of users.
    """
    # The standard error of cells is that of the chance: a bin in which nothing was clicked would have none. For the
    # same reason that by user is never below it: folds without a click do not differ.
    count = np.maximum(1, sums[:, _COUNT])
    chance = sums[:, _CHANCE] / count
    of_cells = np.sqrt(chance * (1 - chance) / count)
    away = folds[:, :, 1] - folds[:, :, 0] * (folds[:, :, 1].sum(axis=1) / count)[:, None]
    n_folds = np.maximum(2, (folds[:, :, 0] > 0).sum(axis=1))
    by_user = np.sqrt(n_folds / (n_folds - 1) * (away**2).sum(axis=1)) / count
    return np.stack(
        [sums[:, _COUNT], chance, sums[:, _CLICKED] / count, np.maximum(by_user, of_cells), of_cells], axis=1
    )


def fold_of(ids: UserIds) -> np.ndarray:
    """Return the fold of every user (int64); it depends on the id alone."""
    return (hash_ids(ids, FOLD_SALT) % np.uint64(N_FOLDS)).astype(np.int64)


def measure_chances(
    chances: np.ndarray, clicked: np.ndarray, folds: np.ndarray, classes: np.ndarray, n_classes: int
) -> ChanceSums:
    """Return the sums of one block of users.

    Parameters
    ----------
    chances, clicked
        (n, L); cells with a chance below 0, which nobody could be shown, do not count.
    folds, classes
        (n,) the fold (`fold_of`) and the class of activity of each user.
    """
    n_categories = chances.shape[1]
    rows, codes = np.nonzero(chances >= 0)
    chance, happened = chances[rows, codes].astype(np.float64), clicked[rows, codes].astype(np.float64)
    inside = np.clip(chance, 1e-15, 1 - 1e-15)
    loss = -np.where(happened > 0, np.log(inside), np.log1p(-inside))
    values = (np.ones(len(chance)), chance, happened, (chance - happened) ** 2, loss)
    logit = np.log(inside) - np.log1p(-inside)
    fine = ((np.clip(logit, -_LOGIT, _LOGIT) + _LOGIT) * ((_FINE - 1) / (2 * _LOGIT))).astype(np.int64)

    def sums(key: np.ndarray, size: int) -> np.ndarray:
        return np.stack([np.bincount(key, value, size) for value in values], axis=1)

    fold, of_class = np.asarray(folds)[rows], np.asarray(classes)[rows]

    def sums_by_fold(key: np.ndarray, size: int) -> np.ndarray:
        both = (np.bincount(key * N_FOLDS + fold, value, N_FOLDS * size) for value in (values[0], happened - chance))
        return np.stack([value.reshape(size, N_FOLDS) for value in both], axis=2)

    return ChanceSums(
        sums(fine, _FINE),
        sums(codes, n_categories),
        sums(of_class, n_classes),
        sums_by_fold(fine, _FINE),
        sums_by_fold(of_class, n_classes),
    )


if TYPE_CHECKING:  # workers import this module and need no estimators
    from ammrank_dask.model.saved import RankModel

STAGE = "chances"
CHANCE_SALT = 0x6368616E63657331
MAX_CELLS = 4_000_000
"""Cells of a user and a category that are enough to learn from."""
_SPLIT_SHARE = 0.1

PanelSource = Panels | PlusPanels | Path
SplitRows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Scores (n, L), clicked (n, L), activity (n,), and the fold of each user by which errors are told (n,)."""


@dataclass(frozen=True)
class LearntChances:
    """Chances, how many validation users they were learnt from, and their errors for the gate users."""

    chances: Chances
    n_users: int
    sums: ChanceSums

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps beside the curves."""
        gate_users = self.sums.n_cells // max(1, self.chances.n_categories)
        return {"users": self.n_users, "gate_users": gate_users, **self.sums.to_json()}


@client_by_name
def learn_chances(
    model: RankModel,
    features: Features,
    *,
    client: Client | None = None,
    split: str = "validation",
    variant: str | None = None,
    min_users: int = 1,
    scratch: Path | None = None,
    progress: Progress = silent,
) -> Chances:
    """Return what the model's scores are worth to the users of a split.

    Parameters
    ----------
    model
        A fitted model that did not learn from these users.
    features
        Features with rankings, of all users of the split: also of those who clicked little or nothing.
    split
        `validation`, or another of the splits by hash that never change.
    min_users
        Refuse to learn from fewer.
    scratch
        A folder that all workers see, through which a large model reaches them; None to send it with every task.
    """
    from ammrank_dask.model.kept_model import check_model

    client = current_client(client)
    check_features(features)
    check_model(model)
    tasks = _tasks_of(features, model, split, variant, _sample_share(features), scratch)
    (scores, clicked, activity, _), _ = _gather(client, tasks, split, min_users, progress)
    return fit_chances(scores, clicked, activity)


def learn_and_measure(
    client: Client,
    model: RankModel,
    features: Features,
    *,
    min_users: int = 1,
    scratch: Path | None = None,
    beside: Sequence[Call] = (),
    progress: Progress = silent,
) -> tuple[LearntChances, list[Any]]:
    """Learn chances from the validation users and compare them with the clicks of the gate users.

    Parameters are those of `learn_chances`; `beside` are other calls, one for each partition, which are made in the
    tasks that read the validation users. Their results come second.
    """
    tasks = _tasks_of(features, model, "validation", None, _sample_share(features), scratch)
    (scores, clicked, activity, _), others = _gather(client, tasks, "validation", min_users, progress, beside)
    chances = fit_chances(scores, clicked, activity)
    sums = check_reliability(client, chances, model, features, scratch=scratch, progress=progress)
    if not sums.n_cells:
        raise TooFewUsers(
            f"there are {len(scores):,} validation users and no gate users to measure click probabilities on"
        )
    return LearntChances(chances, len(scores), sums), others


def history_share(alpha: float, days_then: int, days_now: int) -> float:
    """Return the sum of the weights of so many days, as they decay, as a share of that of more days.

    Features grow with the history that they have seen: chances learnt with a short one are too high for a longer one.

    Examples
    --------
    >>> [round(history_share(0.97, days, days + 30), 3) for days in (15, 30, 60, 180)]
    [0.492, 0.714, 0.897, 0.998]
    """
    return (1 - alpha**days_then) / (1 - alpha**days_now)


def count_partitions(n_users: int, n_partitions: int, n_categories: int) -> int:
    """Return how many partitions of `n_users` users have held-out users enough to learn from; users are dealt by hash.

    Examples
    --------
    >>> [count_partitions(users, users // 50_000, 50) for users in (400_000, 800_000, 3_200_000)]
    [8, 16, 16]
    """
    share = count_users(n_categories) / max(1, n_users)
    return max(1, min(n_partitions, math.ceil(n_partitions * share)))


def count_users(n_categories: int) -> float:
    """Return how many users there must be for those of one split to be enough to learn from."""
    return MAX_CELLS / (_SPLIT_SHARE * max(1, n_categories))


def _sample_share(features: Features) -> float:
    """Return the share of a split that is enough to learn from."""
    splits = features.manifest.splits
    split_share = _SPLIT_SHARE if splits is None else 1 / len(splits)
    return min(1.0, MAX_CELLS / max(1.0, split_share * features.n_users * len(features.categories)))


def _gather(
    client: Client,
    tasks: list[tuple[object, ...]],
    split: str,
    min_users: int,
    progress: Progress,
    beside: Sequence[Call] = (),
) -> tuple[SplitRows, list[Any]]:
    """Return scores, clicks, activity and folds of the users of a split, and what the calls beside them return.

    Of very many users they are those of a sample.
    """
    own: list[Call] = [(read_split, task) for task in tasks]
    parts, others = run_side_by_side(client, STAGE, [own, beside], progress=progress)
    scores, clicked, activity, folds = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if len(scores) < min_users:
        raise TooFewUsers(
            f"{len(scores):,} {split} users are fewer than the {min_users:,} that click probabilities need"
        )
    return (scores, clicked, activity, folds), others


def check_reliability(
    client: Client,
    chances: Chances,
    model: RankModel,
    features: Features,
    *,
    split: str = "gate",
    variant: str | None = None,
    scratch: Path | None = None,
    progress: Progress = silent,
) -> ChanceSums:
    """Return the errors of the chances for the users of a split; other parameters are those of `learn_chances`."""
    tasks = _tasks_of(features, model, split, variant, 1.0, scratch)
    calls: list[Call] = [(measure_split, (chances, *task)) for task in tasks]
    sums: list[ChanceSums] = run_together(client, STAGE, calls, progress=progress)
    return sum(sums[1:], start=sums[0])


def _tasks_of(
    features: Features, model: RankModel, split: str, variant: str | None, share: float, scratch: Path | None
) -> list[tuple[object, ...]]:
    if not features.has_rankings:
        raise BadInput(
            f"click probabilities are learned from clicks, and the features at {features.path} have no rankings"
        )
    if split not in SPLITS:
        raise BadInput(f"splits are {', '.join(SPLITS)}, got {split}")
    chosen = model.variant_ if variant is None else variant
    source = send_panels(model, scratch)
    return [(features.path, partition, source, chosen, split, share) for partition in range(features.n_partitions)]


def send_panels(model: RankModel, scratch: Path | None) -> PanelSource:
    """Return how tasks get the model: as the kernel reads it, or the folder of `scratch` where that is saved."""
    panels = model.panels()
    if scratch is None:
        return panels
    folder = local_path(scratch, "scratch") / f"chances-{model.digest()}"
    save_arrays(folder, *panel_arrays(panels))
    return folder


def receive_panels(source: PanelSource) -> Panels | PlusPanels:
    """Return what `send_panels` sent."""
    return panels_from(*load_arrays(source)) if isinstance(source, Path) else source


def read_split(
    path: str, partition: int, source: PanelSource, variant: str | None, split: str, share: float
) -> SplitRows:
    """Return scores, clicks, activity and folds of the users of a split, or of a share of them by hash."""
    features = open_features(path)
    panels = receive_panels(source)
    part = read_rows(features, partition, panels, variant)
    assert part.rankings is not None
    chosen = split_of(part.user_ids) == SPLITS.index(split)
    chosen &= hash_ids(part.user_ids, CHANCE_SALT) / 2.0**64 < share
    _, _, scores = top_categories(part.X[chosen], panels, 1, keep_all=True)
    return (
        np.ascontiguousarray(scores.T),
        clicked_table(part.rankings[chosen], len(features.categories)),
        part.n_event_features[chosen],
        fold_of(part.user_ids)[chosen],
    )


def clicked_table(rankings: np.ndarray | Sequence[Sequence[int]], n_categories: int) -> np.ndarray:
    """Return (n, L) bool of rankings (n, m) by code, -1 after the last.

    Examples
    --------
    >>> clicked_table([[2, 0], [1, -1]], 3).astype(int).tolist()
    [[1, 0, 1], [0, 1, 0]]
    """
    codes = np.asarray(rankings)
    table = np.zeros((len(codes), n_categories), bool)
    rows, _ = np.nonzero(codes >= 0)
    table[rows, codes[codes >= 0]] = True
    return table


def measure_split(
    chances: Chances,
    path: str,
    partition: int,
    source: PanelSource,
    variant: str | None,
    split: str,
    share: float,
) -> ChanceSums:
    """Measure the chances of the users of a split in one partition."""
    scores, clicked, activity, folds = read_split(path, partition, source, variant, split, share)
    n, n_categories = scores.shape
    codes = np.tile(np.arange(n_categories), n)
    table = chances.apply(scores.ravel(), codes, np.repeat(activity, n_categories)).reshape(n, n_categories)
    return measure_chances(table, clicked, folds, chances.classes_of(activity), len(chances.edges) + 1)

"""Learn chances from users who were held out of training, and measure them on others: one task a partition."""

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
from ammrank_dask.model.plane_panels import top_categories
from ammrank_dask.model.saved_panels import panel_arrays, panels_from
from ammrank_dask.runtime.client import client_by_name, current_client
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.scoring.chance_sums import ChanceSums, fold_of, measure_chances
from ammrank_dask.scoring.chances import Chances, fit_chances
from ammrank_dask.scoring.score_partition import read_rows
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.objects.folders import local_path
from ammrank_dask.storage.store.scratch_arrays import load_arrays, save_arrays
from ammrank_dask.user_hash import SPLITS, hash_ids, split_of

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
    """Chances, how many validation users they were learnt from, and how they came true for the gate users."""

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
    scores, clicked, activity, _ = _gather(client, tasks, split, min_users, progress)
    return fit_chances(scores, clicked, activity)


def learn_and_measure(
    client: Client,
    model: RankModel,
    features: Features,
    *,
    min_users: int = 1,
    scratch: Path | None = None,
    progress: Progress = silent,
) -> LearntChances:
    """Learn chances from the validation users and hold them against what the gate users clicked.

    Parameters are those of `learn_chances`.
    """
    tasks = _tasks_of(features, model, "validation", None, _sample_share(features), scratch)
    scores, clicked, activity, _ = _gather(client, tasks, "validation", min_users, progress)
    chances = fit_chances(scores, clicked, activity)
    sums = check_reliability(client, chances, model, features, scratch=scratch, progress=progress)
    if not sums.n_cells:
        raise TooFewUsers(f"there are {len(scores):,} validation users and no gate users to measure chances on")
    return LearntChances(chances, len(scores), sums)


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
    client: Client, tasks: list[tuple[object, ...]], split: str, min_users: int, progress: Progress
) -> SplitRows:
    """Return scores, clicks, activity and folds of the users of a split, of a sample when there are very many."""
    parts: list[SplitRows] = run_tasks(client, STAGE, read_split, tasks, progress=progress)
    scores, clicked, activity, folds = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if len(scores) < min_users:
        raise TooFewUsers(f"{len(scores):,} {split} users are fewer than the {min_users:,} that chances need")
    return scores, clicked, activity, folds


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
    """Return how the chances came true for the users of a split; other parameters are those of `learn_chances`."""
    tasks = [(chances, *task) for task in _tasks_of(features, model, split, variant, 1.0, scratch)]
    sums: list[ChanceSums] = run_tasks(client, STAGE, measure_split, tasks, progress=progress)
    return sum(sums[1:], start=sums[0])


def _tasks_of(
    features: Features, model: RankModel, split: str, variant: str | None, share: float, scratch: Path | None
) -> list[tuple[object, ...]]:
    if not features.has_rankings:
        raise BadInput(f"chances are learnt from clicks, and the features at {features.path} have no rankings")
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

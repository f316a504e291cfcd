"""Recalibrate chances, learned with the features of the lag date, for the features of tonight.

Features grow with the history that they have seen: one label window later users have more values in their rows and
higher scores, and click no more than before. So the classes of activity move with the users, who keep their places
among each other, and one step of all levels makes the users expect as many clicks as they just made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ammrank_dask.features.store import Features, open_features
from ammrank_dask.model.plane_panels import top_categories
from ammrank_dask.runtime.tasks import Call
from ammrank_dask.scoring.chances import Chances, log_activity
from ammrank_dask.scoring.learn_chances import (
    CHANCE_SALT,
    MAX_CELLS,
    PanelSource,
    receive_panels,
    send_panels,
)
from ammrank_dask.scoring.score_partition import read_rows
from ammrank_dask.user_hash import hash_ids

if TYPE_CHECKING:  # workers import this module and need no estimators
    from ammrank_dask.model.saved import RankModel

_BINS, _FAR = 4000, 20.0


@dataclass(frozen=True)
class UsersAgain:
    """Users at the lag date and tonight: how active they were and are (n,), their scores tonight (n, L).

    `n_clicked` (n,) is how many categories they clicked in between.
    """

    activity_then: np.ndarray
    activity_now: np.ndarray
    scores_now: np.ndarray
    n_clicked: np.ndarray

    def __add__(self, other: UsersAgain) -> UsersAgain:
        """Return the users of both."""
        return UsersAgain(*(np.concatenate([getattr(one, name) for one in (self, other)]) for name in vars(self)))


@dataclass(frozen=True)
class RecalibratedChances:
    """Chances for tonight, and what they rest on: the clicks that users made and those expected of them as learnt."""

    chances: Chances
    n_users: int
    expected: float
    clicked: int

    def to_json(self) -> dict[str, float]:
        """Return what a manifest keeps."""
        return {"users": self.n_users, "expected": self.expected, "clicked": self.clicked}


def users_again(model: RankModel, then: Features, now: Features, *, scratch: Path | None = None) -> list[Call]:
    """Return a call for each partition whose results `recalibrate` takes.

    Parameters
    ----------
    then
        Features at the lag date with rankings, of users who never train: also of those who clicked nothing.
    now
        Features of tonight, of as many partitions.
    scratch
        As in `learn_chances`.
    """
    share = min(1.0, MAX_CELLS / max(1, then.n_users * then.n_categories))
    source = send_panels(model, scratch)
    return [
        (read_again, (str(then.path), str(now.path), partition, source, model.variant_, share))
        for partition in range(then.n_partitions)
    ]


def read_again(
    path_then: str, path_now: str, partition: int, source: PanelSource, variant: str | None, share: float
) -> UsersAgain:
    """Return the users of one partition who have features at both dates, or a share of them by hash."""
    panels = receive_panels(source)
    before = open_features(path_then).partition(partition)
    assert before.rankings is not None
    if not len(before.user_ids):  # of a partition that is not sampled
        nobody = np.empty(0, np.int64)
        return UsersAgain(nobody, nobody, np.empty((0, len(panels.tie_order)), np.float32), nobody)
    part = read_rows(open_features(path_now), partition, panels, variant)
    row = part.user_ids.positions_of(before.user_ids)
    chosen = np.flatnonzero((row >= 0) & (hash_ids(before.user_ids, CHANCE_SALT) / 2.0**64 < share))
    _, _, scores = top_categories(part.X[row[chosen]], panels, 1, keep_all=True)
    return UsersAgain(
        before.n_event_features[chosen],
        part.n_event_features[row[chosen]],
        np.ascontiguousarray(scores.T),
        (before.rankings[chosen] >= 0).sum(axis=1),
    )


def recalibrate(chances: Chances, parts: Sequence[UsersAgain]) -> RecalibratedChances:
    """Return chances for tonight from those learnt at the lag date, and the users of all partitions.

    Classes of activity move with the users, and chances expect the clicks that users made.
    """
    users = sum(parts[1:], start=parts[0])
    clicked = int(users.n_clicked.sum())
    expected = float(chance_table(chances, users).sum())
    if not clicked:
        return RecalibratedChances(chances, len(users.n_clicked), expected, clicked)
    moved = move_classes(chances, users.activity_then, users.activity_now)
    step = level_step(chance_table(moved, users), clicked)
    curves = moved.curves._replace(level=moved.curves.level + step)
    return RecalibratedChances(replace(moved, curves=curves), len(users.n_clicked), expected, clicked)


def chance_table(chances: Chances, users: UsersAgain) -> np.ndarray:
    """Return the chances (n, L) of users tonight."""
    n, n_categories = users.scores_now.shape
    codes, activity = np.tile(np.arange(n_categories), n), np.repeat(users.activity_now, n_categories)
    return chances.apply(users.scores_now.ravel(), codes, activity).reshape(n, n_categories)


def move_classes(chances: Chances, activity_then: np.ndarray, activity_now: np.ndarray) -> Chances:
    """Return chances with the edges and centers of activity where as many users are below them as were before."""
    centers = chances.centers
    if centers is not None:
        moved = move_activity(np.asarray(centers), log_activity(activity_then), log_activity(activity_now))
        centers = np.maximum.accumulate(moved)
    edges = move_activity(chances.edges, np.asarray(activity_then, float), np.asarray(activity_now, float))
    return replace(chances, edges=np.maximum.accumulate(edges), centers=centers)


def move_activity(values: np.ndarray, activity_then: np.ndarray, activity_now: np.ndarray) -> np.ndarray:
    """Return for each value what has the same share of users below it now as it had then; equal ones count half.

    Examples
    --------
    >>> move_activity(np.array([0.0, 5.0, 7.5]), np.array([0.0, 0, 5, 10]), np.array([0.0, 0, 12, 20]))
    array([ 0., 12., 16.])
    """
    ordered = np.sort(activity_then)
    middle = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2
    places = np.arange(len(ordered))
    scale = (len(activity_now) - 1) / max(1, len(ordered) - 1)
    return np.interp(np.clip(middle, 0, places[-1]) * scale, np.arange(len(activity_now)), np.sort(activity_now))


def level_step(table: np.ndarray, wanted: float) -> float:
    """Return what to add to the logits of all chances so that they sum to `wanted`.

    Examples
    --------
    >>> round(level_step(np.array([[0.5, 0.2], [0.2, 0.1]]), 0.6), 3)
    -0.711
    """
    inside = np.clip(table.ravel(), 1e-15, 1 - 1e-15)
    logit = np.log(inside) - np.log1p(-inside)
    # Like ones count together, at their mean: millions of cells are then as fast as some thousand.
    fine = ((np.clip(logit, -_FAR, _FAR) + _FAR) * ((_BINS - 1) / (2 * _FAR))).astype(np.int64)
    count = np.bincount(fine, minlength=_BINS)
    mean = np.bincount(fine, logit, _BINS)[count > 0] / count[count > 0]
    count = count[count > 0]
    low, high = -_FAR, _FAR
    for _ in range(60):
        middle = 0.5 * (low + high)
        if (count / (1 + np.exp(-(mean + middle)))).sum() < wanted:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)

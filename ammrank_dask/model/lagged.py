"""Popularity as it was known at a moment: the prior of training rows of many windows, and tonight's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ammrank_dask.storage.vocabulary import PERIODS

_LEVEL, _CHANGE = 0.1, 0.3
N_TRENDS = len(PERIODS) + 2
"""Learned columns of a category beside its prior: its level, how the longer periods differ from the last window, and,
where a log is old enough, how the same days of the year before differ from it, and their level."""


@dataclass(frozen=True)
class LaggedPopularity:
    """What moments knew of the popularity of categories: tonight first, then each window of training rows.

    `clicks` (L,) are tonight's users who clicked each category in the last window. `scores` is
    (moments, 1 + N_TRENDS, L) float32: the prior a, then the columns whose weights are learned.
    """

    clicks: np.ndarray
    scores: np.ndarray

    def prior(self, moment: int, weights: np.ndarray) -> np.ndarray:
        """Return the score of each category before its row is looked at, float32, with learned weights."""
        trends = weights[:N_TRENDS].astype(np.float64) @ self.scores[moment, 1:].astype(np.float64)
        return (self.scores[moment, 0] + trends).astype(np.float32)


def lagged_popularity(counts: Sequence[np.ndarray]) -> LaggedPopularity:
    """Return what moments knew, from the counts of each, tonight first.

    Parameters
    ----------
    counts
        By moment (len(PERIODS), 1 + L): the users who clicked in a period, and those who clicked each category. Two
        more rows, if there are any, are sums over days: of the last window, and of the one a year before, or 0.

    Examples
    --------
    >>> known = lagged_popularity([np.array([[8, 4, 2], [20, 10, 5], [20, 10, 5]])])
    >>> known.clicks.tolist(), (known.scores[0, 0] < 0).tolist()
    ([4, 2], [False, True])
    """
    return LaggedPopularity(counts[0][0, 1:].astype(np.int64), np.stack([_scores(each) for each in counts]))


def _scores(counts: np.ndarray) -> np.ndarray:
    periods, by_days = np.split(counts.astype(np.float64), [len(PERIODS)])
    n, clicked = periods[:, :1], periods[:, 1:]
    odds = np.log((clicked + 0.5) / (n - clicked + 0.5))
    year = np.zeros((2, counts.shape[1] - 1))
    if by_days[1:].any():  # a user counts once a day, in both: their quotient is what matters, and no one's share
        now, ago = np.log(by_days[:, 1:] + 0.5)
        year = np.stack([ago - now, ago])
    columns = np.concatenate([_LEVEL * odds[:1], _CHANGE * (odds[1:] - odds[0]), _CHANGE * year])
    columns -= columns.mean(axis=1, keepdims=True)
    return np.concatenate([odds[:1], columns]).astype(np.float32)

"""Measure chances against what was clicked: sums that add over blocks of users, and what follows from them.

`measure_chances` is the chunk step, `+` combines, the properties and `reliability` finalize.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_FINE = 2000
_LOGIT = 16.0
_COUNT, _CHANCE, _CLICKED, _BRIER, _LOSS = range(5)
_COLUMNS = 5


@dataclass(frozen=True)
class ChanceSums:
    """Sums over cells of (1, chance, clicked, Brier score, log loss), by bins of the chance, category and activity.

    `bins` is (bins, 5), `categories` (L, 5), `classes` (A, 5).
    """

    bins: np.ndarray
    categories: np.ndarray
    classes: np.ndarray

    def __add__(self, other: ChanceSums) -> ChanceSums:
        """Return the sums of both sets of users."""
        return ChanceSums(
            self.bins + other.bins, self.categories + other.categories, self.classes + other.classes
        )  # fmt: skip

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
        """Return (n_bins, 4) of about as many cells each: cells, mean chance, share clicked, its standard error."""
        count = self.bins[:, _COUNT]
        middle = np.cumsum(count) - 0.5 * count
        of_bin = np.minimum((middle * n_bins / max(1.0, count.sum())).astype(np.int64), n_bins - 1)
        return _rates(
            np.stack([np.bincount(of_bin, self.bins[:, column], n_bins) for column in range(_COLUMNS)], axis=1)
        )

    def by_activity(self) -> np.ndarray:
        """Return (A, 6) by class of activity: as `reliability`, then Brier score and log loss."""
        count = np.maximum(1, self.classes[:, [_COUNT]])
        return np.concatenate([_rates(self.classes), self.classes[:, [_BRIER, _LOSS]] / count], axis=1)

    def to_json(self) -> dict[str, Any]:
        """Return the measures as manifests and reports have them: numbers, no user."""
        names = ("cells", "chance", "clicked", "error", "brier", "log_loss")

        def rows(table: np.ndarray) -> list[dict[str, float]]:
            return [dict(zip(names, row, strict=False)) for row in table.tolist()]

        return {
            "cells": self.n_cells,
            "brier": self.brier,
            "base_brier": self.base_brier,
            "log_loss": self.log_loss,
            "base_log_loss": self.base_log_loss,
            "unreliable_bins": self.n_unreliable(),
            "reliability": rows(self.reliability()),
            "activity": rows(self.by_activity()),
        }

    def n_unreliable(self, n_bins: int = 20, share: float = 0.1, errors: float = 3.0) -> int:
        """Return how many bins are off by more than `share` of the clicked share and `errors` standard errors."""
        table = self.reliability(n_bins)
        allowed = np.maximum(share * table[:, 2], errors * table[:, 3])
        return int((np.abs(table[:, 1] - table[:, 2]) > allowed).sum())


def _rates(sums: np.ndarray) -> np.ndarray:
    # The standard error is that of the chance: a bin in which nothing was clicked would have none.
    count = np.maximum(1, sums[:, _COUNT])
    chance = sums[:, _CHANCE] / count
    return np.stack(
        [sums[:, _COUNT], chance, sums[:, _CLICKED] / count, np.sqrt(chance * (1 - chance) / count)], axis=1
    )  # fmt: skip


def measure_chances(chances: np.ndarray, clicked: np.ndarray, classes: np.ndarray, n_classes: int) -> ChanceSums:
    """Return the sums of one block of users.

    Parameters
    ----------
    chances, clicked
        (n, L); cells with a chance below 0, which nobody could be shown, do not count.
    classes
        (n,) the class of activity of each user.
    """
    n_categories = chances.shape[1]
    rows, codes = np.nonzero(chances >= 0)
    chance, happened = chances[rows, codes].astype(np.float64), clicked[rows, codes].astype(np.float64)
    inside = np.clip(chance, 1e-15, 1 - 1e-15)
    loss = -np.where(happened > 0, np.log(inside), np.log1p(-inside))
    values = (np.ones(len(chance)), chance, happened, (chance - happened) ** 2, loss)
    logit = np.log(inside) - np.log1p(-inside)
    fine = ((np.clip(logit, -_LOGIT, _LOGIT) + _LOGIT) * ((_FINE - 1) / (2 * _LOGIT))).astype(np.int64)

    def sums(group: np.ndarray, size: int) -> np.ndarray:
        return np.stack([np.bincount(group, value, size) for value in values], axis=1)

    return ChanceSums(sums(fine, _FINE), sums(codes, n_categories), sums(np.asarray(classes)[rows], n_classes))

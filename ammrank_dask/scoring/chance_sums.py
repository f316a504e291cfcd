"""Measure chances against what was clicked: sums that add over blocks of users, and what follows from them.

`measure_chances` is the chunk step, `+` combines, the properties and `reliability` finalize.

The cells of one user are not independent: who clicks more than their chances say does so in many categories. So users
are dealt to folds by a hash of their id, and standard errors come from how much the folds differ. Those of independent
cells are kept beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.user_hash import hash_ids

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

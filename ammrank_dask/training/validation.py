"""The validation users of a training, and the errors of its models on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.runtime.tasks import run_each, run_one, run_together, silent
from ammrank_dask.runtime.thread_tasks import batches
from ammrank_dask.training.learners import LAST, Learner
from ammrank_dask.training.round_tasks import train_shard, validate_popularity, validate_rows

USERS_OF_TASK = 10_000
"""Validation users of a task, or of one partition: there are few of them in each, and they are measured every epoch."""
WHOLE_TASK = 8.0
"""Weight of work that shares a task with no other: as much as a task is ever given."""

Piece = tuple[Callable[..., Any], Sequence[Any]]
"""A function, and what it takes."""


@dataclass(frozen=True)
class Validation:
    """The validation users: `rows` are the folders of the prepared partitions, `n_users` how many they have."""

    client: Client
    learner: Learner
    rows: Sequence[Path]
    n_users: Sequence[int]

    def pieces(self, checkpoint: Path) -> list[Piece]:
        """Return tasks that measure the last model of a checkpoint, each on some partitions, for `mean_of_pieces`."""
        tasks = self._tasks(checkpoint, LAST)
        return [(run_each, (validate_rows, batch)) for batch in batches(tasks, self._weights)]

    def errors(self, checkpoint: Path, kinds: Sequence[str]) -> list[float | None]:
        """Return the disagreement errors of models of a checkpoint, None without a user."""
        tasks = [task for kind in kinds for task in self._tasks(checkpoint, kind)]
        parts = self._run("train-validate", [(validate_rows, task) for task in tasks], self._weights * len(kinds))
        n = len(self.rows)
        return [_mean_error(parts[i * n : (i + 1) * n]) for i in range(len(kinds))]

    def popularity_error(self, clicks: np.ndarray, first: Sequence[Sequence[Any]]) -> float | None:
        """Return the same error of ranking everybody by the clicks of the training users, and make the first pass.

        That is one task at most, beside which the other workers would have nothing to do.
        """
        name = "train-first" if first else "train-popularity"
        pieces: list[Piece] = [(train_shard, task) for task in first]
        pieces += [(validate_popularity, (rows, clicks)) for rows in self.rows]
        parts = self._run(name, pieces, [WHOLE_TASK] * len(first) + self._weights)
        return _mean_error(parts[len(first) :])

    @property
    def _weights(self) -> list[float]:
        return [n_users / USERS_OF_TASK for n_users in self.n_users]

    def _tasks(self, checkpoint: Path, kind: str) -> list[tuple[Any, ...]]:
        """Return what `validate_rows` takes of every partition."""
        return [(checkpoint, kind, rows, partition, self.learner) for partition, rows in enumerate(self.rows)]

    def _run(self, name: str, pieces: Sequence[Piece], weights: Sequence[float]) -> list[Any]:
        return run_together(self.client, name, run_one, pieces, weights=weights, progress=silent)


def mean_of_pieces(results: Sequence[Sequence[tuple[float, int]]]) -> float | None:
    """Return the error that all `pieces` of a validation came to."""
    return _mean_error([part for of_piece in results for part in of_piece])


def _mean_error(parts: Sequence[tuple[float, int]]) -> float | None:
    """Return the mean of the errors that partitions sum up, None without a user."""
    n_users = sum(count for _, count in parts)
    return sum(total for total, _ in parts) / n_users if n_users else None

"""The validation users of a training, and the errors of its models on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.runtime.tasks import Call, run_together
from ammrank_dask.runtime.thread_tasks import batches
from ammrank_dask.training.learners import LAST, Learner
from ammrank_dask.training.round_tasks import train_shard, validate_popularity, validate_rows

USERS_OF_TASK = 10_000
"""Validation users of a task, or of one partition: there are few of them in each, and they are measured every epoch."""
WHOLE_TASK = 8.0
"""Weight of work that shares a task with no other: as much as a task is ever given."""


@dataclass(frozen=True)
class Validation:
    """The validation users: `rows` are the folders of the prepared partitions, `n_users` how many they have."""

    client: Client
    learner: Learner
    rows: Sequence[Path]
    n_users: Sequence[int]

    def calls(self, checkpoint: Path) -> list[list[Call]]:
        """Return what measures the last model of a checkpoint, by task, for `mean_of_parts`."""
        return batches(self._calls(checkpoint, LAST), self._weights)

    def errors(self, checkpoint: Path, kinds: Sequence[str]) -> list[float | None]:
        """Return the disagreement errors of models of a checkpoint, None without a user."""
        calls = [call for kind in kinds for call in self._calls(checkpoint, kind)]
        parts = run_together(self.client, "train-validate", calls, weights=self._weights * len(kinds))
        n = len(self.rows)
        return [mean_of_parts(parts[i * n : (i + 1) * n]) for i in range(len(kinds))]

    def popularity_error(self, clicks: np.ndarray, first: Sequence[Sequence[Any]]) -> float | None:
        """Return the same error of ranking everybody by the clicks of the training users, and make the first pass.

        That is one task at most, beside which the other workers would have nothing to do.
        """
        name = "train-first" if first else "train-popularity"
        calls: list[Call] = [(train_shard, task) for task in first]
        calls += [(validate_popularity, (rows, clicks)) for rows in self.rows]
        parts = run_together(self.client, name, calls, weights=[WHOLE_TASK] * len(first) + self._weights)
        return mean_of_parts(parts[len(first) :])

    @property
    def _weights(self) -> list[float]:
        return [n_users / USERS_OF_TASK for n_users in self.n_users]

    def _calls(self, checkpoint: Path, kind: str) -> list[Call]:
        return [
            (validate_rows, (checkpoint, kind, rows, partition, self.learner))
            for partition, rows in enumerate(self.rows)
        ]


def mean_of_parts(parts: Sequence[tuple[float, int]]) -> float | None:
    """Return the mean of the errors that partitions sum up, None without a user."""
    n_users = sum(count for _, count in parts)
    return sum(total for total, _ in parts) / n_users if n_users else None

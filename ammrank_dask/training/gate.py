"""Compare a new model with the one in use on the gate users, whom no training and no choice of a model has seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client

from ammrank_dask.features.store import Features, open_features
from ammrank_dask.model.ranking_sums import measure_rows
from ammrank_dask.model.saved import RankModel, load_model
from ammrank_dask.model.simple import popularity_model
from ammrank_dask.runtime.tasks import Call, Progress, run_together, silent
from ammrank_dask.user_hash import SPLITS, split_of

GATE = SPLITS.index("gate")
CHAMPION, CHALLENGER, POPULARITY = "champion", "challenger", "popularity"


@dataclass(frozen=True)
class GateResult:
    """How well a model ranks some users: means over `n_users` of ε_dis and of precision at K.

    Partitions add up as means, not as sums: verdicts keep every bit of what earlier versions wrote.
    """

    n_users: int
    error: float
    precision: float

    def __add__(self, other: GateResult) -> GateResult:
        """Return the measures of both sets of users together."""
        n_users = self.n_users + other.n_users
        if not n_users:
            return self
        share = other.n_users / n_users
        return GateResult(
            n_users,
            self.error + (other.error - self.error) * share,
            self.precision + (other.precision - self.precision) * share,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the measures as a manifest keeps them."""
        return {"users": self.n_users, "disagreement_error": self.error, "precision": self.precision}


NOBODY = GateResult(0, 0.0, 0.0)


def measure_model(model: RankModel, X: sp.csr_matrix, rankings: np.ndarray, k: int) -> GateResult:
    """Return how well a model ranks the rows that have a ranking."""
    ranked = np.flatnonzero((rankings >= 0).any(axis=1)) if rankings.shape[1] else np.empty(0, np.int64)
    # With one category there is no pair that could be in the wrong order.
    if not len(ranked) or model.n_categories_ < 2:
        return NOBODY
    rankings = rankings[ranked]
    sums = measure_rows(model.decision_function(X[ranked]), rankings, np.zeros(rankings.shape, bool), k).sum()
    return GateResult(sums.n_rows, float(sums.disagreement), float(sums.precision[k - 1]))


def measure_partition(features_path: Path, partition: int, models: Mapping[str, Path], k: int) -> dict[str, GateResult]:
    """Return how well each model, and popularity, ranks the gate users of one partition.

    Popularity is that of the training rows of the challenger.
    """
    features = open_features(features_path)
    results = {}
    for name, path in models.items():
        model = load_model(path)
        part = features.partition(partition, variant=model.variant_, normalize=model.normalize_rows)
        rows = np.flatnonzero(split_of(part.user_ids) == GATE)
        rankings = np.empty((0, 0), np.int32) if part.rankings is None else part.rankings[rows]
        results[name] = measure_model(model, part.X[rows], rankings, k)
        if name == CHALLENGER:
            results[POPULARITY] = measure_model(popularity_model(model, 0), part.X[rows], rankings, k)
    return results


def compare_models(
    client: Client,
    features: Features,
    models: Mapping[str, Path],
    *,
    k: int,
    progress: Progress = silent,
) -> dict[str, GateResult]:
    """Return how well each model, and popularity, ranks the gate users of labelled features.

    Parameters
    ----------
    features
        Features with rankings.
    models
        By name, folders of saved models that rank the categories of the features; one is the `CHALLENGER`.
    k
        The categories a user qualifies for.
    """
    calls: list[Call] = [
        (measure_partition, (features.path, partition, dict(models), k)) for partition in range(features.n_partitions)
    ]
    parts = run_together(client, "gate", calls, progress=progress)
    return {name: sum((part[name] for part in parts), start=NOBODY) for name in (*models, POPULARITY)}


def is_no_worse(challenger: GateResult, champion: GateResult, tolerance: float) -> bool:
    """Return whether the challenger's error is no higher and its precision no lower, up to a share of the champion's.

    Examples
    --------
    >>> is_no_worse(GateResult(100, 0.102, 0.30), GateResult(100, 0.100, 0.30), tolerance=0.02)
    True
    >>> is_no_worse(GateResult(100, 0.090, 0.29), GateResult(100, 0.100, 0.30), tolerance=0.02)
    False
    """
    slack = 1e-12  # a difference on the bound itself, up to rounding
    return bool(
        challenger.error <= champion.error * (1 + tolerance) + slack
        and challenger.precision >= champion.precision * (1 - tolerance) - slack
    )

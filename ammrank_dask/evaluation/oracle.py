"""Measure the truth of a simulated lake as if it were a method: nobody can rank its users better."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.evaluation.folds import RESAMPLING_SALT, deal_users
from ammrank_dask.evaluation.measures import Measures, measure_block
from ammrank_dask.features.store import Features, open_features
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.storage.lake.write import read_truth, simulation_path, truth_path
from ammrank_dask.storage.objects.atomic import read_json
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.user_hash import hash_ids

TRUTHS = ("expected_clicks", "propensity")
"""What the simulator knows: the expected click intensity of the label window, and the taste for each category."""


def read_simulation(truth: Path) -> dict[str, Any] | None:
    """Return the parameters of the simulation whose truth is in a folder, None when there is none."""
    path = simulation_path(truth)
    return dict(read_json(path)) if path.is_file() else None


def measure_floor(
    client: Client,
    features: Features,
    truth: Path,
    *,
    n_folds: int,
    tuning_share: float,
    progress: Progress = silent,
) -> dict[str, Measures]:
    """Return the measures of the true propensities on the users of all folds, one task per partition."""
    tasks = [(str(features.path), i, str(truth), n_folds, tuning_share) for i in range(features.n_partitions)]
    parts = run_tasks(client, "evaluate-floor", measure_truth, tasks, progress=progress)
    found: dict[str, Measures] = {}
    for part in parts:
        for name, measures in part.items():
            found[name] = found[name] + measures if name in found else measures
    return found


def measure_truth(
    features_path: str, partition: int, truth: str, n_folds: int, tuning_share: float
) -> dict[str, Measures]:
    """Measure the truth about the users of one partition; empty when none of them is in a fold."""
    features = open_features(features_path)
    part = features.partition(partition)
    simulation = read_simulation(Path(truth))
    if part.rankings is None or simulation is None:
        return {}
    in_fold = (part.rankings >= 0).any(axis=1) & (deal_users(part.user_ids, n_folds, tuning_share) < 2 * n_folds)
    rows = np.flatnonzero(in_fold)
    scores = {name: np.full((len(rows), features.n_categories), -np.inf, np.float32) for name in TRUTHS}
    ids = part.user_ids.take(rows)
    columns = [simulation["categories"].index(category) for category in features.categories]
    is_text = simulation["parameters"]["user_ids"] == "string"
    for block in range(simulation["blocks"]):
        arrays = read_truth(truth_path(Path(truth), block))
        numbers = arrays["user_id"]
        names = [f"u{number:016x}" for number in numbers.tolist()] if is_text else numbers
        place = ids.positions_of(ids_from_values(names))
        known = place >= 0
        for name in TRUTHS:
            scores[name][place[known]] = arrays[name][known][:, columns]
    if not len(rows):
        return {}
    rankings = part.rankings[rows]
    hashes = hash_ids(ids, RESAMPLING_SALT)
    tied = np.zeros(rankings.shape, bool)
    return {name: measure_block(found, rankings, tied, hashes, {}) for name, found in scores.items()}

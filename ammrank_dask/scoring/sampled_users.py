"""Score a sample of users for all categories: enough to see what a policy would assign."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from distributed import Client

from ammrank_dask.features.store import Features, open_features
from ammrank_dask.kernels.scoring import Panels
from ammrank_dask.kernels.scoring_plus import PlusPanels
from ammrank_dask.model.plane_panels import top_categories
from ammrank_dask.model.saved import RankModel
from ammrank_dask.runtime.tasks import Call, Progress, run_together, silent
from ammrank_dask.scoring.chance_table import SAMPLE_SALT
from ammrank_dask.scoring.chances import Chances
from ammrank_dask.scoring.score_partition import bare_categories, read_rows
from ammrank_dask.scoring.settings import ScoreSettings
from ammrank_dask.user_hash import hash_ids


@dataclass(frozen=True)
class SampledUsers:
    """Users as policies see them: their best `codes` (n, k), all `scores` and all `chances` (n, L).

    A chance is below 0 where a user may not hold the category.
    """

    codes: np.ndarray
    scores: np.ndarray
    chances: np.ndarray


def sample_users(
    client: Client,
    model: RankModel,
    features: Features,
    chances: Chances,
    settings: ScoreSettings,
    n_wanted: int,
    *,
    progress: Progress = silent,
) -> SampledUsers:
    """Score about `n_wanted` users from as few partitions as have them: each partition is a sample drawn by hash."""
    rows = [part.rows for part in features.run.parts]
    n_parts = 1 + int(np.searchsorted(np.cumsum(rows)[:-1], n_wanted))
    share = min(1.0, n_wanted / max(1, sum(rows[:n_parts])))
    panels = model.panels()
    calls: list[Call] = [
        (sample_partition, (features.path, number, panels, model.variant_, chances, settings, share))
        for number in range(n_parts)
    ]
    parts = run_together(client, "sample", calls, progress=progress)
    columns = ((part.codes, part.scores, part.chances) for part in parts)
    return SampledUsers(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def sample_partition(
    path: Path,
    partition: int,
    panels: Panels | PlusPanels,
    variant: str | None,
    chances: Chances,
    settings: ScoreSettings,
    share: float,
) -> SampledUsers:
    """Score a share of the users of one partition, chosen by hash."""
    features = open_features(path)
    part = read_rows(features, partition, panels, variant)
    rows = np.flatnonzero(hash_ids(part.user_ids, SAMPLE_SALT) / 2.0**64 < share)
    eligibility = settings.eligibility(features.categories)
    limits = eligibility.filter(len(features.categories), part.age_bucket[rows], part.gender[rows])
    codes, _, everything = top_categories(part.X[rows], panels, settings.k, limits, keep_all=True)
    table = chances.of_users(everything, part.n_event_features[rows], bare_categories(panels), limits)
    return SampledUsers(codes, np.ascontiguousarray(everything.T), table)

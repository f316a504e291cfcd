"""Train AMM-rank on stored features, partition after partition."""

import logging
import time
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client

from ammrank_dask.features import Features, open_features
from ammrank_dask.hashing import SPLITS, split_of
from ammrank_dask.ranker import AMMRank
from ammrank_dask.tasks import Progress, run_tasks, silent
from storage.errors import BadInput
from storage.files import digest_of

logger = logging.getLogger(__name__)


def train(
    client: Client,
    features: Features,
    *,
    epochs: int = 5,
    regularization: float = 1e-3,
    max_planes: int = 5,
    rank_weight: str = "uniform",
    seed: int = 0,
    variant: str | None = None,
    progress: Progress = silent,
) -> AMMRank:
    """Train on the labelled training users of all partitions and return the fitted model.

    Users whom `split_of` puts into validation or gate are left out.

    Parameters
    ----------
    client
        The cluster to train on; one task reads one partition at a time.
    features
        Features with rankings.
    epochs, regularization, max_planes, rank_weight, seed
        As in `AMMRank`.
    variant
        The columns to learn from; all when None.
    progress
        Called after every finished task.
    """
    if not features.has_rankings:
        raise BadInput(f"features at {features.path} must have rankings to train on, found none")
    parameters = {
        "epochs": epochs,
        "regularization": regularization,
        "max_planes": max_planes,
        "rank_weight": rank_weight,
        "seed": seed,
        "n_categories": len(features.categories),
    }
    started = time.perf_counter()
    (model,) = run_tasks(
        client, "train", train_partitions, [(str(features.path), variant, parameters)], progress=progress
    )
    logger.info("trained %d steps, %d planes, %.1f s", model.n_steps_, model.n_planes_.sum(),
                time.perf_counter() - started)  # fmt: skip
    return model


def train_partitions(features_path: str, variant: str | None, parameters: dict[str, Any]) -> AMMRank:
    """Fit an AMMRank with the given parameters to the training users of all partitions."""
    features = open_features(features_path)
    model = AMMRank(**parameters).fit_blocks(TrainingBlocks(features, variant))
    model.categories_ = list(features.categories)
    model.columns_digest_ = digest_columns(features, variant)
    model.variant_ = variant
    return model


class TrainingBlocks:
    """The labelled training users of each partition as (X, rankings), read when asked for."""

    def __init__(self, features: Features, variant: str | None) -> None:
        self.features = features
        self.variant = variant

    def __len__(self) -> int:
        return self.features.n_partitions

    def __getitem__(self, partition: int, /) -> tuple[sp.csr_matrix, np.ndarray]:
        part = self.features.partition(partition, variant=self.variant)
        if part.rankings is None:
            raise BadInput(f"partition {partition} of {self.features.path} must have rankings, found none")
        # Validation and gate users are never learned from, on any night.
        chosen = (part.rankings >= 0).any(axis=1) & (split_of(part.user_ids) == SPLITS.index("train"))
        return part.X[chosen], part.rankings[chosen]


def digest_columns(features: Features, variant: str | None) -> str:
    """Return a hash of the names of a variant's columns, in their order."""
    return digest_of(features.columns_of(variant))

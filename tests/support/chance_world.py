"""A small world with chances: a model of six categories, users who click the more the higher they score."""

import numpy as np

from ammrank_dask.features.write import write_features
from ammrank_dask.model.amm_rank import AMMRank

CATEGORIES = ["autos", "games/..=", "<script>", "ünï", "news", "no planes"]
CLICKS = np.array([500, 300, 900, 10, 300, 20])


def make_model():
    """Return a model of five categories with planes and one without."""
    rng = np.random.default_rng(0)
    model = AMMRank()
    weights = rng.standard_normal((5, 7)).astype(np.float32)
    model.set_planes(weights, np.array([0, 0, 1, 2, 2, 3, 4], np.int32), CLICKS, n_steps=1)
    return model


def make_features(folder, model, n_users):
    """Users who click by chance, the more so the higher the score; many click nothing."""
    rng = np.random.default_rng(1)
    X = rng.random((n_users, 4)) * (rng.random((n_users, 4)) < 0.7)
    scores = model.decision_function(X)
    logit = np.where(np.isfinite(scores), scores, 0) + 0.3 * (X > 0).sum(axis=1)[:, None] - 2
    clicked = rng.random(scores.shape) < 1 / (1 + np.exp(-logit))
    rankings = np.full((n_users, 6), -1)
    for row, own in zip(rankings, clicked, strict=True):
        row[: own.sum()] = np.flatnonzero(own)
    columns = ["pv:a", "pv:b", "pv:c", "pv:d"]
    return write_features(
        folder, X, np.arange(n_users) * 3, columns, rankings=rankings, categories=CATEGORIES, n_partitions=4
    )  # fmt: skip


def all_chances(model, features, chances):
    """Return the ids and chances (n, L) of all users, one after the other."""
    ids, rows = [], []
    for partition in range(features.n_partitions):
        part = features.partition(partition)
        scores = model.decision_function(part.X)
        for user, own, activity in zip(
            part.user_ids.to_arrow().to_pylist(), scores, part.n_event_features, strict=True
        ):
            ids.append(user)
            rows.append(chances.apply(own, np.arange(6), np.full(6, activity)))
    return ids, np.array(rows, np.float32)

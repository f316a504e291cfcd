"""A small world with chances: a model of six categories, users who click the more the higher they score."""

import numpy as np

from ammrank_dask.features.write import write_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.scoring.balanced import assign_partition
from ammrank_dask.scoring.chance_table import ChanceTable, sample_share
from ammrank_dask.storage.store.ids import ids_from_values

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


def save_table(folder, chances, n_partitions=1, share=None, ids=None, groups=None):
    """Keep the chances of users, dealt to partitions one after the other."""
    n, n_categories = chances.shape
    table = ChanceTable(folder, n_partitions)
    ids = np.arange(n) * 7 if ids is None else ids
    share = sample_share(n, n_categories) if share is None else share
    for partition in range(n_partitions):
        own = slice(partition, None, n_partitions)
        table.save(
            partition, chances[own], ids_from_values(ids[own]), share, group=None if groups is None else groups[own]
        )  # fmt: skip
    return table


def collect(plan, table, chances, k):
    """What users hold in the order of `chances`: (n, k) codes, their number by category, and the sum of chances."""
    codes = np.empty((len(chances), k), np.int32)
    for partition in range(table.n_partitions):
        codes[partition :: table.n_partitions] = assign_partition(plan, partition, np.arange(chances.shape[1]))
    for row, own in zip(codes, chances, strict=True):
        kept = row[row >= 0]
        assert len(set(kept.tolist())) == len(kept) == min(k, (own >= 0).sum())
        assert (own[kept] >= 0).all()
    users, _ = np.nonzero(codes >= 0)
    return codes, np.bincount(codes[codes >= 0], minlength=chances.shape[1]), float(
        chances[users, codes[codes >= 0]].sum(dtype=np.float64)
    )  # fmt: skip

"""Training: an epoch against one dense scoring by BLAS, many shards against one, two workers against one."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from ammrank_dask.features import Features, open_features
from ammrank_dask.hashing import SPLITS, split_of
from ammrank_dask.metrics import disagreement_error
from ammrank_dask.planes import PlaneSums, train_block
from ammrank_dask.ranker import AMMRank
from ammrank_dask.training import train
from benchmarks.measure import best_of, cluster, describe_machine, make_lake, site_of
from workflows.features import training_features
from workflows.ingest import ingest

FIRST = dt.date(2026, 1, 5)


def compare_epoch(
    work: Path, *, users: int = 20_000, values: int = 89, columns: int = 511, categories: int = 50
) -> None:
    """Print what an epoch costs beside one sgemm of the same rows, made dense, with the same planes; one core."""
    del work
    rng = np.random.default_rng(0)
    indices = np.sort(np.argsort(rng.random((users, columns)), axis=1)[:, :values], axis=1)
    data = rng.random(indices.size).astype(np.float32)
    X = sp.csr_matrix((data, indices.ravel().astype(np.int32), np.arange(users + 1) * values), shape=(users, columns))
    taste = (X @ sp.random(columns, categories, 0.1, random_state=rng, dtype=np.float32)).toarray()
    n_clicked = rng.integers(3, 8, users)
    rankings = np.argsort(-(taste + 0.3 * rng.standard_normal(taste.shape)), axis=1)[:, :7].astype(np.int32)
    rankings[np.arange(7) >= n_clicked[:, None]] = -1
    options = {"regularization": 1e-3, "bias": 1.0, "max_planes": 5}
    planes = PlaneSums.empty(columns, categories)
    order = np.arange(users)
    train_block(planes, X, rankings, order, **options)
    n_planes = int(planes.n_planes.sum())
    dense, weights = X.toarray(), planes.weights(1e-3)[:columns].copy()
    with threadpool_limits(1):
        best = [float("inf"), float("inf")]
        for _ in range(4):  # in turns, so that both meet the same noise
            best[0] = min(best[0], best_of(2, lambda: dense @ weights))
            best[1] = min(best[1], best_of(1, lambda: train_block(planes, X, rankings, order, **options)))
    print(f"\none epoch, {users:,} users, {values} values, {n_planes} planes, one core; {describe_machine()}")
    print(f"  sgemm of the dense rows with the planes   {best[0] / users * 1e6:6.2f} µs a user")
    print(f"  training, one epoch                       {best[1] / users * 1e6:6.2f} µs a user")
    print(f"  training / sgemm                          {best[1] / best[0]:6.2f} (bar 3)")


def compare_shards(work: Path, *, users: int = 532_000, days: int = 60, epochs: int = 4) -> None:
    """Print the error of gate users after training with 1, 8 and 64 shards, and what 2 workers gain over 1."""
    lake = work / f"shards-{users}"
    site, config = site_of(work / "shards-site", lake, users)
    with cluster(2) as client:
        make_lake(client, lake, users=users, days=days)
        known = ingest(client, site, config, FIRST + dt.timedelta(days - 1))
        features = open_features(training_features(client, site, config, known).path)
        print(f"\nshards, {features.n_users:,} users with rankings, {epochs} epochs; {describe_machine()}")
        errors = {}
        for shards in (1, 8, 64):
            started = time.perf_counter()
            model = train(client, features, shards=shards, epochs=epochs)
            seconds = time.perf_counter() - started
            errors[shards] = _gate_error(model, features)
            change = errors[shards] / errors[1] - 1
            print(f"  {shards:3} shards  ε_dis {errors[shards]:.4f} ({change:+.2%})   {seconds:6.1f} s with 2 workers")
        two = best_of(1, lambda: train(client, features, shards=8, epochs=epochs))
    with cluster(1) as client:
        train(client, features, shards=8, epochs=1)
        one = best_of(1, lambda: train(client, features, shards=8, epochs=epochs))
    print(f"  8 shards, 1 worker {one:.1f} s, 2 workers {two:.1f} s: {one / two:.2f} times as fast (bar 1.7)")
    shutil.rmtree(site.path)


def _gate_error(model: AMMRank, features: Features) -> float:
    total, n_users = 0.0, 0
    for partition in range(features.n_partitions):
        part = features.partition(partition)
        chosen = split_of(part.user_ids) == SPLITS.index("gate")
        if part.rankings is not None and chosen.any():
            total += disagreement_error(model.decision_function(part.X[chosen]), part.rankings[chosen]) * chosen.sum()
            n_users += int(chosen.sum())
    return total / n_users

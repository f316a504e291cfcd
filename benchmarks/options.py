"""What the options of AMM-rank are worth on a simulated lake: averaging, cloning, rank weights, limits, ensembles."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy.sparse as sp
from distributed import Client

from ammrank_dask.features.store import Features, open_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.metrics import disagreement_error, top_k_metrics
from ammrank_dask.training.train import train
from ammrank_dask.user_hash import SPLITS, split_of
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.command_line import Days, Option, Users, benchmark
from benchmarks.label_ranking.ensemble import AMMRankEnsemble
from benchmarks.measure import cluster, describe_machine, make_lake, site_of

FIRST = dt.date(2026, 1, 5)
BASE: dict[str, Any] = {"epochs": 5, "regularization": 1e-3, "max_planes": 5}
OPTIONS: dict[str, dict[str, Any]] = {
    "as configured: average, uniform, 5 planes": {},
    "last model instead of the average": {"average": False},
    "rank_weight reciprocal": {"rank_weight": "reciprocal"},
    "cloning 0.02": {"clone_probability": 0.02},
    "1 plane": {"max_planes": 1},
    "2 planes": {"max_planes": 2},
    "20 planes": {"max_planes": 20},
    "20 planes, pruning c = 1000": {"max_planes": 20, "prune_c": 1000.0},
    "λ 3e-4": {"regularization": 3e-4},
    "λ 3e-3": {"regularization": 3e-3},
}


@benchmark("options")
def compare_options(
    work: Path,
    *,
    users: Users = 200_000,
    days: Days = 67,
    seeds: Annotated[int, Option("Seeds of which the mean is taken.")] = 3,
) -> None:
    """Print the error of gate users with each option, and with a warm start a week later."""
    lake = work / f"options-{users}"
    site, config = site_of(work / "options-site", lake, users)
    last = FIRST + dt.timedelta(days - 1)
    with cluster(2) as client:
        make_lake(client, lake, users=users, days=days)
        early, late = (
            open_features(
                training_features(Night(client, site, config, date), ingest(Night(client, site, config, date))).path
            )
            for date in (last - dt.timedelta(7), last)
        )
        X, rankings = rows_of(late, "train")
        test_X, test_rankings = rows_of(late, "gate")
        print(
            f"\noptions, {len(rankings):,} users to learn from, {len(test_rankings):,} to measure, one shard,"
            f" mean of {seeds} seeds; {describe_machine()}"
        )
        print(f"  {'':44} {'ε_dis':>7} {'change':>8} {'precision@10':>13} {'planes':>7} {'seconds':>8}")
        base = float("nan")
        for name, options in OPTIONS.items():
            found = [
                _measure(AMMRank(**{**BASE, **options}, n_categories=late.n_categories, seed=seed), X, rankings,
                         test_X, test_rankings)
                for seed in range(seeds)
            ]  # fmt: skip
            mean = np.mean(found, axis=0)
            base = base if options else float(mean[0])
            _print_row(name, mean, base)
        eight = AMMRankEnsemble([(None, AMMRank(**BASE, n_categories=late.n_categories))] * 8, sample=0.9)
        found = [_measure(eight, X, rankings, test_X, test_rankings)]
        _print_row("sum of 8 models on 90 % samples", np.mean(found, axis=0), base)
        _compare_starts(client, early, late, test_X, test_rankings)
    shutil.rmtree(site.path)


def _compare_starts(client: Client, early: Features, late: Features, X: sp.csr_matrix, rankings: np.ndarray) -> None:
    """Print what a model of a week before is worth as a start."""
    before = train(early, client=client, epochs=5)
    print(
        f"  {'8 shards; a week before, as it is':44} {disagreement_error(before.decision_function(X), rankings):7.4f}"
    )
    for epochs in (1, 2, 5):
        for name, start in (("from nothing", None), ("from the week before", before)):
            started = time.perf_counter()
            model = train(late, client=client, epochs=epochs, start=start)
            error = disagreement_error(model.decision_function(X), rankings)
            label = f"8 shards, {epochs} epochs {name}"
            print(f"  {label:44} {error:7.4f} {'':30} {time.perf_counter() - started:8.1f}")


def _measure(
    model: AMMRank | AMMRankEnsemble, X: sp.csr_matrix, rankings: np.ndarray, test_X: sp.csr_matrix, truth: np.ndarray
) -> tuple[float, float, float, float]:
    started = time.perf_counter()
    blocks = [(X[i : i + 1024], rankings[i : i + 1024]) for i in range(0, X.shape[0], 1024)]
    model.fit_blocks(blocks) if isinstance(model, AMMRank) else model.fit(X, rankings)
    seconds = time.perf_counter() - started
    scores = model.decision_function(test_X)
    planes = float(model.n_planes_.sum()) if isinstance(model, AMMRank) else float("nan")
    return disagreement_error(scores, truth), float(top_k_metrics(scores, truth)["precision"][-1]), planes, seconds


def _print_row(name: str, row: np.ndarray, base: float) -> None:
    error, precision, planes, seconds = row
    print(f"  {name:44} {error:7.4f} {error / base - 1:+8.2%} {precision:13.4f} {planes:7.0f} {seconds:8.1f}")


def rows_of(features: Features, split: str) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return the rows and rankings of a split in memory."""
    rows, rankings = [], []
    for partition in range(features.n_partitions):
        part = features.partition(partition)
        assert part.rankings is not None
        chosen = (split_of(part.user_ids) == SPLITS.index(split)) & (part.rankings >= 0).any(axis=1)
        rows.append(part.X[chosen])
        rankings.append(part.rankings[chosen])
    width = max(block.shape[1] for block in rankings)
    padded = [np.pad(block, ((0, 0), (0, width - block.shape[1])), constant_values=-1) for block in rankings]
    return sp.vstack(rows, format="csr"), np.concatenate(padded)

"""Scoring: the fused kernel against BLAS on dense rows, the whole stage against the kernel, and a million users."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from distributed import Client
from threadpoolctl import threadpool_limits

from ammrank_dask.features.store import Features
from ammrank_dask.features.write import write_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.plane_panels import top_categories
from ammrank_dask.model.plus_basis import RankingCounts, make_basis
from ammrank_dask.scoring.score import score
from ammrank_dask.scoring.score_passes import finish_qualifications, write_qualifications
from ammrank_dask.scoring.settings import ScoreSettings
from benchmarks.command_line import Memory, Users, benchmark
from benchmarks.measure import best_cpu_of, best_of, cluster, describe_machine, worker_facts

VALUES, COLUMNS, PLANES, CATEGORIES, K = 89, 511, 256, 50, 10
TURNS = 8


@benchmark("score", quick=True)
def compare_score(work: Path, *, users: Users = 1_000_000) -> None:
    """Print what a user costs the fused kernel, sgemm of the dense rows with the planes, and the whole stage."""
    rng = np.random.default_rng(0)
    model = make_model(rng)
    X = make_rows(rng, 4_000)
    panels, dense, weights = model.panels(), X.toarray(), model.weights_[:COLUMNS].copy()
    best = dict.fromkeys(("sgemm", "kernel"), float("inf"))
    with threadpool_limits(1):
        for _ in range(20):  # in turns, so that both meet the same noise
            best["sgemm"] = min(best["sgemm"], best_of(2, lambda: dense @ weights))
            best["kernel"] = min(best["kernel"], best_of(2, lambda: top_categories(X, panels, K)))
    cost = {name: seconds / X.shape[0] * 1e6 for name, seconds in best.items()}
    print(
        f"\nscoring, {VALUES} values of {COLUMNS}, {PLANES} planes, {CATEGORIES} categories, k = {K}, one core; "
        f"{describe_machine()}"
    )
    print(f"  sgemm of the dense rows with the planes, no more   {cost['sgemm']:6.2f} µs a user")
    print(f"  fused kernel: planes, maximum, top {K}              {cost['kernel']:6.2f} µs a user")
    ratio = cost["sgemm"] / cost["kernel"]
    print(f"  users a second, kernel / sgemm                     {ratio:6.2f} (bar 1.5)")

    features = make_features(work / "score-features", rng, users)
    part = features.partition(0).X
    times: dict[str, list[float]] = {"kernel": [], "stage": [], "kernel cpu": [], "stage cpu": []}
    with cluster(1) as client, threadpool_limits(1):
        score(model, features, work / "score-quals", client=client, k=K)  # compiles
        for _ in range(10):  # in turns, on the same rows
            shutil.rmtree(work / "score-quals")
            started, spent = time.perf_counter(), _cpu_seconds(client)
            score(model, features, work / "score-quals", client=client, k=K)
            times["stage"].append((time.perf_counter() - started) / users)
            times["stage cpu"].append((_cpu_seconds(client) - spent) / users)
            for _ in range(3):
                started, spent = time.perf_counter(), time.thread_time()
                top_categories(part, panels, K)
                times["kernel"].append((time.perf_counter() - started) / part.shape[0])
                times["kernel cpu"].append((time.thread_time() - spent) / part.shape[0])
    shutil.rmtree(work / "score-quals")
    print(f"  on the rows of the stage, {users:,} users, one worker         best   median")
    found = {name: (min(values) * 1e6, float(np.median(values)) * 1e6) for name, values in times.items()}
    rows = (
        ("", "fused kernel", "whole stage: store to published parquet", " (bar 0.6)"),
        (" cpu", "fused kernel, CPU time", "worker of the stage, CPU time", ""),
    )
    for kind, of_kernel, of_stage, bar in rows:
        kernel, stage = found[f"kernel{kind}"], found[f"stage{kind}"]
        rates = [one / whole for one, whole in zip(kernel, stage, strict=True)]
        print(f"  {of_kernel:51}{_row(kernel)} µs a user")
        print(f"  {of_stage:51}{_row(stage)} µs a user")
        print(f"  {'users a second, stage / kernel':51}{_row(rates)}{bar}")


@benchmark("score-plus")
def compare_score_plus(work: Path, *, users: Users = 100_000) -> None:
    """Print what a user costs the scoring stage with AMM-rank and with AMM-rank-plus of one to three clusterings."""
    rng = np.random.default_rng(0)
    features = make_features(work / "score-plus-features", rng, users)
    part = features.partition(0, normalize=False).X
    models: dict[str, AMMRank | AMMRankPlus] = {
        "amm-rank": make_model(rng),
        "amm-rank-plus, 1 clustering": make_plus(rng, part, 1),
        "amm-rank-plus, 2 clusterings": make_plus(rng, part, 2),
        "amm-rank-plus, 3 clusterings": make_plus(rng, part, 3),
    }
    best = {name: dict.fromkeys(("stage", "cpu", "kernel"), float("inf")) for name in models}
    few = part[:4_000]
    with cluster(1) as client, threadpool_limits(1):
        for turn in range(TURNS):  # in turns, so that all meet the same noise; the first compiles
            for name, model in models.items():
                started, spent = time.perf_counter(), _cpu_seconds(client)
                score(model, features, work / "score-plus-quals", client=client, k=K)
                seconds = {"stage": time.perf_counter() - started, "cpu": _cpu_seconds(client) - spent}
                shutil.rmtree(work / "score-plus-quals")
                if turn:
                    panels = model.panels()
                    kernel = best_cpu_of(5, lambda panels=panels: top_categories(few, panels, K))  # type: ignore[misc]
                    found = {**{key: value / users for key, value in seconds.items()}, "kernel": kernel / few.shape[0]}
                    best[name] = {key: min(value, found[key]) for key, value in best[name].items()}
    print(f"\nscoring stage, {users:,} users, {VALUES} values, {PLANES} planes, one worker; {describe_machine()}")
    print(
        "  µs a user, best of several           clock  worker's CPU  kernel's CPU   / amm-rank: clock     CPU  kernel"
    )
    plain = best["amm-rank"]
    for name, cost in best.items():
        # A long task meets more of what other processes do; the last ratio is of amm-rank's stage with another kernel.
        swapped = (plain["cpu"] - plain["kernel"] + cost["kernel"]) / plain["cpu"]
        ratios = f"{cost['stage'] / plain['stage']:8.2f}{cost['cpu'] / plain['cpu']:8.2f}{swapped:8.2f}"
        times = f"{cost['stage'] * 1e6:10.2f}{cost['cpu'] * 1e6:14.2f}{cost['kernel'] * 1e6:14.2f}"
        print(f"  {name:32}{times}{'':15}{ratios}")
    print("  bars: 1.6 times with one clustering, 2.2 times with three")


def make_plus(rng: np.random.Generator, rows: sp.csr_matrix, n_clusterings: int) -> AMMRankPlus:
    """Return a model of random planes over rows, own columns and 200 centres a clustering."""
    own = np.arange(COLUMNS // CATEGORIES * CATEGORIES).reshape(-1, CATEGORIES)
    model = AMMRankPlus(
        n_categories=CATEGORIES, own_columns=own, own_groups=np.arange(len(own)) // 2, n_clusterings=n_clusterings,
        n_centers=200,
    )  # fmt: skip
    clicks = rng.integers(1, 1000, CATEGORIES)
    counts = RankingCounts(2_000, clicks, np.zeros(CATEGORIES), 0)
    basis = make_basis(counts, rows[:4_000], model.own_term(COLUMNS, CATEGORIES), **model.basis_options())
    plane_category = np.sort(np.arange(PLANES) % CATEGORIES).astype(np.int32)
    weights = rng.standard_normal((basis.n_columns + 1, PLANES)).astype(np.float32)
    shape = basis.own.weights.shape
    model.set_planes(
        basis, weights, plane_category, rng.standard_normal(shape), n_steps=1, squares=np.ones(basis.n_columns + 1),
        own_squares=np.ones(shape),
    )  # fmt: skip
    return model


def _row(values: Iterable[float]) -> str:
    return " ".join(f"{value:8.2f}" for value in values)


@benchmark("score-million")
def score_million(work: Path, *, users: Users = 1_000_000, memory: Memory = "1GiB") -> None:
    """Print seconds and peak memory of scoring, with both policies and the changes since the night before."""
    rng = np.random.default_rng(0)
    model = make_model(rng)
    features = make_features(work / f"score-features-{users}", rng, users)
    with cluster(2, memory) as client:
        before = worker_facts(client)["pids"]
        started = time.perf_counter()
        first = score(model, features, work / "score-first", client=client, k=K)
        print(f"\nscoring {users:,} users, 2 workers of {memory}; {describe_machine()}")
        print(f"  user_top_k, first night            {time.perf_counter() - started:7.1f} s", end="")
        print(f"   peak of a worker {worker_facts(client)['peak_mib']:5.0f} MiB")
        started = time.perf_counter()
        run = work / "score-second"
        settings = ScoreSettings(k=K, policy="category_top_n", also=("user_top_k",))
        counts = write_qualifications(client, model, features, run, settings, previous=first)
        finish_qualifications(run, "0", features, settings, counts, inputs={})
        print(f"  category_top_n, with changes       {time.perf_counter() - started:7.1f} s", end="")
        after = worker_facts(client)
        print(f"   peak of a worker {after['peak_mib']:5.0f} MiB")
    print(f"  slots {[policy.slots for policy in counts.policies.values()]}")
    print(f"  workers killed: {len(set(before) - set(after['pids']))}, bytes spilled: {after['spilled']:,}")
    for name in ("score-first", "score-second"):
        shutil.rmtree(work / name)


def _cpu_seconds(client: Client) -> float:
    """Return the CPU time that the workers have used."""
    return float(sum(client.run(time.process_time).values()))


def make_model(rng: np.random.Generator) -> AMMRank:
    """Return a model of random planes, dealt evenly to the categories."""
    model = AMMRank()
    plane_category = np.sort(np.arange(PLANES) % CATEGORIES).astype(np.int32)
    weights = rng.standard_normal((COLUMNS + 1, PLANES)).astype(np.float32)
    model.set_planes(weights, plane_category, rng.integers(0, 1000, CATEGORIES), n_steps=1)
    return model


def make_rows(rng: np.random.Generator, users: int) -> sp.csr_matrix:
    """Return sparse rows with the same number of values each."""
    indices = np.sort(np.argsort(rng.random((users, COLUMNS), np.float32), axis=1)[:, :VALUES], axis=1)
    data = rng.random(indices.size, np.float32)
    indptr = np.arange(users + 1) * VALUES
    return sp.csr_matrix((data, indices.ravel().astype(np.int32), indptr), shape=(users, COLUMNS))


def make_features(path: Path, rng: np.random.Generator, users: int) -> Features:
    """Write features of random rows in partitions of 50,000 users; many rows have their columns from another one."""
    rows = make_rows(rng, min(users, 50_000))
    # Values that are moved on make other rows: equal ones would have equal scores, as users have them hardly ever.
    copies = [(np.roll(rows.data, number), rows.indices, rows.indptr) for number in range(-(-users // rows.shape[0]))]
    X = sp.vstack([sp.csr_matrix(copy, shape=rows.shape) for copy in copies], format="csr")[:users]
    columns = [f"pv:intensity:{i}" for i in range(COLUMNS)]
    ids = rng.permutation(users).astype(np.int64) * 7919 + 10**9
    return write_features(path, X, ids, columns, categories=[f"Category/{i}" for i in range(CATEGORIES)])

"""Training: an epoch against one dense scoring by BLAS, many shards against one, two workers against one, memory."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import scipy.sparse as sp
from dask.utils import parse_bytes
from distributed import Client
from threadpoolctl import threadpool_limits

from ammrank_dask.features.store import Features, open_features
from ammrank_dask.features.write import OwnRows, write_features, write_partitions
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.model.plane_sums import PlaneSums, StepSettings, train_block
from ammrank_dask.model.plus_basis import count_rankings, make_basis, prepare_plus_rows
from ammrank_dask.model.plus_sums import PlusState, train_plus_block
from ammrank_dask.monitor.events import TOPIC
from ammrank_dask.scoring.score import score
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.vocabulary import USERS_A_PARTITION
from ammrank_dask.training.train import train
from ammrank_dask.user_hash import SPLITS, partition_of, split_of
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.command_line import Days, Epochs, Memory, Model, Option, Users, Workers, benchmark
from benchmarks.measure import (
    best_cpu_of,
    best_of,
    cluster,
    cpu_seconds,
    describe_machine,
    make_lake,
    reset_peak_memory,
    site_of,
    worker_facts,
)

FIRST = dt.date(2026, 1, 5)
TURNS = 10


@benchmark("epoch", quick=True)
def compare_epoch(
    *,
    users: Users = 20_000,
    values: Annotated[int, Option("Values of a row.")] = 89,
    columns: Annotated[int, Option("Columns of the rows.")] = 511,
    categories: Annotated[int, Option("Categories to rank.")] = 50,
) -> None:
    """Print what an epoch costs beside one sgemm of the same rows, made dense, with the same planes; one core."""
    X, rankings = make_rows(users, values=values, columns=columns, categories=categories)
    settings = StepSettings(regularization=1e-3, bias=1.0, max_planes=5)
    planes = PlaneSums.empty(columns, categories)
    order = np.arange(users)
    train_block(planes, X, rankings, order, settings)
    n_planes = int(planes.n_planes.sum())
    dense, weights = X.toarray(), planes.weights(1e-3)[:columns].copy()
    train_plus, rows_plus = prepare_plus(X, rankings, categories)
    work_of: dict[str, Callable[[], object]] = {
        "sgemm": lambda: dense @ weights,
        "amm-rank": lambda: train_block(planes, X, rankings, order, settings),
        "amm-rank-plus": lambda: train_plus(order),
    }
    wall, cpu = dict.fromkeys(work_of, float("inf")), dict.fromkeys(work_of, float("inf"))
    with threadpool_limits(1):
        for _ in range(TURNS):  # in turns, so that all meet the same noise
            for name, function in work_of.items():
                wall[name] = min(wall[name], best_of(1, function) / users * 1e6)
                cpu[name] = min(cpu[name], best_cpu_of(1, function) / users * 1e6)
    print(f"\none epoch, {users:,} users, {values} values, {n_planes} planes, one core; {describe_machine()}")
    print("  µs a user, best of several                      clock       CPU")
    for name, title in (
        ("sgemm", "sgemm of the dense rows with the planes"),
        ("amm-rank", "amm-rank, one epoch"),
        ("amm-rank-plus", f"amm-rank-plus, one epoch, {rows_plus:.1f} values"),
    ):
        print(f"  {title:44}{wall[name]:9.2f} {cpu[name]:9.2f}")
    for one, other, bar in (("amm-rank", "sgemm", 3), ("amm-rank-plus", "amm-rank", 2.2)):
        title = f"{one} / {other} (bar {bar})"
        print(f"  {title:44}{wall[one] / wall[other]:9.2f} {cpu[one] / cpu[other]:9.2f}")


TOOLBOX_RATE, TOOLBOX_VALUES = 30_200, 42
"""Users a second of the paper's toolbox in its sparse mode, on one core of this kind, with so many values a user."""


@benchmark("toolbox")
def compare_toolbox(work: Path, *, users: Users = 200_000, epochs: Epochs = 5) -> None:
    """Print users a CPU second of training, kernel alone and whole stage, beside those of the paper's toolbox."""
    X, rankings = make_rows(users, values=TOOLBOX_VALUES)
    few = np.arange(min(users, 20_000))
    settings = StepSettings(regularization=1e-3, bias=1.0, max_planes=5)
    planes = PlaneSums.empty(X.shape[1], 50)
    train_block(planes, X, rankings, few, settings)
    train_plus, _ = prepare_plus(X[: len(few)], rankings[: len(few)], 50)
    with threadpool_limits(1):
        kernels = {
            "amm-rank": len(few) / best_cpu_of(TURNS, lambda: train_block(planes, X, rankings, few, settings)),
            "amm-rank-plus": len(few) / best_cpu_of(TURNS, lambda: train_plus(few)),
        }
    path = work / f"toolbox-{users}"
    features = write_features(path, X, np.arange(users), _names(X.shape[1]), rankings)
    n_trained = int((split_of(ids_from_values(np.arange(users))) == SPLITS.index("train")).sum())
    stages = {}
    with cluster(2) as client:
        for name in kernels:
            train(features, client=client, model=name, shards=8, epochs=1)  # compiles
            spent = cpu_seconds()
            train(features, client=client, model=name, shards=8, epochs=epochs)
            stages[name] = n_trained * epochs / (cpu_seconds() - spent)
    shutil.rmtree(path)
    n_planes = int(planes.n_planes.sum())
    print(f"\ntraining, {TOOLBOX_VALUES} values, {n_planes} planes, {n_trained:,} training users, {epochs} epochs;"
          f" {describe_machine()}")  # fmt: skip
    print(f"  users a CPU second and epoch, and times the paper's toolbox ({TOOLBOX_RATE:,}, sparse mode)")
    for name, bar in (("amm-rank", "bar 4"), ("amm-rank-plus", "bar 3, goal 5")):
        rates = [f"{rate:9,.0f} {rate / TOOLBOX_RATE:6.2f}" for rate in (kernels[name], stages[name])]
        print(f"  {name:14} kernel {rates[0]}   whole stage, 2 workers and driver {rates[1]} ({bar})")


def prepare_plus(
    X: sp.csr_matrix, rankings: np.ndarray, categories: int
) -> tuple[Callable[[np.ndarray], float], float]:
    """Return an epoch of AMM-rank-plus on rows with prepared memberships, five planes a category, and their values."""
    own = np.arange(X.shape[1] // categories * categories).reshape(-1, categories)
    groups = np.arange(len(own)) // 2
    model = AMMRankPlus(n_categories=categories, own_columns=own, own_groups=groups, clickers_per_plane=1)
    counts = count_rankings(rankings, categories)
    basis = make_basis(counts, X[:10_000], model.own_term(X.shape[1], categories), **model.basis_options())
    rows = prepare_plus_rows(X, basis.memberships.kernel_form(), basis.own.cells(basis.n_columns))
    state, options = PlusState.empty(basis), model.block_options(basis)

    def train_epoch(order: np.ndarray) -> float:
        return train_plus_block(state, rows, rankings, order, **options)

    train_epoch(np.arange(len(rows)))
    return train_epoch, len(rows.data) / len(rows)


@benchmark("shards")
def compare_shards(work: Path, *, users: Users = 532_000, days: Days = 60, epochs: Epochs = 4) -> None:
    """Print the error of gate users after training with 1, 8 and 64 shards, on a simulated lake."""
    lake = work / f"shards-{users}"
    site, config = site_of(work / "shards-site", lake, users)
    with cluster(2) as client:
        make_lake(client, lake, users=users, days=days)
        known = ingest(Night(client, site, config, FIRST + dt.timedelta(days - 1)))
        features = open_features(training_features(Night(client, site, config, known.date), known).path)
        print(f"\nshards, {features.n_users:,} users with rankings, {epochs} epochs; {describe_machine()}")
        errors = {}
        for shards in (1, 8, 64):
            started = time.perf_counter()
            model = train(features, client=client, shards=shards, epochs=epochs)
            seconds = time.perf_counter() - started
            errors[shards] = _gate_error(model, features)
            change = errors[shards] / errors[1] - 1
            print(f"  {shards:3} shards  ε_dis {errors[shards]:.4f} ({change:+.2%})   {seconds:6.1f} s with 2 workers")
    shutil.rmtree(site.path)


@benchmark("workers")
def compare_workers(work: Path, *, users: Users = 400_000, epochs: Epochs = 3) -> None:
    """Print what 2 workers gain over 1, beside what two bare kernels at once gain, and where the time goes."""
    X, rankings = make_rows(users)
    features = write_features(work / f"workers-{users}", X, np.arange(users), _names(X.shape[1]), rankings)
    del X, rankings
    seconds: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    alone = {"amm-rank, rows in the cache": _train_alone, "amm-rank-plus, rows of a shard": _train_plus_alone}
    bare: dict[str, dict[int, list[float]]] = {name: {1: [], 2: []} for name in alone}
    for _ in range(3):  # in turns, so that both meet the same noise
        for n_workers in (1, 2):
            with cluster(n_workers) as client:
                train(features, client=client, shards=8, epochs=1)
                for name, function in alone.items():
                    client.run(function)
                    bare[name][n_workers].append(max(client.run(function).values()))
                seconds[n_workers].append(_seconds_by_stage(client, features, epochs))
    best = {n: min(runs, key=lambda run: run["total"]) for n, runs in seconds.items()}
    rounds = {n: min(run["rounds"] + run["merge"] for run in runs) for n, runs in seconds.items()}
    print(f"\nworkers, {users:,} users, 8 shards, {epochs} epochs; {describe_machine()}")
    for name in best[1]:
        print(f"  {name:11} 1 worker {best[1][name]:7.2f} s   2 workers {best[2][name]:7.2f} s")
    faster = best[1]["total"] / best[2]["total"]
    print(f"  all of it: 2 workers are {faster:.2f} times as fast")
    for name, found in bare.items():
        at_most = 2 * min(found[1]) / min(found[2])
        print(
            f"  two bare kernels at once, {name}: {at_most:.2f} times the work of one; all of it {faster / at_most:.0%}"
        )
    print("  of that (bar 95 %)")
    print(f"  rounds with their merges: {rounds[1] / rounds[2]:.2f} times as fast")
    print(
        f"  merge and checkpoint: {best[2]['merge'] / (best[2]['rounds'] + best[2]['merge']):.1%} of a round (bar 5 %)"
    )
    shutil.rmtree(features.path)


def _seconds_by_stage(client: Client, features: Features, epochs: int) -> dict[str, float]:
    """Train and return the seconds of its stages, by what the driver publishes."""
    begun = time.time()
    started = time.perf_counter()
    train(features, client=client, shards=8, epochs=epochs)
    total = time.perf_counter() - started
    stages = ("prepare", "sample", "centres", "memberships", "first", "rounds", "merge", "validate")
    spent = dict.fromkeys(stages, 0.0)
    since: dict[str, float] = {}
    for moment, event in client.get_events(TOPIC):
        if moment >= begun and event["kind"] == "tasks":
            if event["state"] == "begin":
                since[event["token"]] = moment
            else:
                stage = event["name"].removeprefix("train-")
                kind = "merge" if stage.endswith("-merge") else stage if stage in spent else "rounds"
                spent[kind] += moment - since[event["token"]]
    return {**spent, "other": total - sum(spent.values()), "total": total}


def _train_alone() -> float:
    """Return the seconds of an epoch over rows of its own, no Dask and no disk in it."""
    X, rankings = make_rows(20_000)
    planes = PlaneSums.empty(X.shape[1], 50)
    settings = StepSettings(regularization=1e-3, bias=1.0, max_planes=5)
    return best_of(4, lambda: train_block(planes, X, rankings, np.arange(20_000), settings))


def _train_plus_alone() -> float:
    """Return the seconds of an epoch of AMM-rank-plus over as many rows as a shard has of 400,000 users, of its own."""
    X, rankings = make_rows(50_000)
    train_epoch, _ = prepare_plus(X, rankings, 50)
    return best_of(4, lambda: train_epoch(np.arange(len(rankings))))


@benchmark("memory")
def measure_memory(
    work: Path,
    *,
    users: Users = 6_700_000,
    memory: Memory = "512MiB",
    values: Annotated[int, Option("Values of a row.")] = 400,
    model: Model = "amm-rank",
    workers: Workers = 2,
) -> None:
    """Print the peak of memory while a store of many times the workers' limits trains and scores.

    At the default size it takes 25 GB of disk, and about a quarter of an hour; a worker alone needs half of the users.
    Kernels are compiled before, by workers that end then: what compiles a kernel keeps its memory.
    """
    with cluster(1, "2GiB") as client:
        few = write_large_store(work / "memory-warm", users=2_000, values=40)
        score(
            train(few, client=client, model=model, shards=2, epochs=1), few, work / "memory-warm-quals", client=client
        )
    for folder in ("memory-warm", "memory-warm-quals"):
        shutil.rmtree(work / folder)
    path = work / f"memory-{users}"
    features = write_large_store(path, users=users, values=values)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    with cluster(workers, memory) as client:
        before = worker_facts(client)["pids"]
        started = time.perf_counter()
        fitted = train(features, client=client, model=model, shards=8, epochs=2)
        trained, while_training = time.perf_counter(), worker_facts(client)["peak_mib"]
        client.run(reset_peak_memory)
        score(fitted, features, work / "memory-quals", client=client)
        scored, after = time.perf_counter(), worker_facts(client)
    size_of = f"{users:,} users with {values} values, {model}, 2 epochs, {workers} workers of {memory}"
    print(f"\nout of core, {size_of}; {describe_machine()}")
    times = size / parse_bytes(memory) / workers
    print(f"  store {size / 2**20:,.0f} MiB, {times:.1f} times the limits of all workers (bar 10)")
    print(f"  training {trained - started:.1f} s, peak of a worker {while_training:.0f} MiB")
    print(f"  scoring {scored - trained:.1f} s, peak of a worker {after['peak_mib']:.0f} MiB")
    print(f"  workers killed: {len(set(before) - set(after['pids']))}, bytes spilled: {after['spilled']:,}")
    shutil.rmtree(path)
    shutil.rmtree(work / "memory-quals")


def write_large_store(path: Path, *, users: int, values: int) -> Features:
    """Write a store of which one partition at a time is in memory: all have the same rows, for users of their own.

    Three of eight users have rankings, as in a simulated lake.
    """
    user_ids = ids_from_values(np.arange(users))
    home = partition_of(user_ids, -(-users // USERS_A_PARTITION))
    sizes = np.bincount(home)
    X, rankings = make_rows(int(sizes.max()), values=values)
    rankings[np.arange(len(rankings)) % 8 >= 3] = -1
    partitions = (
        OwnRows(user_ids.take(np.flatnonzero(home == partition)), X[:size], rankings[:size])
        for partition, size in enumerate(sizes)
    )
    n_categories = int(rankings.max()) + 1
    return write_partitions(path, partitions, _names(X.shape[1]), [str(code) for code in range(n_categories)])


@benchmark("start")
def measure_start(work: Path, *, users: Users = 20_000) -> None:
    """Print the seconds from the command to the end of the first round, with nothing compiled before."""
    lake, site = work / f"start-{users}", work / "start-site"
    with cluster(2) as client:
        make_lake(client, lake, users=users, days=45)
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        ammrank = [sys.executable, "-m", "ammrank_dask.workflows.cli"]
        last = FIRST + dt.timedelta(44)
        subprocess.run([*ammrank, "init", str(site), "--lake", str(lake)], check=True, capture_output=True)
        # Ingest is not part of it: the days are there when training begins.
        subprocess.run(
            [*ammrank, "features", str(site), "--date", str(last), "--labels"], check=True, capture_output=True
        )
        started = time.perf_counter()
        command = [*ammrank, "train", str(site), "--date", str(last), "--json"]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr or ():
                if "train-e000-r00-merge" in line or "train-e000-r01" in line or "train-validate" in line:
                    break
            seconds = time.perf_counter() - started
            process.communicate()
    print(f"\nfrom `ammrank train` to the end of its first round, kernels not compiled before; {describe_machine()}")
    print(f"  {seconds:.1f} s (bar 20)")
    shutil.rmtree(site)


def make_rows(
    users: int, *, values: int = 89, columns: int = 511, categories: int = 50, at_once: int = 20_000
) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return sparse rows and rankings of 3 to 7 categories that depend on them, with noise.

    Rows are drawn `at_once`, with all their columns.
    """
    rng = np.random.default_rng(0)
    loves = sp.random(columns, categories, 0.1, random_state=rng, dtype=np.float32)
    parts, rankings = [], []
    for start in range(0, users, at_once):
        n = min(at_once, users - start)
        indices = np.sort(np.argpartition(rng.random((n, columns), np.float32), values, axis=1)[:, :values], axis=1)
        data = rng.random(indices.size, np.float32)
        X = sp.csr_matrix((data, indices.ravel().astype(np.int32), np.arange(n + 1) * values), shape=(n, columns))
        taste = (X @ loves).toarray()
        best = np.argsort(-(taste + 0.3 * rng.standard_normal(taste.shape)), axis=1)[:, :7].astype(np.int32)
        best[np.arange(7) >= rng.integers(3, 8, n)[:, None]] = -1
        parts.append(X)
        rankings.append(best)
    return sp.vstack(parts, format="csr"), np.concatenate(rankings)


def _names(n_columns: int) -> list[str]:
    return [f"column {number}" for number in range(n_columns)]


def _gate_error(model: AMMRank, features: Features) -> float:
    total, n_users = 0.0, 0
    for partition in range(features.n_partitions):
        part = features.partition(partition, normalize=model.normalize_rows)
        chosen = split_of(part.user_ids) == SPLITS.index("gate")
        if part.rankings is not None and chosen.any():
            total += disagreement_error(model.decision_function(part.X[chosen]), part.rankings[chosen]) * chosen.sum()
            n_users += int(chosen.sum())
    return total / n_users

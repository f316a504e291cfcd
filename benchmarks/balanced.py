"""The balanced policy: against the linear program of HiGHS, and the time of the stage against user_top_k."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import scipy.sparse as sp
from distributed import Client
from scipy.optimize import linprog

from ammrank_dask.features.store import open_features
from ammrank_dask.kernels.chances import Curves
from ammrank_dask.scoring.balanced import balance
from ammrank_dask.scoring.chance_table import ChanceTable, allowed_counts, sample_share
from ammrank_dask.scoring.chances import Chances, load_chances
from ammrank_dask.scoring.exposure_bounds import ExposureBounds, exposure_bounds
from ammrank_dask.scoring.qualifications import Qualifications, open_qualifications
from ammrank_dask.scoring.score import score
from ammrank_dask.scoring.score_partition import SampledUsers, sample_users
from ammrank_dask.storage.objects.atomic import read_json
from ammrank_dask.storage.site.reports import SUMMARY
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.chances import find_chances
from ammrank_dask.workflows.stages.models import find_run, load_site_model
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.score import score_settings
from benchmarks.chances import real_site
from benchmarks.command_line import Memory, Option, Users, benchmark
from benchmarks.complete_journey import NIGHTS
from benchmarks.measure import cluster, describe_machine, worker_facts
from benchmarks.scoring import CATEGORIES, K, make_features, make_model

TABLES = ((1_000, 50, 1.2, 0.25, 4.0), (1_000, 50, 1.2, 0.8, 1.25), (2_500, 340, 1.5, 0.25, 4.0))
"""Users, categories, how skewed they are, floor, cap."""


@benchmark("balanced")
def compare_balanced(
    work: Path,
    *,
    users: Users = 1_000_000,
    memory: Memory = "1GiB",
    real: Annotated[bool, Option("On Complete Journey, from its log to its report.")] = False,
) -> None:
    """Print what the balanced policy reaches of the optimum, and what it costs beside user_top_k.

    With `real`, that of a night of Complete Journey instead, from its log to its report.
    """
    if real:
        _compare_real(work)
        return
    print(f"\nbalanced policy, k = {K}; {describe_machine()}")
    print(
        f"  {'users × categories, floor, cap':34} {'of optimum':>11} {'gap':>9} {'outside':>8} {'s':>7} {'HiGHS s':>8}"
    )
    with cluster(2, memory) as client:
        for n, n_categories, skew, floor, cap in TABLES:
            chances, clicks = make_chances(n, n_categories, skew)
            eligible, slots = allowed_counts(chances, K)
            names = [str(code) for code in range(n_categories)]
            bounds = exposure_bounds(names, clicks, eligible, slots, floor=floor, cap=cap)
            table = ChanceTable(work / f"balanced-{n}-{n_categories}-{floor}", 2)
            for partition in range(2):
                ids = ids_from_values(np.arange(n)[partition::2])
                table.save(partition, chances[partition::2], ids, sample_share(n, n_categories))
            balance(client, table, bounds, K, np.arange(n_categories))  # compiles
            started = time.perf_counter()
            plan = balance(client, table, bounds, K, np.arange(n_categories))
            seconds = time.perf_counter() - started
            started = time.perf_counter()
            optimum = solve_exactly(chances, bounds)
            print(
                f"  {f'{n:,} × {n_categories}, {floor:g}, {cap:g}':34} {plan.worth / optimum:11.6%} {plan.gap:9.1e} "
                f"{bounds.n_outside(plan.n_users):8} {seconds:7.2f} {time.perf_counter() - started:8.1f}"
            )
            shutil.rmtree(table.folder)
        _compare_stage(client, work, users, memory)


def _compare_stage(client: Client, work: Path, users: int, memory: str) -> None:
    """Print the seconds of the stage under both policies, in turns."""
    rng = np.random.default_rng(0)
    model = make_model(rng)
    features = make_features(work / f"score-features-{users}", rng, users)
    chances = Chances(
        Curves(0.0, 5.0, 0.7, rng.normal(-2, 1, CATEGORIES), np.full(CATEGORIES, 1.0), np.linspace(-1, 1, 4),
               np.full((1, 4), 0.2), np.zeros(1)), np.zeros(0),
    )  # fmt: skip
    best = dict.fromkeys(("user_top_k", "balanced"), float("inf"))
    for turn in range(3):  # the first compiles
        for policy in best:
            started = time.perf_counter()
            quals = score(model, features, work / "balanced-quals", client=client, k=K, policy=policy, chances=chances)
            if turn:
                best[policy] = min(best[policy], time.perf_counter() - started)
            facts = quals.run.manifest["facts"]["policies"][policy]
            shutil.rmtree(work / "balanced-quals")
    print(f"  stage, {users:,} users × {CATEGORIES}, 2 workers of {memory}")
    for policy, seconds in best.items():
        print(f"    {policy:12} {seconds:7.1f} s")
    print(f"    balanced / user_top_k {best['balanced'] / best['user_top_k']:.2f} (bar 3)", end="")
    print(f", gap {facts['gap']:.1e}, {facts['swaps']} swaps, {facts['passes']} passes", end="")
    print(f", peak of a worker {worker_facts(client)['peak_mib']:.0f} MiB")


def _compare_real(work: Path) -> None:
    """Print what a balanced night of a real log hands out, and what HiGHS finds on the same table of chances."""
    site = real_site(work, "real-balanced-site")
    config = load_config(site.config_path)
    shown = {"policies": ["user_top_k", "category_top_n", "balanced"]}
    config = config.model_validate(config.model_dump() | {
        "score": config.score.model_dump() | {"policy": "balanced", "k": K},
        "report": config.report.model_dump() | shown,
    })  # fmt: skip
    with cluster(2) as client:
        night = Night(client, site, config, dt.date.fromisoformat(NIGHTS[-1]))
        nightly(night)
        quals = open_qualifications(site.qualifications_folder(night.date))
        users = all_users(night, quals)
    summary = read_json(site.report_folder(night.date) / SUMMARY)
    print(f"\nComplete Journey, night {night.date}, {summary['n_users']:,} households; {describe_machine()}")
    print(
        f"  {'policy':16} {'starved users':>14} {'over-exposed':>13} {'starved categories':>19} {'expected clicks':>16}"
    )
    base = summary["policies"]["user_top_k"]["expected_clicks"]
    for name, found in summary["policies"].items():
        print(
            f"  {name:16} {found['starved_users']:14} {found['overexposed_users']:13} {found['starved_categories']:19}"
            f" {found['expected_clicks']:11.1f} {found['expected_clicks'] / base - 1:+.2%}"
        )
    facts = quals.manifest.policies["balanced"]
    eligible, slots = allowed_counts(users.chances, K)
    bounds = score_settings(config).bounds(quals.categories, np.array(quals.manifest.clicks), eligible, slots)
    outside = bounds.n_outside(quals.counts.exposure.sum(axis=1))
    started = time.perf_counter()
    optimum = solve_exactly(users.chances, bounds)
    print(
        f"  {len(users.chances):,} × {len(quals.categories)}: {facts['expected_clicks'] / optimum:.6%} of the optimum"
        f" of HiGHS ({time.perf_counter() - started:.0f} s), gap {facts['gap']:.1e}, {facts['swaps']} swaps,"
        f" {outside} users outside a floor or a cap"
    )


def all_users(night: Night, quals: Qualifications) -> SampledUsers:
    """Return chances and best categories of all users of a night."""
    chances, model = find_chances(night.site, quals.manifest.chances), find_run(night.site, quals.manifest.model)
    assert chances is not None
    assert model is not None
    features = open_features(next(
        path for path in night.site.finished_runs("features")
        if open_run(path).digest == quals.manifest.inputs["features"]
    ))  # fmt: skip
    return sample_users(
        night.client, load_site_model(model), features, load_chances(chances), score_settings(night.config),
        2 * features.n_users,
    )  # fmt: skip


def make_chances(n: int, n_categories: int, skew: float) -> tuple[np.ndarray, np.ndarray]:
    """Return chances and clicks of made-up users with tastes; popularity falls with a power of the rank."""
    rng = np.random.default_rng(0)
    popularity = 0.5 - skew * np.log(np.arange(1, n_categories + 1))
    logit = popularity + rng.normal(0, 0.8, (n, 1)) + rng.normal(0, 1, (n, n_categories))
    chances = (1 / (1 + np.exp(-logit))).astype(np.float32)
    return chances, (rng.random(chances.shape) < chances).sum(axis=0)


def solve_exactly(chances: np.ndarray, bounds: ExposureBounds) -> float:
    """Return the largest sum of chances by HiGHS."""
    n, n_categories = chances.shape
    users = sp.kron(sp.eye(n), np.ones((1, n_categories)), format="csr")
    categories = sp.kron(np.ones((1, n)), sp.eye(n_categories), format="csr")
    # What a user may not hold is at 0 by its bounds.
    most = (chances >= 0).astype(float).ravel()
    done = linprog(
        -np.maximum(chances, 0).astype(float).ravel(), A_eq=users, b_eq=np.full(n, K),
        A_ub=sp.vstack([categories, -categories]),
        b_ub=np.concatenate([bounds.cap, -bounds.floor]), bounds=np.stack([np.zeros(len(most)), most], axis=1),
        method="highs",
    )  # fmt: skip
    return float(-done.fun)

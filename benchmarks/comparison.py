"""The methods of the paper side by side: on a simulated world, on public tables, and against the clock."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from ammrank_dask.evaluation.compare import prepare_features, run_fold, try_parameters
from ammrank_dask.evaluation.page import PAGE, write_evaluation
from ammrank_dask.features.store import open_features
from ammrank_dask.methods.registry import METHODS, grid_of
from ammrank_dask.runtime.tasks import Progress, silent
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.operations.evaluate import evaluate_site, evaluate_table
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.command_line import Data, Folds, Methods, MinCategories, Option, Sets, Users, benchmark
from benchmarks.measure import cluster, count_from, describe_machine, make_lake, site_of

FIRST, DAYS = dt.date(2026, 1, 5), 60
LAST = FIRST + dt.timedelta(DAYS - 1)
PAPER = {
    "no-adv": {"amm": 0.3446, "central-mal": 0.2957, "ag-mal": 0.2820, "ib-mal": 0.2694, "lr": 0.2110,
               "pw-lr": 0.2091, "amm-rank": 0.1996},
    "adv": {"amm": 0.2611, "central-mal": 0.2957, "ag-mal": 0.2820, "ib-mal": 0.1899, "lr": 0.1419,
            "pw-lr": 0.1226, "amm-rank": 0.1083},
}  # fmt: skip
"""The disagreement errors that the paper printed, of its own 3,289,229 users."""
ORDER = ("central-mal", "ag-mal", "ib-mal", "lr", "pw-lr", "amm-rank")
"""Methods from the largest to the smallest error in the paper."""
TABLE_METHODS = ("central-mal", "ib-mal", "lr", "pw-lr", "amm-rank", "amm-rank-plus")


@benchmark("comparison")
def compare_methods_on_world(
    work: Path,
    *,
    users: Users = 266_000,
    variants: Annotated[Sequence[str], Option("Variants of features, with commas between.")] = ("adv",),
    methods: Methods = METHODS,
    min_categories: MinCategories = 1,
) -> None:
    """Print the comparison on a simulated lake; 266,000 users have 100,000 with enough clicks, 532,000 twice as many.

    The page with everything is kept below `work`.
    """
    out = work / f"comparison-{users}-{'-'.join(variants)}"
    shutil.rmtree(out / ".rows", ignore_errors=True)
    with cluster(2) as client:
        site, config = comparison_site(work, users)
        config = count_from(config, min_categories)
        make_lake(client, work / f"comparison-lake-{users}", users=users, days=DAYS)
        started = time.perf_counter()
        evaluation = evaluate_site(
            Night(client, site, config, LAST, _say_seconds(started)),
            variants=variants, methods=methods, n_folds=5, seed=0, truth=None, scratch=out / ".rows",
        )  # fmt: skip
        shutil.rmtree(out / ".rows", ignore_errors=True)
    write_evaluation(out, evaluation)
    print(f"\ncomparison, {evaluation['source']['labelled_users']:,} users with clicks, 5 folds; {describe_machine()}")
    for variant, found in evaluation["variants"].items():
        details = evaluation["details"][variant]
        print(f"  {variant:12} {'ε_dis':>7} {'95 % interval':>17} {'fit s':>8} {'score s':>8}   paper's data")
        for method, row in found.items():
            low, high = details["intervals"][method]["disagreement"]
            printed = PAPER.get(variant, {}).get(method)
            print(
                f"  {method:12} {row['disagreement']['mean']:7.4f} {low:8.4f} –{high:7.4f} {row['fit_seconds']:8.1f}"
                f" {row['score_seconds']:8.1f}   {printed}"
            )
        errors = {name: (row["disagreement"]["mean"], details["standard_errors"][name]) for name, row in found.items()}
        for worse, better in itertools.pairwise(name for name in ORDER if name in errors):
            change, reach = errors[worse][0] - errors[better][0], 1.96 * math.hypot(errors[worse][1], errors[better][1])
            verdict = "holds" if change > reach else "turned round" if change < -reach else "too close to tell"
            print(f"    {worse} > {better}: {verdict} ({change:+.4f} ± {reach:.4f})")
    for name, truth in (evaluation["floor"] or {}).items():
        print(f"  floor, {name}: {truth['disagreement']:.4f}")
    print(f"  page: {out / PAGE}")


@benchmark("comparison-order")
def compare_order(
    work: Path, *, users: Users = 532_000, methods: Methods = METHODS, min_categories: MinCategories = 1
) -> None:
    """Print the comparison in both variants: does the order of the paper's table hold?"""
    compare_methods_on_world(
        work, users=users, variants=("adv", "no-adv"), methods=methods, min_categories=min_categories
    )


@benchmark("comparison-time")
def compare_training_time(work: Path, *, users: Users = 266_000) -> None:
    """Print how long amm-rank takes to be as good as pw-lr: both fitted to the same fold, one after the other.

    C, λ and planes are chosen on tuning users as `comparison` does; epochs are what one pays with.
    """
    scratch = work / "comparison-time"
    shutil.rmtree(scratch, ignore_errors=True)
    with cluster(2) as client:
        site, config = comparison_site(work, users)
        make_lake(client, work / f"comparison-lake-{users}", users=users, days=DAYS)
        known = ingest(Night(client, site, config, LAST))
        features = open_features(training_features(Night(client, site, config, known.date), known).path)
        rows = prepare_features(client, features, "adv", scratch)
    print(f"\ntime to train, one fold of {rows.training(0).n_rows:,} users, one core; {describe_machine()}")
    grid = {}
    for name, epochs in (("pw-lr", (2, 3, 5, 7, 10)), ("amm-rank", (2, 4, 6, 8, 10, 12, 16))):
        tried = [(try_parameters(name, params, rows, 0, 0), params) for params in grid_of(name)]
        best = min(tried, key=lambda trial: trial[0])[1]
        grid[name] = [{**best, "epochs": number} for number in epochs]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in grid}
    for name, trials in grid.items():
        for params in trials:
            results = [run_fold(name, params, rows, 0, 0, False) for _ in range(2)]
            seconds, error = min(result.fit_seconds for result in results), results[0].measures.disagreement
            found[name].append((seconds, error))
            told = ", ".join(f"{key} {value}" for key, value in params.items())
            print(f"  {name:9} {told:48} {seconds:7.1f} s  ε_dis {error:.4f}", flush=True)
    for seconds, error in found["pw-lr"]:
        as_good = [spent for spent, reached in found["amm-rank"] if reached <= error]
        told = f"{min(as_good):.1f} s, {seconds / min(as_good):.1f} times as fast (bar 10)" if as_good else "never"
        print(f"  as good as pw-lr after {seconds:.1f} s ({error:.4f}): amm-rank after {told}")
    shutil.rmtree(scratch, ignore_errors=True)


@benchmark("tables")
def compare_on_tables(
    data: Data, *, sets: Sets | None = None, methods: Methods = TABLE_METHODS, folds: Folds = 5
) -> None:
    """Print Kendall τ of the methods on every table of a folder, parameters chosen inside the training folds."""
    print(f"\nKendall τ, {folds} folds, parameters chosen in training folds; {describe_machine()}")
    print(f"  {'set':11} {'rows':>6} " + " ".join(f"{method:>13}" for method in methods) + "  seconds")
    found = []
    with cluster(2) as client:
        for path in [data / f"{name}.csv" for name in sets] if sets else sorted(data.glob("*.csv")):
            started = time.perf_counter()
            with tempfile.TemporaryDirectory(prefix="ammrank-table-") as scratch:
                evaluation = evaluate_table(
                    client, path, methods=methods, n_folds=folds, seed=0, scratch=Path(scratch), progress=silent
                )
            taus = [evaluation["variants"]["table"][method]["kendall_tau"] for method in methods]
            found.append(taus)
            columns = " ".join(f"{tau:13.3f}" for tau in taus)
            n_rows, seconds = evaluation["source"]["rows"], time.perf_counter() - started
            print(f"  {path.stem:11} {n_rows:6} {columns} {seconds:8.1f}", flush=True)
    print(f"  mean of {len(found):3}       " + " ".join(f"{tau:13.3f}" for tau in np.mean(found, axis=0)))


def comparison_site(work: Path, users: int) -> tuple[Site, Config]:
    """Return the site of an earlier run, which has its features, or a fresh one."""
    folder, lake = work / f"comparison-site-{users}", work / f"comparison-lake-{users}"
    if folder.exists():
        with tempfile.TemporaryDirectory() as elsewhere:
            return Site(folder), site_of(Path(elsewhere) / "site", lake, users)[1]
    return site_of(folder, lake, users)


def _say_seconds(started: float) -> Progress:
    """Return a progress callback that prints a line for every finished stage."""

    def say(stage: str, done: int, total: int) -> None:
        if done == total:
            print(f"  {stage}: {total} tasks, {time.perf_counter() - started:.0f} s so far", flush=True)

    return say

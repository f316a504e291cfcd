"""Time and memory against users, categories and workers, with the slopes of their logarithms."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
from distributed import Client

from ammrank_dask.features.write import write_features
from ammrank_dask.scoring.score import score
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.training.train import train
from benchmarks.command_line import Option, Users, benchmark
from benchmarks.drawing import draw_curves
from benchmarks.measure import cluster, describe_machine, make_lake, site_of
from benchmarks.nights import warm_nights
from benchmarks.paper import FIRST, Usage, run_night, sample
from benchmarks.training import make_rows

DAYS = 60
CATEGORIES = (50, 200, 1_000)
CATEGORY_USERS = 20_000
MOST_SLOPE = 1.05
LEAST_SECONDS = 1.0
"""CPU seconds of a stage from which its slope means something."""
KINDS = ("cpu", "seconds", "peak")


@benchmark("growth")
def measure_growth(
    work: Path,
    *,
    users: Users = 100_000,
    least: Annotated[int, Option("Users of the smallest night.", click.IntRange(min=1_000))] = 10_000,
    categories: Annotated[Sequence[int], Option("Numbers of categories, with commas between.")] = CATEGORIES,
) -> None:
    """Print what a night uses against users (up to a number) and workers, and training and scoring against categories.

    Slopes are by CPU seconds and by the clock; where other programs run, only those by CPU seconds say something.
    Writes `growth.json` and `growth.svg`.
    """
    sizes = sizes_up_to(users, least=least)
    if len(sizes) < 2:
        raise BadInput(f"users must be above {least:,}, of the smallest night, got {users:,}: a slope needs two sizes")
    with cluster(2) as client:
        warm_nights(client, work)
    by_users = {size: _measure_night(work, size, 2) for size in sizes}
    middle = sorted(by_users)[len(by_users) // 2]
    by_workers = {1: _measure_night(work, middle, 1), 2: by_users[middle]}
    by_categories = {}
    with cluster(2) as client:
        _measure_categories(client, work, categories[0])  # compiles
        for number in categories:
            by_categories[number] = _measure_categories(client, work, number)
    results = {
        "machine": describe_machine(),
        "users": by_users,
        "categories": by_categories,
        "workers": by_workers,
        "workers_users": middle,
    }
    (work / "growth.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    curves = [
        (f"{title}, slope {slope_of(by_users, kind):.2f}", [(n, found[kind] / unit) for n, found in by_users.items()])
        for kind, title, unit in (("cpu", "CPU s", 1), ("seconds", "seconds", 1), ("peak", "peak MiB", 2**20))
    ]
    picture = draw_curves(
        curves, title=f"A first night of {DAYS} days against its users, 2 workers", x="users", y="",
        note=describe_machine(),
    )  # fmt: skip
    (work / "growth.svg").write_text(str(picture) + "\n", encoding="utf-8")
    _print(results)


def sizes_up_to(users: int, *, least: int) -> list[int]:
    """Return `least` users and more, 1 and 3 times the powers of ten, up to a number.

    Examples
    --------
    >>> sizes_up_to(100_000, least=10_000)
    [10000, 30000, 100000]
    """
    steps = [number * 10**power for power in range(3, 10) for number in (1, 3)]
    return sorted({min(least, users), *(step for step in steps if least < step < users), users})


def slope_of(found: Mapping[int, Mapping[str, Any]], kind: str) -> float:
    """Return how a figure grows: the slope of its logarithm against that of the size, by least squares.

    Examples
    --------
    >>> round(slope_of({10: {"cpu": 2.0}, 100: {"cpu": 20.0}}, "cpu"), 6)
    1.0
    """
    x, y = np.log(list(found)), np.log([max(1e-9, figures[kind]) for figures in found.values()])
    return float(np.polyfit(x, y, 1)[0])


def _measure_night(work: Path, users: int, workers: int) -> dict[str, Any]:
    """Run the first night of a site with its history, and return what it used."""
    lake, folder = work / f"growth-{users}", work / "growth-site"
    shutil.rmtree(folder, ignore_errors=True)
    with cluster(2) as client:
        make_lake(client, lake, users=users, days=DAYS)
    with cluster(workers) as client:
        site, config = site_of(folder, lake, users)
        meter = run_night(client, site, config, FIRST + dt.timedelta(DAYS - 1))
    shutil.rmtree(folder)
    figures = _figures(meter.total())
    print(f"  measured {users:9,} users, {workers} workers: {_row(figures)}", flush=True)
    return figures | {f"stage {name}": usage.cpu for name, usage in meter.stages.items()}


def _measure_categories(client: Client, work: Path, categories: int) -> dict[str, Any]:
    """Train and score random rows of so many categories, and return what that used."""
    X, rankings = make_rows(CATEGORY_USERS, columns=10 * categories + 11, categories=categories, at_once=1_000)
    names = [f"column {number}" for number in range(X.shape[1])]
    path, out = work / "growth-features", work / "growth-quals"
    features = write_features(path, X, np.arange(len(rankings)), names, rankings)
    found = {}
    begin = first = sample()
    model = train(features, client=client, shards=8, epochs=2)
    for name in ("train", "score"):
        if name == "score":
            score(model, features, out, client=client, k=10)
        end, usage = sample(), Usage()
        usage.add(begin, end)
        found[f"stage {name}"] = usage.cpu
        begin = end
    whole = Usage()
    whole.add(first, begin)
    for folder in (path, out):
        shutil.rmtree(folder)
    figures = _figures(whole)
    print(f"  measured {categories:9,} categories: {_row(figures)}", flush=True)
    return figures | found


def _figures(usage: Usage) -> dict[str, Any]:
    return {"cpu": usage.cpu, "seconds": usage.seconds, "peak": usage.peak}


def _print(results: Mapping[str, Any]) -> None:
    print(f"\ngrowth; {results['machine']}")
    _print_table(f"users, first night of {DAYS} days, 2 workers", results["users"], MOST_SLOPE)
    _print_table(
        f"categories, 2 epochs and scoring of {CATEGORY_USERS:,} users, 2 workers", results["categories"], None
    )
    one, two = results["workers"][1], results["workers"][2]
    print(f"  workers, first night of {results['workers_users']:,} users")
    for number, figures in results["workers"].items():
        print(f"    {number:12,} {_row(figures)}")
    faster, more = one["seconds"] / two["seconds"], two["cpu"] / one["cpu"]
    print(f"    2 workers are {faster:.2f} times as fast, at {more:.2f} times the CPU")


def _print_table(title: str, found: Mapping[int, Mapping[str, Any]], most: float | None) -> None:
    print(f"  {title}")
    for number, figures in found.items():
        print(f"    {number:12,} {_row(figures)}")
    slopes = {kind: slope_of(found, kind) for kind in KINDS}
    print(f"    {'slope':>12} {slopes['cpu']:9.2f}       {slopes['seconds']:9.2f}   {slopes['peak']:7.2f}")
    largest, slopes = last_slopes(found)
    for name, slope in slopes.items():
        verdict = "" if most is None else " DEFECT" if slope > most else " ok"
        unit = "s by the clock" if name == "seconds" else "CPU s"
        title = name.removeprefix("stage ") if name.startswith("stage ") else "all of it"
        print(f"      {title:20} {found[largest][name]:8.1f} {unit}, last slope {slope:5.2f}{verdict}")


def last_slopes(found: Mapping[int, Mapping[str, Any]]) -> tuple[int, dict[str, float]]:
    """Return the largest size, and how the whole and each stage grow to it from the next one below.

    What is the same at every size hides growth at smaller ones. A stage of less than `LEAST_SECONDS` is left out.

    Examples
    --------
    >>> last_slopes({10: {"cpu": 5.0, "seconds": 3.0}, 100: {"cpu": 50.0, "seconds": 30.0, "stage new": 0.1}})
    (100, {'cpu': 1.0, 'seconds': 1.0})
    """
    before, largest = sorted(found)[-2:]
    stages = [name for name in found[before] if name.startswith("stage ") and name in found[largest]]
    names = [name for name in ("cpu", "seconds", *stages) if found[largest][name] >= LEAST_SECONDS]
    return largest, {name: round(slope_of({n: found[n] for n in (before, largest)}, name), 6) for name in names}


def _row(figures: Mapping[str, Any]) -> str:
    return f"{figures['cpu']:9.1f} CPU s {figures['seconds']:9.1f} s {figures['peak'] / 2**20:7.0f} MiB"

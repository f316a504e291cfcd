"""Whole nights: one more night against the first one, and a site that is larger than the memory of its workers."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from pathlib import Path
from typing import Any

from distributed import Client

from ammrank_dask.storage.site.run_log import read_attempt
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly
from benchmarks.command_line import Days, History, Memory, Users, Workers, benchmark
from benchmarks.measure import cluster, cpu_seconds, describe_machine, make_lake, site_of, worker_facts

FIRST = dt.date(2026, 1, 5)


@benchmark("nights")
def compare_nights(work: Path, *, users: Users = 200_000, history: History = 60, workers: Workers = 2) -> None:
    """Print what a night without training costs after one that filled in the history and trained, stage by stage."""
    with cluster(workers) as client:
        lake = work / f"nights-{users}"
        events = make_lake(client, lake, users=users, days=history + 1)
        warm_nights(client, work)
        site, config = _fresh_site(work / "nights-site", lake, users)
        last = FIRST + dt.timedelta(history - 1)
        attempts, cpu = [], []
        for number in range(2):
            before = cpu_seconds()
            attempts.append(_run(client, site, config, last + dt.timedelta(number)))
            cpu.append(cpu_seconds() - before)
        shutil.rmtree(site.path)
    first, second = attempts
    print(f"\nnights on {history} days, {users:,} users, {events:,} events, {workers} workers; {describe_machine()}")
    seconds = [{stage["name"]: stage["seconds"] for stage in attempt["stages"]} for attempt in attempts]
    for stage in seconds[0]:
        print(f"  {stage:10} {seconds[0][stage]:8.2f} s   {seconds[1].get(stage, 0.0):8.2f} s")
    print(f"  {'in all':10} {first['seconds']:8.2f} s   {second['seconds']:8.2f} s")
    print(f"  {'CPU':10} {cpu[0]:8.2f} s   {cpu[1]:8.2f} s")
    ratios = f"{second['seconds'] / first['seconds']:.3f} by the clock, {cpu[1] / cpu[0]:.3f} of CPU time"
    print(f"  night after / first night  {ratios} (bar 0.1)")


@benchmark("large-site")
def run_large_site(work: Path, *, users: Users = 5_000_000, days: Days = 60, memory: Memory = "1GiB") -> None:
    """Print the size of a site, and the peak memory of two small workers through a whole night on it."""
    with cluster(2) as client:
        lake = work / f"large-{users}"
        events = make_lake(client, lake, users=users, days=days)
    site, config = _fresh_site(work / "large-site", lake, users)
    with cluster(2, memory) as client:
        before = worker_facts(client)["pids"]
        attempt = _run(client, site, config, FIRST + dt.timedelta(days - 1))
        after = worker_facts(client)
    size = sum((Path(root) / name).stat().st_size for root, _, names in os.walk(site.path) for name in names)
    print(f"\n{users:,} users, {days} days, {events:,} events, 2 workers of {memory}; {describe_machine()}")
    for stage in attempt["stages"]:
        print(f"  {stage['name']:10} {stage['seconds']:8.1f} s")
    print(f"  the site has {size / 2**30:.1f} GiB; peak of a worker {after['peak_mib']:.0f} MiB")
    print(f"  workers killed: {len(set(before) - set(after['pids']))}, bytes spilled: {after['spilled']:,}")
    shutil.rmtree(site.path)


def _fresh_site(folder: Path, lake: Path, users: int) -> tuple[Site, Config]:
    """Return a new site in place of one that an interrupted run left."""
    shutil.rmtree(folder, ignore_errors=True)
    return site_of(folder, lake, users)


def _run(client: Client, site: Site, config: Any, date: dt.date) -> dict[str, Any]:
    nightly(Night(client, site, config, date))
    attempt = read_attempt(site.run_folder(date))
    assert attempt is not None
    return attempt


def warm_nights(client: Client, work: Path, model: str | None = None) -> None:
    """Compile the kernels on every worker, so that the clock sees work only."""
    lake = work / "nights-warm"
    make_lake(client, lake, users=2_000, days=6)
    site, config = _fresh_site(work / "nights-warm-site", lake, 2_000)
    config = config.model_copy(
        update={
            "label": config.label.model_copy(update={"days": 3}),
            "features": config.features.model_copy(update={"min_days": 1}),
            "train": config.train.model_copy(update={"model": model or config.train.model}),
        }
    )
    for number in (4, 5):
        nightly(Night(client, site, config, FIRST + dt.timedelta(number)))
    shutil.rmtree(site.path)

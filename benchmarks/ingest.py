"""Ingest of one large day against a plain read of its columns, and one more night against the back-fill."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from pathlib import Path
from typing import Annotated

import pyarrow.parquet as pq
from distributed import Client

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.command_line import History, Option, Users, Workers, benchmark
from benchmarks.measure import best_of, cluster, cpu_seconds, describe_machine, make_lake, site_of

FIRST = dt.date(2026, 1, 5)
COLUMNS = ["user_id", "group", "category", "timestamp"]


@benchmark("day", quick=True)
def compare_day(
    work: Path,
    *,
    users: Users = 3_289_229,
    activity: Annotated[float, Option("How often users do something, 1 being usual.")] = 2.0,
    workers: Workers = 2,
) -> None:
    """Print what a day of more than 10 M events costs per core, in units of a single-threaded `read_table`."""
    with cluster(workers) as client:
        lake = work / f"day-{users}"
        make_lake(client, lake, users=users, days=1, activity=activity)
        files = sorted((lake / "events" / f"date={FIRST}").glob("*.parquet"))
        rows = sum(pq.read_metadata(file).num_rows for file in files)
        _warm(client, work)
        reads, dictionaries, ingests, wholes = [], [], [], []
        read_cpu, ingest_cpu = [], []
        for number in range(4):  # in turns, so that all meet the same noise
            spent = cpu_seconds()
            reads.append(best_of(1, lambda: [pq.read_table(f, columns=COLUMNS, use_threads=False) for f in files]))
            read_cpu.append(cpu_seconds() - spent)
            dictionaries.append(best_of(1, lambda: [_read_dictionaries(f) for f in files]))
            site, config = site_of(work / f"day-site-{number}", lake, users)
            config = config.model_copy(update={"lake": config.lake.model_copy(update={"users": None})})
            partial, whole, spent = _time_ingest(client, site, config)
            ingests.append(partial)
            wholes.append(whole)
            ingest_cpu.append(spent)
    print(f"\ningest of one day, {rows:,} events, {users:,} users, {workers} workers; {describe_machine()}")
    for name, seconds in (
        ("read_table, one thread, same columns", min(reads)),
        ("the same with dictionaries", min(dictionaries)),
        ("ingest of the day, seconds × cores", min(ingests) * workers),
        ("and folded into the state", min(wholes) * workers),
    ):
        print(f"  {name:38} {seconds:6.2f} s  {seconds / rows * 1e9:5.0f} ns an event")
    print(f"  ingest per core / read_table           {min(ingests) * workers / min(reads):6.2f} (bar 3)")
    print(f"  the same by CPU time                   {min(ingest_cpu) / min(read_cpu):6.2f}")
    for number in range(4):
        shutil.rmtree(work / f"day-site-{number}")


def _time_ingest(client: Client, site: Site, config: Config) -> tuple[float, float, float]:
    """Return the seconds until the partials of the day are durable, until the state is, and the CPU of the first."""
    started, spent = time.perf_counter(), cpu_seconds()
    marks = []

    def notice(stage: str, done: int, total: int) -> None:
        if stage == "fold" and not done:
            marks.append((time.perf_counter() - started, cpu_seconds() - spent))

    ingest(Night(client, site, config, FIRST, notice))
    return marks[0][0], time.perf_counter() - started, marks[0][1]


@benchmark("night", quick=True)
def compare_night(work: Path, *, users: Users = 100_000, history: History = 90, workers: Workers = 2) -> None:
    """Print what one more night costs on a history, against the back-fill of that history."""
    with cluster(workers) as client:
        lake = work / f"history-{users}"
        events = make_lake(client, lake, users=users, days=history + 1)
        _warm(client, work)
        site, config = site_of(work / "night-site", lake, users)
        last = FIRST + dt.timedelta(history - 1)
        started = time.perf_counter()
        known = ingest(Night(client, site, config, last))
        fill = time.perf_counter() - started
        site.publish(last, known.roles)
        night = best_of(1, lambda: ingest(Night(client, site, config, last + dt.timedelta(1))))
        shutil.rmtree(site.path)
    print(f"\none more night on {history} days, {users:,} users, {events:,} events; {describe_machine()}")
    print(f"  back-fill of {history} days   {fill:6.2f} s")
    print(f"  the night after         {night:6.2f} s")
    print(f"  night / back-fill       {night / fill:6.3f} (bar 0.1)")


def _read_dictionaries(file: Path) -> None:
    pq.read_table(file, columns=COLUMNS, use_threads=False, read_dictionary=["group", "category"])


def _warm(client: Client, work: Path) -> None:
    """Compile the kernels on every worker, so that the clock sees work only."""
    lake = work / "warm"
    make_lake(client, lake, users=2_000, days=3)
    for number in range(2):
        site, config = site_of(work / f"warm-site-{number}", lake, 2_000)
        config = config.model_copy(update={"label": config.label.model_copy(update={"days": 1})})
        ingest(Night(client, site, config, FIRST + dt.timedelta(2)))
        shutil.rmtree(site.path)

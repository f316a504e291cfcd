"""A million users on two workers of 1 GiB: simulate, ingest, features, with the peak of memory."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from pathlib import Path

from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import score_features, training_features
from ammrank_dask.workflows.stages.ingest import ingest
from benchmarks.command_line import Days, Memory, Users, benchmark
from benchmarks.measure import cluster, describe_machine, make_lake, site_of, worker_facts


@benchmark("ingest-million")
def ingest_million(work: Path, *, users: Users = 1_000_000, days: Days = 60, memory: Memory = "1GiB") -> None:
    """Print seconds and peak memory of every stage; a worker that was killed or spilled is told."""
    last = dt.date(2026, 1, 5) + dt.timedelta(days - 1)
    lake = work / f"ingest-{users}"
    with cluster(2, memory) as client:
        before = worker_facts(client)["pids"]
        rows = []

        def step(name, function):  # type: ignore[no-untyped-def]
            started = time.perf_counter()
            result = function()
            rows.append((name, time.perf_counter() - started, worker_facts(client)["peak_mib"]))
            return result

        events = step("simulate", lambda: make_lake(client, lake, users=users, days=days))
        site, config = site_of(work / "ingest-site", lake, users)
        known = step("ingest", lambda: ingest(Night(client, site, config, last)))
        features = step("features of all users", lambda: score_features(Night(client, site, config, known.date), known))
        training = step(
            "features with rankings", lambda: training_features(Night(client, site, config, known.date), known)
        )
        after = worker_facts(client)
    print(f"\n{users:,} users, {days} days, {events:,} events, 2 workers of {memory}; {describe_machine()}")
    for name, seconds, peak in rows:
        print(f"  {name:24} {seconds:7.1f} s   peak of a worker so far {peak:5.0f} MiB")
    print(f"  {features.n_rows:,} rows of features, {training.n_rows:,} with rankings")
    print(f"  workers killed: {len(set(before) - set(after['pids']))}, bytes spilled: {after['spilled']:,}")
    shutil.rmtree(site.path)

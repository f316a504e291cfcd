"""`ammrank plan` held against a real site of four times the users."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.operations.plan import describe_plan
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly
from benchmarks.command_line import Users, benchmark
from benchmarks.measure import cluster, describe_machine, make_lake, site_of

FIRST, DAYS, FURTHER = dt.date(2026, 1, 5), 45, 3
"""The first day of the lakes, days before the first night, and nights after it."""


@benchmark("plan")
def compare_plan(work: Path, *, users: Users = 240_000) -> None:
    """Print what the nights of a quarter of the users, scaled, say about the nights of all, beside what these took.

    Every night has new workers, as where commands start their own. Seconds want a quiet machine.
    """
    small, large = (run_nights(work, size) for size in (users // 4, users))
    print(f"\nplan for {users:,} users by nights of {users // 4:,}, 2 workers; {describe_machine()}")
    planned = describe_plan(*small, users=users)["nights"]
    for kind, measured in describe_plan(*large)["nights"].items():
        for figure in ("seconds", "bytes"):
            ratio = planned[kind][figure] / max(1e-9, measured[figure])
            figures = f"planned {planned[kind][figure]:14,.1f} measured {measured[figure]:14,.1f}"
            print(f"  {kind:14} {figure:8} {figures} ratio {ratio:.2f}")


def run_nights(work: Path, users: int) -> tuple[Site, Config]:
    """Run a first night and some more, and return the site with its config."""
    lake, folder = work / f"plan-lake-{users}", work / f"plan-site-{users}"
    shutil.rmtree(folder, ignore_errors=True)
    with cluster(2) as client:
        make_lake(client, lake, users=users, days=DAYS + FURTHER)
    site, config = site_of(folder, lake, users)
    for number in range(1 + FURTHER):
        with cluster(2) as client:
            nightly(Night(client, site, config, FIRST + dt.timedelta(DAYS - 1 + number)))
    return site, config

"""`ammrank plan` held against real nights at three sizes it was not calibrated on."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

from distributed import Client

from ammrank_dask.sizing import Workload
from ammrank_dask.workflows.lake_init.guess import choose_partitions
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.stages.plan import FURTHER_NIGHTS, USUAL_EVENTS, calibrate, describe_plan, measure_nights
from benchmarks.command_line import Users, benchmark
from benchmarks.measure import cluster, describe_machine, make_lake, worker_facts

DAYS = 45
BARS = {"seconds": 0.25, "disk": 0.15, "memory": 0.15}
"""By how much of what was measured a plan may be off."""


@benchmark("plan")
def compare_plan(work: Path, *, users: Users = 480_000) -> None:
    """Print what was planned beside what was measured, for a sixteenth, a quarter and all of the users.

    Seconds want a quiet machine; memory, disk, files and tasks do not depend on what else runs.
    """
    config = Config()
    with cluster(2) as client:
        folder = _fresh(work / "plan")
        folder.mkdir()
        load = Workload(users, choose_partitions(users), 50, DAYS, USUAL_EVENTS)
        calibration = calibrate(client, folder, load, config, lambda stage, done, total: None, cluster)
    print(f"\nplan against nights of {DAYS} days, 2 workers; {describe_machine()}")
    for size in (users // 16, users // 4, users):
        load = Workload(size, choose_partitions(size), 50, DAYS, USUAL_EVENTS)
        lake = work / f"plan-lake-{size}-{DAYS + FURTHER_NIGHTS}"
        with cluster(2) as client:
            make_lake(client, lake, users=size, days=DAYS + FURTHER_NIGHTS)
        peaks: list[float] = []
        nights = functools.partial(_open_watched, peaks)
        measured = measure_nights(nights, _fresh(work / f"plan-site-{size}"), lake, load.partitions, config, DAYS)
        peak = max(peaks)
        planned = describe_plan(calibration, load, config, workers=2, memory_limit=None, free=1)
        print(f"  {size:,} users in {load.partitions:,} partitions")
        print(compare("both nights", "memory", planned["memory"] / 2**20, peak), flush=True)
        for name, night in zip(("first night", "further night"), measured, strict=True):
            real = {"seconds": sum(night["seconds"].values()), "disk": night["bytes"]} | {
                figure: night[figure] for figure in ("files", "tasks")
            }
            for figure, value in real.items():
                print(compare(name, figure, planned[name][figure], value), flush=True)


@contextlib.contextmanager
def _open_watched(peaks: list[float]) -> Iterator[Client]:
    """Open the cluster of a night, and note the peak of its workers at its end."""
    with cluster(2) as client:
        yield client
        peaks.append(worker_facts(client)["peak_mib"])


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def compare(name: str, figure: str, planned: float, measured: float) -> str:
    """Return a line of what was planned and what came, and whether it is within the bar, where there is one.

    Examples
    --------
    >>> compare("first night", "disk", 118.0, 100.0)
    '    first night    disk     planned            118.0 measured            100.0 ratio 1.18 MISSED (15 %)'
    """
    ratio = planned / max(1e-9, measured)
    verdict = ""
    if figure in BARS:
        verdict = f" {'ok' if abs(ratio - 1) <= BARS[figure] else 'MISSED'} ({BARS[figure]:.0%})".replace("%", " %")
    return f"    {name:14} {figure:8} planned {planned:16,.1f} measured {measured:16,.1f} ratio {ratio:.2f}{verdict}"

"""`ammrank plan` held against real nights at three sizes it was not calibrated on."""

from __future__ import annotations

from pathlib import Path

from ammrank_dask.sizing import Workload
from ammrank_dask.workflows.lake_init.guess import choose_partitions
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.stages.plan import USUAL_EVENTS, calibrate, describe_plan, measure_nights
from benchmarks.command_line import Users, benchmark
from benchmarks.measure import cluster, describe_machine, make_lake, worker_facts

DAYS = 45


@benchmark("plan")
def compare_plan(work: Path, *, users: Users = 120_000) -> None:
    """Print what was planned beside what was measured, for a quarter, a half and all of the users."""
    config = Config()
    with cluster(2) as client:
        folder = work / "plan"
        folder.mkdir()
        load = Workload(users, choose_partitions(users), 50, DAYS, USUAL_EVENTS)
        calibration = calibrate(client, folder, load, config, lambda stage, done, total: None)
    print(f"\nplan against nights of {DAYS} days, 2 workers; {describe_machine()}")
    for size in (users // 4, users // 2, users):
        load = Workload(size, choose_partitions(size), 50, DAYS, USUAL_EVENTS)
        with cluster(2) as client:
            lake = work / f"plan-lake-{size}"
            make_lake(client, lake, users=size, days=DAYS + 1)
            measured = measure_nights(client, work / f"plan-site-{size}", lake, load.partitions, config, DAYS)
            peak = worker_facts(client)["peak_mib"]
        planned = describe_plan(calibration, load, config, workers=2, memory_limit=None, free=1)
        print(f"  {size:,} users: memory planned {planned['memory'] / 2**20:,.0f} MiB, measured {peak:,.0f} MiB")
        for name, night in zip(("first night", "further night"), measured, strict=True):
            real = {"seconds": sum(night["seconds"].values()), "disk": night["bytes"]} | {
                figure: night[figure] for figure in ("files", "tasks")
            }
            for figure, value in real.items():
                ratio = planned[name][figure] / max(1e-9, value)
                figures = f"planned {planned[name][figure]:16,.1f} measured {value:16,.1f} ratio {ratio:.2f}"
                print(f"    {name:14} {figure:8} {figures}", flush=True)

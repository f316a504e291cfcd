"""What TLS costs a night: the same night with it, as by default, and without, in turns."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

from ammrank_dask.workflows.cluster.cluster_file import BUILT_IN
from ammrank_dask.workflows.session.config import write_config
from benchmarks.command_line import Users, benchmark
from benchmarks.measure import children_cpu, cluster, describe_machine, make_lake, site_of

FIRST, DAYS, ROUNDS = dt.date(2026, 1, 5), 45, 3
SECURITY = {"without TLS": "none", "with TLS": "temporary"}
BAR = 0.05


@benchmark("tls")
def compare_tls(work: Path, *, users: Users = 50_000) -> None:
    """Print CPU seconds and seconds of a first night, the best of several with and without TLS, and their ratios.

    Each is the command itself with workers of its own, so that the certificates it makes are in it, too.
    """
    lake = work / f"tls-{users}"
    with cluster(2) as client:
        events = make_lake(client, lake, users=users, days=DAYS)
    _run_night(work, lake, users, "none")  # compiles the kernels
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in SECURITY}
    for _ in range(ROUNDS):
        for name, security in SECURITY.items():
            measured[name].append(_run_night(work, lake, users, security))
    print(f"\na first night of {users:,} users, {events:,} events, best of {ROUNDS}; {describe_machine()}")
    best = {name: tuple(map(min, zip(*nights, strict=True))) for name, nights in measured.items()}
    for name, (cpu, seconds) in best.items():
        print(f"  {name:12} {cpu:7.2f} CPU s  {seconds:7.2f} s")
    plain, tls = best.values()
    more = [one / other - 1 for one, other in zip(tls, plain, strict=True)]
    print(f"  TLS costs {more[0]:+.1%} of the CPU and {more[1]:+.1%} of the time (bar {BAR:.0%})")


def _run_night(work: Path, lake: Path, users: int, security: str) -> tuple[float, float]:
    """Run the first night of a fresh site; return its CPU seconds, those of workers included, and its seconds."""
    shutil.rmtree(work / "tls-site", ignore_errors=True)
    site, config = site_of(work / "tls-site", lake, users)
    site.config_path.write_text(write_config(config), encoding="utf-8")
    settings = yaml.safe_load(BUILT_IN.read_text(encoding="utf-8")) | {"security": security}
    settings["kwargs"]["dashboard_address"] = "127.0.0.1:0"
    (site.path / "cluster.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    date = FIRST + dt.timedelta(DAYS - 1)
    command = [sys.executable, "-m", "ammrank_dask.workflows.nightly", str(site.path), "--date", str(date), "--quiet"]
    before, started = children_cpu(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    shutil.rmtree(site.path)
    return children_cpu() - before, seconds

"""What TLS costs a night: the same night with it, as by default, and without, in pairs."""

from __future__ import annotations

import datetime as dt
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import yaml

from ammrank_dask.workflows.cluster.cluster_file import BUILT_IN
from ammrank_dask.workflows.session.config import write_config
from benchmarks import socket_cpu
from benchmarks.command_line import Option, Users, benchmark
from benchmarks.measure import children_cpu, cluster, describe_machine, make_lake, site_of

FIRST, DAYS = dt.date(2026, 1, 5), 45
BAR = 0.05
PARTS = (
    socket_cpu.MOVING,
    socket_cpu.HANDSHAKES,
    socket_cpu.CONTEXTS,
    socket_cpu.CERTIFICATES,
    socket_cpu.IMPORTS,
)
Pairs = Annotated[int, Option("Nights with TLS, and as many without.", click.IntRange(min=1))]


@dataclass(frozen=True)
class _Used:
    """What one night used: CPU seconds, seconds, and of the CPU seconds those for its connections, by part."""

    cpu: float
    seconds: float
    parts: dict[str, float]
    counts: dict[str, int]


@benchmark("tls")
def compare_tls(work: Path, *, users: Users = 50_000, pairs: Pairs = 9) -> None:
    """Print what TLS adds to a first night, as the median of pairs of nights with the interval it is in.

    Each night is the command itself with workers of its own, so that the certificates it makes are in it, too. A whole
    night wobbles by more than TLS costs, so what its connections take is counted inside of the same nights as well.
    """
    lake = work / f"tls-{users}"
    with cluster(2) as client:
        events = make_lake(client, lake, users=users, days=DAYS)
    _run_night(work, lake, users, "none")  # compiles the kernels
    plain, tls = [], []
    for number in range(pairs):
        # Who is first changes, so that a machine that gets slower, or faster, favours neither.
        for security in ("none", "temporary") if number % 2 else ("temporary", "none"):
            (plain if security == "none" else tls).append(_run_night(work, lake, users, security))
    print(f"\na first night of {users:,} users, {events:,} events, {pairs} pairs of nights; {describe_machine()}")
    _print_whole(plain, tls)
    _print_parts(plain, tls)


def _print_whole(plain: Sequence[_Used], tls: Sequence[_Used]) -> None:
    for name, nights in (("without TLS", plain), ("with TLS", tls)):
        cpu, seconds = statistics.median(n.cpu for n in nights), statistics.median(n.seconds for n in nights)
        print(f"  {name:12} {cpu:7.2f} CPU s  {seconds:7.2f} s")
    for what in ("cpu", "seconds"):
        more = [getattr(b, what) / getattr(a, what) - 1 for a, b in zip(plain, tls, strict=True)]
        name = "CPU" if what == "cpu" else "time"
        print(f"  whole nights: TLS adds {_say_median(more)} of the {name} (bar {100 * BAR:.0f} %)")


def _print_parts(plain: Sequence[_Used], tls: Sequence[_Used]) -> None:
    """Print what the connections took: this does not see what encryption does to the caches of other code."""
    print("  CPU seconds of its connections, medians of command and workers:")
    for part in PARTS:
        before, after = (statistics.median(night.parts[part] for night in nights) for nights in (plain, tls))
        print(f"    {part:14} {before:6.3f} without, {after:6.3f} with")
    more, fixed = [], []
    for a, b in zip(plain, tls, strict=True):
        more.append((_tls_seconds(b) - a.parts[socket_cpu.MOVING]) / a.cpu)
        fixed.append((_tls_seconds(b) - b.parts[socket_cpu.MOVING]) / a.cpu)
    counts = {name: statistics.median(night.counts[name] for night in tls) for name in tls[0].counts}
    print(
        f"    {counts['connections'] / 2:.0f} connections, {counts['messages']:,.0f} messages,"
        f" {counts['bytes'] / 2**20:.1f} MiB"
    )
    print(f"  counted at its connections: TLS adds {_say_median(more)} of the CPU (bar {100 * BAR:.0f} %)")
    print(f"    of that at the start: {_say_median(fixed)}")


def _tls_seconds(night: _Used) -> float:
    return sum(night.parts.values())


def _say_median(values: Sequence[float]) -> str:
    """Return the median of differences with its interval, which needs no assumption but that pairs are alike.

    Examples
    --------
    >>> _say_median([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09])
    '+5.0 % (96 %: +2.0 % to +8.0 %)'
    >>> _say_median([0.01, 0.03])
    '+2.0 % (50 %: +1.0 % to +3.0 %)'
    """
    rank, sure = _interval(len(values))
    found = sorted(values)
    middle, low, high = (f"{100 * v:+.1f} %" for v in (statistics.median(found), found[rank], found[-1 - rank]))
    return f"{middle} ({sure:.0%}: {low} to {high})".replace("%:", " %:")


def _interval(n: int) -> tuple[int, float]:
    """Return how many values to leave out on both sides so that the median is between the others with 95 %, or nearly.

    Examples
    --------
    >>> _interval(6)
    (0, 0.96875)
    """
    best = (0, 1 - 2 / 2**n)
    outside = 0.0
    for rank in range(n // 2):
        outside += math.comb(n, rank) / 2**n
        if 1 - 2 * outside >= 0.95:
            best = (rank, 1 - 2 * outside)
    return best


def _run_night(work: Path, lake: Path, users: int, security: str) -> _Used:
    """Run the first night of a fresh site; return its CPU seconds, those of workers included, and its seconds."""
    shutil.rmtree(work / "tls-site", ignore_errors=True)
    site, config = site_of(work / "tls-site", lake, users)
    site.config_path.write_text(write_config(config), encoding="utf-8")
    settings: dict[str, Any] = yaml.safe_load(BUILT_IN.read_text(encoding="utf-8")) | {"security": security}
    settings["kwargs"]["dashboard_address"] = "127.0.0.1:0"
    settings["dask"]["distributed.worker.preload"] = ["benchmarks.socket_cpu"]
    (site.path / "cluster.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    date = FIRST + dt.timedelta(DAYS - 1)
    night = ["ammrank_dask.workflows.nightly", str(site.path), "--date", str(date), "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        before, started = children_cpu(), time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "benchmarks.socket_cpu", *night],
            env=os.environ | {socket_cpu.FOLDER: folder}, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        cpu, seconds = children_cpu() - before, time.perf_counter() - started
        parts, counts = socket_cpu.read_counts(Path(folder))
    shutil.rmtree(site.path)
    return _Used(cpu, seconds, {part: parts[part] for part in PARTS}, dict(counts))

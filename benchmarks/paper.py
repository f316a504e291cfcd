"""A night of the paper's size, stage by stage: seconds, CPU, bytes, memory, and the bound each stage runs against."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
from distributed import Client
from markupsafe import Markup

from ammrank_dask.model.saved import load_model
from ammrank_dask.report.svg import tag
from ammrank_dask.storage.objects.atomic import digest_file
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.groups import encode_group
from ammrank_dask.storage.store.manifests import FeaturesManifest
from ammrank_dask.storage.store.registry import FEATURES
from ammrank_dask.storage.store.runs import VERSIONED, open_run, version_of
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly
from benchmarks.command_line import Days, Memory, Model, Users, benchmark
from benchmarks.measure import best_cpu_of, cluster, describe_machine, make_lake, site_of
from benchmarks.nights import warm_nights

USERS = 3_289_229
FIRST = dt.date(2026, 1, 5)
STEPS = ("scan", "ingest-read", "ingest-collect", "fold")
"""Steps of ingest that have a row of their own."""
INGEST = ("ingest", *STEPS)
STORED = ("fold", "features", "training_features")
FORGOTTEN_AFTER = 61.0
"""Seconds after which ext4 gives the number of a removed file to another."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """What this process and its workers used: CPU seconds, bytes of their reads and writes, and the clock."""

    seconds: float = 0.0
    user: float = 0.0
    system: float = 0.0
    read: int = 0
    written: int = 0
    peak: int = 0

    def add(self, begin: Usage, end: Usage) -> None:
        """Add what was used between two samples."""
        self.seconds += end.seconds - begin.seconds
        self.user += end.user - begin.user
        self.system += end.system - begin.system
        self.read += end.read - begin.read
        self.written += end.written - begin.written
        self.peak = max(self.peak, end.peak)

    @property
    def cpu(self) -> float:
        """CPU seconds."""
        return self.user + self.system


def sample() -> Usage:
    """Return what was used so far, and the peak memory of a process since the last sample."""
    total = Usage(time.perf_counter())
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        folder = Path("/proc") / str(process.pid)
        try:
            times = (folder / "stat").read_text().rpartition(")")[2].split()
            counts = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
            status = (folder / "status").read_text().splitlines()
            (folder / "clear_refs").write_text("5")  # the peak begins anew
        except OSError:  # a process that has just ended
            continue
        total.user += int(times[11]) / TICKS
        total.system += int(times[12]) / TICKS
        total.read += int(counts["rchar"])
        total.written += int(counts["wchar"])
        peak = next((line for line in status if line.startswith("VmHWM")), "VmHWM: 0")
        total.peak = max(total.peak, int(peak.split()[1]) * 1024)
    return total


class StageMeter(logging.Handler):
    """Says what every stage of a night used: listens to the progress of its tasks and to its log."""

    def __init__(self) -> None:
        super().__init__()
        self.stages: dict[str, Usage] = {}
        self.step: str | None = None
        self.begin = self.first = sample()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Take in the progress of tasks."""
        if stage in STEPS and done in (0, total):
            self._close("ingest")
            self.step = stage if done == 0 else None

    def emit(self, record: logging.LogRecord) -> None:
        """Take in the end of a stage."""
        if record.msg.startswith("stage "):
            self._close(str(record.args[0]))  # type: ignore[index]

    def _close(self, stage: str) -> None:
        now = sample()
        self.stages.setdefault(self.step or stage, Usage()).add(self.begin, now)
        self.begin = now

    def total(self) -> Usage:
        """Return what the whole night used."""
        whole = Usage()
        whole.add(self.first, self.begin)
        whole.peak = max(stage.peak for stage in self.stages.values())
        return whole


@benchmark("paper")
def run_paper(
    work: Path, *, users: Users = USERS, days: Days = 60, memory: Memory = "2GiB", model: Model = "amm-rank"
) -> None:
    """Print a table of one night from the lake to the published report; write `paper.json` and `paper.svg`.

    Kernels are compiled before: that is done once for an installation, not every night.
    """
    lake, folder = work / f"paper-{users}", work / "paper-site"
    shutil.rmtree(folder, ignore_errors=True)
    with cluster(2) as client:
        events = make_lake(client, lake, users=users, days=days)
    with cluster(2, memory) as client:
        site, config = site_of(folder, lake, users)
        config = config.model_copy(update={"train": config.train.model_copy(update={"model": model})})
        warm_nights(client, work, model)
        settle()
        meter = run_night(client, site, config, FIRST + dt.timedelta(days - 1))
    bounds = _bounds(site, lake, events)
    rows = [_row(name, usage, users, events, bounds) for name, usage in meter.stages.items()]
    whole = meter.total()
    files = [Path(root, name) for root, _, names in os.walk(site.path) for name in names]
    results = {
        "users": users,
        "events": events,
        "days": days,
        "model": model,
        "workers": 2,
        "memory": memory,
        "machine": describe_machine(),
        "versions": {name: version_of(name) for name in VERSIONED},
        "stages": rows,
        "night": {**asdict(whole), "cpu": whole.cpu, "system_share": whole.system / whole.cpu},
        "site": {"files": len(files), "bytes": sum(path.stat().st_size for path in files)},
    }
    results["night"]["bare_system"] = bare_system_seconds(work / "bare", whole.read, whole.written)
    (work / "paper.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (work / "paper.svg").write_text(str(draw_night(results)) + "\n", encoding="utf-8")
    _print(results)
    shutil.rmtree(site.path)


def settle() -> None:
    """Wait until what an earlier run removed is forgotten.

    ext4 does not give the number of a removed file again for a minute, and looks at all of them whenever it makes one:
    a night right after a site of 3,500 files was removed has up to 4 more seconds of system time.
    """
    os.sync()
    time.sleep(FORGOTTEN_AFTER)


def run_night(client: Client, site: Site, config: Any, date: dt.date) -> StageMeter:
    """Run a night and return what its stages used."""
    log = logging.getLogger("ammrank_dask.workflows.session.night")
    meter = StageMeter()
    log.addHandler(meter)
    try:
        nightly(Night(client, site, config, date, meter))
    finally:
        log.removeHandler(meter)
    return meter


def _bounds(site: Site, lake: Path, events: int) -> dict[str, tuple[str, Any]]:
    """Return by stage what bounds it, and the CPU seconds that this bare work takes on one core of this machine.

    Where a pair is given, they are those of a byte read and of a byte written.
    """
    current = site.current()
    assert current is not None
    features = open_run(site.path / current.runs["features"], FEATURES.kind)
    model = load_model(site.path / current.runs["model"])
    n_planes = int(np.sum(model.n_planes_))
    day = min((lake / "events").glob("date=*"))
    files = sorted(day.glob("*.parquet"))
    n_rows = sum(pq.ParquetFile(file).metadata.num_rows for file in files)
    decode = best_cpu_of(3, lambda: [pq.read_table(file, use_threads=False) for file in files]) / n_rows
    digest = best_cpu_of(3, lambda: [digest_file(file) for file in files]) / n_rows
    arrays = features.part(0).read(FEATURES)
    size = features.parts[0].bytes
    load = best_cpu_of(3, lambda: features.part(0).read(FEATURES)) / size
    store = best_cpu_of(3, lambda: encode_group(arrays, {})) / size
    left, right = np.ones((1024, 1024), np.float32), np.ones((1024, 1024), np.float32)
    multiply = _process_seconds(lambda: left @ right) / 1024**3
    bounds: dict[str, tuple[str, Any]] = {"scan": ("SHA-256", digest * events)}
    bounds |= {stage: ("read_table", decode * events) for stage in STEPS[1:3]}
    bounds |= {stage: ("bare zarr", (load, store)) for stage in STORED}
    bounds["score"] = (f"sgemm of {n_planes} planes", multiply * features.nnz * n_planes)
    labelled = [open_run(path, FEATURES.kind) for path in site.finished_runs("features")]
    labelled = [
        run for run in labelled if FeaturesManifest.of(run).has_rankings and not run.manifest["config"].get("splits")
    ]
    if labelled:
        epochs = model.get_params()["epochs"]
        bounds["train"] = (f"sgemm, {epochs} epochs", multiply * labelled[0].nnz * n_planes * epochs)
    return bounds


def bare_system_seconds(path: Path, n_read: int, n_written: int) -> float:
    """Return the system seconds that so many bytes take which are only read and written, by one file and its cache.

    The file is a quarter of what is written: a new page of memory costs a virtual machine that hands free memory back
    to its host several times one that was free a moment ago.
    """
    block = bytearray(1 << 20)
    n_blocks = max(1, n_written // 4 >> 20)
    times = [os.times().system]
    with path.open("wb", buffering=0) as file:
        for _ in range(n_blocks):
            file.write(block)
    times.append(os.times().system)
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass
    times.append(os.times().system)
    path.unlink()
    per_written, per_read = np.diff(times)[:2] / (n_blocks << 20)
    return float(per_written * n_written + per_read * n_read)


def _process_seconds(function: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call that may use several threads, the best of five."""
    found = []
    for _ in range(5):
        started = time.process_time()
        function()
        found.append(time.process_time() - started)
    return min(found)


def _row(name: str, usage: Usage, users: int, events: int, bounds: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    unit, count = ("events", events) if name in INGEST else ("users", users)
    bound, bare = bounds.get(name, (None, None))
    if isinstance(bare, tuple):
        bare = bare[0] * usage.read + bare[1] * usage.written
    share = None if bare is None else bare / usage.cpu
    rate = count / usage.seconds
    return {"name": name, **asdict(usage), "unit": unit, "rate": rate, "bound": bound, "share": share}


def _print(results: dict[str, Any]) -> None:
    print(f"\n{results['users']:,} users, {results['events']:,} events, {results['days']} days, {results['model']},"
          f" 2 workers of {results['memory']}; {results['machine']}")  # fmt: skip
    print(f"  {'stage':18} {'s':>7} {'user':>7} {'system':>7} {'M/s':>8} {'read':>7} {'written':>8} {'peak':>6}  bound")
    for row in [*results["stages"], {"name": "night", "rate": 0, **results["night"]}]:
        rate = f"{row['rate'] / 1e6:8.2f}" if row["rate"] else " " * 8
        bound = f"{row['share']:.2f} of {row['bound']}" if row.get("share") is not None else ""
        size = f"{row['read'] / 2**30:6.2f}G {row['written'] / 2**30:7.2f}G {row['peak'] / 2**20:5.0f}M"
        print(
            f"  {row['name']:18} {row['seconds']:7.1f} {row['user']:7.1f} {row['system']:7.1f} {rate} {size}  {bound}"
        )
    night, site = results["night"], results["site"]
    print(f"  {night['cpu']:.0f} CPU seconds (bars: 330 with amm-rank, 450 with the default)")
    print(f"  {night['system_share']:.1%} of them system (bar 12 %)")
    print(
        f"  {night['system']:.1f} system seconds; as many bytes, only read and written, take {night['bare_system']:.1f}"
    )
    print(f"  {site['files']:,} files (bar 5,000), {site['bytes'] / 2**30:.1f} GiB")


def draw_night(results: dict[str, Any]) -> Markup:
    """Return the CPU seconds of every stage as bars, user and system, as SVG that stands alone."""
    rows = [row for row in results["stages"] if row["user"] + row["system"] > 0]
    longest = max(row["user"] + row["system"] for row in rows)
    left, width, step = 130, 420, 20
    content = [
        tag("text", f"CPU seconds of a night: {results['users']:,} users, {results['events']:,} events", x=4, y=16)
    ]
    for number, row in enumerate(rows):
        y = 30 + number * step
        scale = width / longest
        user, system = row["user"] * scale, row["system"] * scale
        share = "" if row["share"] is None else f", {row['share']:.2f} of {row['bound']}"
        content += [
            tag("text", row["name"], x=left - 6, y=y + 12, text_anchor="end"),
            tag("rect", x=left, y=y, width=user, height=step - 5, fill="#3b6ea8"),
            tag("rect", x=left + user, y=y, width=system, height=step - 5, fill="#d98c3f"),
            tag("text", f"{row['user'] + row['system']:.1f}{share}", x=left + user + system + 5, y=y + 12),
        ]
    y = 30 + len(rows) * step + 12
    content.append(tag("text", f"blue user, orange system; {results['machine']}", x=4, y=y))
    return tag(
        "svg", *content, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 760 {y + 8}", width=760, font_size=12,
        font_family="sans-serif",
    )  # fmt: skip

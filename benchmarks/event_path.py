"""Follow one event from its parquet file to the report, and count the stops: `python -m benchmarks event-path`.

A small night runs under a profiler, kernels as plain Python. A stop is a function of ours that works on the event's
data: one of `WORK`, or any function of ours that stands between one of them and the command or task that started it.
So a layer that only passes data on counts too. `docs/architecture.md` holds what this prints.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.command_line import benchmark

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("storage", "ammrank_dask", "workflows")
BAR = {"stops": 80, "changes of package": 35}
START = "workflows/nightly.py:command"
"""Where the command line hands over: what click calls before it is no stop."""
DECORATOR = "storage/objects/retry.py"
"""Who reads a call of a decorated function goes on in that function: the decorator is no stop."""
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- the path of one event: python -m benchmarks event-path -->", "<!-- end of the path -->"

WORK: dict[str, tuple[str, ...]] = {
    "ingest: the day's files": (
        "storage/lake/listing.py:list_days",
        "storage/lake/files.py:scan_file",
        "workflows/stages/history.py:plan_ingest",
    ),
    "ingest: rows to slices": (
        "storage/lake/events.py:decode_events",
        "storage/lake/events.py:QuarantineRows.add",
        "ammrank_dask/kernels/event_rows.py:pack_events",
        "ammrank_dask/ingest/exchange.py:write_slices",
    ),
    "ingest: slices to day partials": (
        "ammrank_dask/ingest/exchange.py:read_slices",
        "ammrank_dask/kernels/event_rows.py:sum_events",
        "storage/store/tables.py:write_arrow",
        "storage/store/runs.py:finish_run",
    ),
    "fold: partials to state": (
        "storage/store/tables.py:read_arrow",
        "ammrank_dask/kernels/interest.py:fold_cells",
    ),
    "features": (
        "ammrank_dask/features/demographics.py:describe_users",
        "ammrank_dask/kernels/features.py:write_values",
        "ammrank_dask/features/store.py:finish_features",
    ),
    "training features": ("ammrank_dask/kernels/features.py:rank_clicks",),
    "train": (
        "ammrank_dask/training/prepared_rows.py:prepare_rows",
        "ammrank_dask/kernels/memberships.py:nearest_centers",
        "ammrank_dask/kernels/plus_rows.py:write_rows",
        "ammrank_dask/kernels/ammrank_plus.py:train_plus_rows",
        "ammrank_dask/training/round_tasks.py:merge_arrays",
        "storage/store/models.py:save_model",
    ),
    "gate": (
        "ammrank_dask/training/gate.py:measure_model",
        "storage/site/verdicts.py:write_verdict",
    ),
    "score": (
        "ammrank_dask/kernels/scoring_plus.py:score_plus_top_k",
        "ammrank_dask/scoring/policies.py:UserTopK.assign",
        "storage/store/qualification_files.py:write_partition_files",
    ),
    "report": (
        "ammrank_dask/report/exposure.py:exposure_table",
        "ammrank_dask/report/page.py:render_page",
        "storage/site/reports.py:write_report",
    ),
    "publish": ("storage/site/site.py:Site.publish",),
}
"""By stage, the functions that read, change or write what has become of the event."""


@dataclass(frozen=True)
class Stop:
    """A function of ours: the file, relative to the repository, and its qualified name."""

    file: str
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.function}"

    @property
    def room(self) -> str:
        """The room it stands in."""
        return self.file.partition("/")[0]


@dataclass
class Trace:
    """Which function of ours called which, in the order of the first calls."""

    callers: dict[Stop, Stop | None] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take in a call; made for `sys.setprofile`."""
        if event != "call":
            return
        stop = stop_of(frame)
        if stop is None or stop in self.callers:
            return
        caller: Stop | None = None
        outer = frame.f_back
        while outer is not None and caller is None:
            caller = stop_of(outer)
            outer = outer.f_back
        with self.lock:
            self.callers.setdefault(stop, caller)

    def path(self, work: list[str]) -> list[Stop]:
        """Return the functions named and all that stand between them and their start, in the order of first calls."""
        by_name = {str(stop): stop for stop in self.callers}
        missing = [name for name in work if name not in by_name]
        if missing:
            raise SystemExit(f"never called in a night: {', '.join(missing)}; correct WORK in {Path(__file__).name}")
        on_path = set()
        for name in work:
            stop: Stop | None = by_name[name]
            while stop is not None and stop not in on_path:
                on_path.add(stop)
                stop = None if str(stop) == START else self.callers[stop]
        return [stop for stop in self.callers if stop in on_path]


_files: dict[str, str | None] = {}


def stop_of(frame: FrameType) -> Stop | None:
    """Return the function of a frame, None when it is not ours; what is defined inside a function counts as it."""
    name = frame.f_code.co_filename
    if name not in _files:
        path = Path(os.path.realpath(name))
        inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ROOMS
        _files[name] = path.relative_to(ROOT).as_posix() if inside and path != ROOT / DECORATOR else None
    file = _files[name]
    function = frame.f_code.co_qualname.partition(".<locals>")[0]
    return None if file is None or function.startswith("<") else Stop(file, function)


CLUSTER = """version: 1
class: distributed.LocalCluster
kwargs: {n_workers: 1, processes: false, threads_per_worker: 1, dashboard_address: "127.0.0.1:0"}
wait_for_workers: 1
"""
SETTINGS = {"partitions": 1, "label": {"days": 5, "min_categories": 1}, "train": {"epochs": 1, "shards": 2}}
FIRST, N_DAYS, N_USERS = "2026-01-05", 14, 120


def trace_night(work: Path) -> Trace:
    """Return what a small first night calls, from the command to the published report."""
    import yaml

    from ammrank_dask.workflows.cli import ammrank

    site, lake, cluster = work / "site", work / "lake", work / "cluster.yaml"
    cluster.write_text(CLUSTER)
    options = ["--cluster", str(cluster), "--quiet"]
    size = ["--users", str(N_USERS), "--days", str(N_DAYS), "--start", FIRST, "--seed", "0"]
    ammrank(["simulate", str(lake), *size, *options], standalone_mode=False)
    ammrank(["init", str(site), "--lake", str(lake), *options[:2]], standalone_mode=False)
    config = site / "ammrank.yaml"
    given = yaml.safe_load(config.read_text())
    for key, value in SETTINGS.items():
        given[key] = {**given[key], **value} if isinstance(value, dict) else value
    config.write_text(yaml.safe_dump(given))
    trace = Trace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        last = f"{FIRST[:8]}{int(FIRST[8:]) + N_DAYS - 1:02d}"
        ammrank(["nightly", str(site), "--date", last, *options], standalone_mode=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return trace


def count_changes(path: list[Stop]) -> int:
    """Return how often the path goes from one room to another."""
    return sum(one.room != other.room for one, other in itertools.pairwise(path))


def describe_path(path: list[Stop]) -> str:
    """Return the path as the page has it: a line a stop, by room, and the counts below."""
    rows = [f"{number:3d}  {stop.room:12}  {stop}" for number, stop in enumerate(path, start=1)]
    counts = {"stops": len(path), "changes of package": count_changes(path)}
    said = [f"{count} {name} (bar {BAR[name]})" for name, count in counts.items()]
    return "\n".join([*rows, "", ", ".join(said)])


@benchmark("event-path")
def follow_event(work: Path) -> None:
    """Print the path of one event and write it into the page on architecture; kernels run as plain Python."""
    if os.environ.get("NUMBA_DISABLE_JIT") != "1":
        command = [sys.executable, "-m", "benchmarks", "event-path", "--work", str(work)]
        subprocess.run(command, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, cwd=ROOT, check=True)
        return
    folder = work / "event-path"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = [name for stage in WORK.values() for name in stage]
    text = describe_path(trace_night(folder).path(names))
    print(text)
    write_page(text)


def write_page(text: str) -> None:
    """Put the path between the two marks of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    PAGE.write_text(f"{before}\n```text\n{text}\n```\n{after}", encoding="utf-8")

"""Follow one event from its parquet file to the report, and count the stops: `python -m benchmarks event-path`.

A small night runs under a profiler, kernels as plain Python. A stop is a function of ours that works on the event's
data: one of `WORK`, or any function of ours that stands between one of them and the command or task that started it.
So a layer that only passes data on counts too. `docs/architecture.md` holds what this prints.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("storage", "ammrank_dask", "workflows")
MAX_STOPS, MAX_CHANGES = 80, 35
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- the path of one event: python -m benchmarks event-path -->", "<!-- end of the path -->"

WORK: dict[str, tuple[str, ...]] = {}
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
                stop = self.callers[stop]
        return [stop for stop in self.callers if stop in on_path]


_files: dict[str, str | None] = {}


def stop_of(frame: FrameType) -> Stop | None:
    """Return the function of a frame, None when it is not ours; what is defined inside a function counts as it."""
    name = frame.f_code.co_filename
    if name not in _files:
        path = Path(os.path.realpath(name))
        inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ROOMS
        _files[name] = path.relative_to(ROOT).as_posix() if inside else None
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

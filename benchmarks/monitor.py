"""What the AMM-rank page costs a scheduler: a night of many tasks with the page open, and with monitoring off."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Iterator

from distributed import Client

import ammrank_dask.monitor.events as events
import ammrank_dask.runtime.tasks as tasks
from ammrank_dask.monitor.plugin import page_address
from benchmarks.command_line import Users, benchmark
from benchmarks.measure import describe_machine
from benchmarks.processes import start_processes

N_TASKS, TASK_SECONDS, N_CATEGORIES, USERS_A_TASK = 10_000, 0.02, 50, 50_000
STAGES = {"ingest": 0.4, "features": 0.3, "score": 0.3}


@benchmark("monitor")
def compare_monitor(*, users: Users = N_TASKS * USERS_A_TASK) -> None:
    """Run the same night with and without the page, twice each in turns, and compare CPU seconds."""
    n_tasks = max(100, users // USERS_A_TASK)
    print(f"monitor: a night of {n_tasks:,} tasks of {TASK_SECONDS * 1e3:.0f} ms; {describe_machine()}")
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    for _ in range(2):
        for is_watched in (False, True):
            found[is_watched].append(_measure(n_tasks, is_watched))
    for is_watched, name in ((False, "off"), (True, "page open")):
        scheduler, night, seconds = min(found[is_watched])
        print(f"  {name:10s} scheduler {scheduler:6.2f} CPU s, night {night:7.2f} CPU s, {seconds:6.1f} s")
    more = min(found[True])[0] - min(found[False])[0]
    night = min(found[False])[1]
    print(f"  the scheduler needs {more:.2f} CPU s more: {more / night:.2%} of the night's (at most 3 % wanted)")


def burn(seconds: float) -> int:
    """Use so much CPU time, and return how many users that was."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return USERS_A_TASK


def _measure(n_tasks: int, is_watched: bool) -> tuple[float, float, float]:
    """Return CPU seconds of the scheduler and of all processes, and the seconds of the night."""
    preload = ["ammrank_dask.monitor.preload"] if is_watched else []
    with start_processes(2, preload=preload) as processes:
        client = processes.client
        tasks.run_tasks(client, "warm", burn, [(0.01,)] * 20)
        with _page(client, is_watched), _events(is_watched):
            before, started = processes.cpu(), time.perf_counter()
            _run_night(client, n_tasks)
            seconds, after = time.perf_counter() - started, processes.cpu()
    used = {part: after[part] - before[part] for part in after}
    return used["scheduler"], sum(used.values()), seconds


def _run_night(client: Client, n_tasks: int) -> None:
    names = [f"category {code}" for code in range(N_CATEGORIES)]
    with events.watch_night(client, "2026-03-05", list(STAGES)):
        for stage, share in STAGES.items():
            live = events.LiveExposure(client, names, clicks=[1] * N_CATEGORIES)

            def show(_: int, users: int, live: events.LiveExposure = live) -> None:
                live.add(users, [users] * N_CATEGORIES)

            arguments = [(TASK_SECONDS,)] * int(n_tasks * share)
            with events.watch_stage(client, stage):
                # As in a real night, exposure is told while users are scored.
                tasks.run_tasks(client, stage, burn, arguments, units=int, on_result=show if stage == "score" else None)


@contextlib.contextmanager
def _page(client: Client, is_watched: bool) -> Iterator[None]:
    """Keep the page open as a browser does, and read all its updates."""
    if not is_watched:
        yield
        return
    is_over = threading.Event()

    def take_updates() -> None:
        with urllib.request.urlopen(f"{page_address(client)}.events") as updates:
            while not is_over.is_set():
                updates.readline()

    reader = threading.Thread(target=take_updates, daemon=True)
    reader.start()
    try:
        yield
    finally:
        is_over.set()
        reader.join(timeout=10)


@contextlib.contextmanager
def _events(is_watched: bool) -> Iterator[None]:
    """Let nothing be published when monitoring is off."""
    publish = events.publish
    if not is_watched:
        events.publish = tasks.publish = lambda client, kind, **facts: None  # type: ignore[assignment]
    try:
        yield
    finally:
        events.publish = tasks.publish = publish  # type: ignore[assignment]

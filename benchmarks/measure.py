"""Clusters, sites and clocks that the benchmarks share."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import psutil
import yaml
from distributed import Client, LocalCluster

from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.cluster.cluster_file import BUILT_IN
from ammrank_dask.workflows.cluster.local import LeaveInterrupts
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.sections import Lake


def describe_machine() -> str:
    """Return one line about the machine, for the head of a table."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {models[0] if models else platform.machine()}, {time.strftime('%Y-%m-%d')}"


def best_of(times: int, function: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of several calls."""
    found = []
    for _ in range(times):
        started = time.perf_counter()
        function()
        found.append(time.perf_counter() - started)
    return min(found)


def best_cpu_of(times: int, function: Callable[[], Any]) -> float:
    """Return the CPU seconds of the cheapest of several calls: other processes disturb them less."""
    found = []
    for _ in range(times):
        started = time.thread_time()
        function()
        found.append(time.thread_time() - started)
    return min(found)


def cpu_seconds() -> float:
    """Return the CPU time of this process and its workers: other work on the machine is not in it."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def children_cpu() -> float:
    """Return the CPU time of all processes that this one started and that have ended, their own children included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def cluster(n_workers: int = 2, memory_limit: str | None = None) -> Iterator[Client]:
    """Open the embedded cluster with the settings of the built-in cluster.yaml."""
    settings = yaml.safe_load(BUILT_IN.read_text(encoding="utf-8"))
    with (
        dask.config.set(settings["dask"]),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            memory_limit=memory_limit or "auto",
            dashboard_address="127.0.0.1:0",
            silence_logs=40,
        ) as local,
        Client(local) as client,
    ):
        # An interrupt that reaches the workers ends them for good: their nannies do not start them again.
        client.register_plugin(LeaveInterrupts())
        yield client


def make_lake(client: Client, folder: Path, *, users: int, days: int, activity: float = 1.0, seed: int = 1) -> int:
    """Simulate a lake unless it is there from an earlier run; return its number of events."""
    truth = folder.with_name(f"{folder.name}-truth")
    summary = simulate(folder, client=client, truth=truth, users=users, days=days, seed=seed, activity=activity)
    return int(sum(summary["events"].values()))


def site_of(folder: Path, lake: Path, users: int) -> tuple[Site, Config]:
    """Return a site on a lake with as many partitions as `ammrank init` would choose; a new one, or that of before."""
    folder.mkdir(parents=True, exist_ok=True)
    places = {
        "events": str(lake / "events"),
        "users": str(lake / "users.parquet"),
        "taxonomy": str(lake / "taxonomy.csv"),
    }
    return Site(folder), Config(lake=Lake(**places), partitions=max(8, -(-users // 50_000)))


def count_from(config: Config, min_categories: int) -> Config:
    """Return the config in which users train and count from so many clicked categories on."""
    return config.model_copy(update={"label": config.label.model_copy(update={"min_categories": min_categories})})


def worker_facts(client: Client) -> dict[str, Any]:
    """Return process ids, peak memory and spilled bytes of the workers."""
    peaks = client.run(peak_memory)
    metrics = [worker["metrics"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
    return {
        "pids": sorted(pid for pid, _ in peaks.values()),
        "peak_mib": max(peak for _, peak in peaks.values()) / 2**20,
        "spilled": sum(metric["spilled_bytes"]["disk"] for metric in metrics),
    }


def reset_peak_memory() -> None:
    """Let the peak of this process's memory begin anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_memory() -> tuple[int, int]:
    """Return the id of this process and the peak of its memory."""
    # Not ru_maxrss, which a process takes over from the one that started it.
    with open("/proc/self/status", encoding="utf-8") as file:
        peak = next(line for line in file if line.startswith("VmHWM"))
    return os.getpid(), int(peak.split()[1]) * 1024

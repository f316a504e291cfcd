"""A scheduler and many lean workers, each a process of its own, so that the CPU seconds of each can be told apart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import psutil
import yaml
from distributed import Client, Scheduler, Security, Worker

from ammrank_dask.workflows.cluster.cluster_file import BUILT_IN

SECONDS_TO_START = 300
SECONDS_TO_END = 30
WORKER_TASKS = "benchmarks.worker_tasks"
"""What workers import before they are forked, so that they share its memory."""
SHARED_CORES = {
    "distributed.worker.profile.enabled": False,
    "distributed.comm.timeouts.connect": "300s",
    "distributed.comm.timeouts.tcp": "600s",
}
"""Many processes share a few cores here: none looks at sleeping threads a hundred times a second, and each may wait."""


@dataclass(frozen=True)
class ProcessCluster:
    """A client, and the processes of its scheduler and workers."""

    client: Client
    scheduler: psutil.Process
    workers: Sequence[psutil.Process]

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds so far of the scheduler, of the client, which is this process, and of all workers."""
        return {
            "scheduler": _cpu_of(self.scheduler),
            "client": _cpu_of(psutil.Process()),
            "workers": sum(map(_cpu_of, self.workers)),
        }

    def memory(self) -> dict[str, int]:
        """Return the bytes of the scheduler, of the client, and of a worker, which shares others with its like."""
        own = sum(worker.memory_full_info().uss for worker in self.workers) // len(self.workers)
        return {
            "scheduler": self.scheduler.memory_info().rss,
            "client": psutil.Process().memory_info().rss,
            "worker": own,
        }


def _cpu_of(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


@contextlib.contextmanager
def start_processes(
    n_workers: int, *, security: Security | None = None, preload: Sequence[str] = ()
) -> Iterator[ProcessCluster]:
    """Start a scheduler and workers of one thread on this machine, with the settings of the built-in cluster.yaml.

    Workers are forked from one process that has imported what they need: they start in a moment and share its pages.
    `preload` is for the scheduler.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([WORKER_TASKS])
    settings = yaml.safe_load(BUILT_IN.read_text(encoding="utf-8"))["dask"] | SHARED_CORES
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="ammrank-bench-") as folder, contextlib.ExitStack() as stack:
        stack.enter_context(dask.config.set(settings))

        started: list[Any] = []
        stack.callback(_end, started)

        def start(function: Any, *args: Any) -> psutil.Process:
            process = context.Process(target=function, args=(settings, security, *args), daemon=True)
            process.start()
            started.append(process)
            return psutil.Process(process.pid)

        scheduler = start(run_scheduler, list(preload), sender)
        if not receiver.poll(SECONDS_TO_START):
            raise TimeoutError(f"the scheduler did not start within {SECONDS_TO_START} s")
        address = receiver.recv()
        workers = [start(run_worker, address, folder) for _ in range(n_workers)]
        client = stack.enter_context(Client(address, security=security, set_as_default=False))
        client.wait_for_workers(n_workers, timeout=SECONDS_TO_START)
        yield ProcessCluster(client, scheduler, workers)


def _end(processes: Sequence[Any]) -> None:
    """End processes, the last ones first, all at once."""
    for process in reversed(processes):
        process.terminate()
    for process in processes:
        process.join(SECONDS_TO_END)


def run_scheduler(settings: Mapping[str, Any], security: Security | None, preload: list[str], address: Any) -> None:
    """Be a scheduler until this process is ended; say its address first."""

    async def serve() -> None:
        async with Scheduler(
            host="127.0.0.1", port=0, security=security, dashboard=True, dashboard_address="127.0.0.1:0",
            preload=preload, preload_argv=[[] for _ in preload],
        ) as scheduler:  # fmt: skip
            address.send(scheduler.address)
            await scheduler.finished()

    _run(serve, settings)


def run_worker(settings: Mapping[str, Any], security: Security | None, address: str, folder: str) -> None:
    """Be a worker of one thread until this process is ended."""

    async def serve() -> None:
        async with Worker(
            address, nthreads=1, security=security, memory_limit=0, dashboard=False, local_directory=folder
        ) as worker:
            await worker.finished()

    _run(serve, settings)


def _run(serve: Callable[[], Coroutine[Any, Any, None]], settings: Mapping[str, Any]) -> None:
    logging.disable(logging.CRITICAL)  # who comes and goes
    # Not killed by it: packages have semaphores, which a process that ends by itself gives back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with dask.config.set(settings):
        asyncio.run(serve())

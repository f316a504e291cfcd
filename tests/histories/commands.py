"""Run real commands: here, on a cluster of threads that a crash takes with it, or each in a process that is killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from tests.histories.faults import ENDING, Crash, Fault, watched

SECONDS = 600
"""No command here takes so long."""
KILLED = -signal.SIGKILL
"""The exit code of a process that was killed, and of a command whose process crashed."""
CLUSTER = """version: 1
class: distributed.LocalCluster
kwargs: {processes: false, n_workers: 1, threads_per_worker: 2, dashboard_address: null}
"""
WITHOUT_CLUSTER = ("publish", "verify")

# Processes are forks of one that has imported everything and has no threads, so that each begins at once.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    ["tests.histories.commands", *(f"ammrank_dask.workflows.{name}" for name in ("nightly", "forget", "repartition"))]
)


class Outcome(NamedTuple):
    """How a command ended, what it said, and how many times it was about to write to the site."""

    exit_code: int
    said: str
    writes: int


class Machine:
    """What runs commands in this process: a cluster of threads, which goes with a crash like all else in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._cluster_file: Path | None = None

    def run(self, name: str, site: Path, *arguments: object, fault: Fault | None = None) -> Outcome:
        """Run a command on a site, with a fault in its writes to the site."""
        from tests.frozen.sites import own_cluster, without_performance_pages

        if self._cluster_file is None:
            self._cluster_file = self._stack.enter_context(own_cluster(self._folder, 2))[1]
        with watched(site, fault) as writes:
            try:
                with without_performance_pages():
                    outcome = invoke(name, site, arguments, self._cluster_file)
            except Crash:
                outcome = (KILLED, "")
            if fault is not None and fault.kind in ENDING and writes.number >= fault.at:
                outcome = (KILLED, "")
                self.close()  # as long as its tasks cannot write
            return Outcome(*outcome, writes.number)

    def close(self) -> None:
        """Drop the cluster and what functions remember."""
        self._stack.close()
        self._cluster_file = None
        for module in [module for name, module in sys.modules.items() if name.startswith("ammrank_dask.")]:
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def invoke(name: str, site: Path, arguments: tuple[object, ...], cluster_file: Path) -> tuple[int, str]:
    """Run a command, and return its exit code and what it said."""
    from ammrank_dask.workflows.cli import ammrank

    more = [] if name in WITHOUT_CLUSTER else ["--cluster", str(cluster_file), "--quiet"]
    result = CliRunner().invoke(ammrank, [name, str(site), *map(str, arguments), *more])
    return result.exit_code, result.output


def run_command(name: str, site: Path, *arguments: object, cluster_file: Path, kill_at: int | None = None) -> Outcome:
    """Run a command in a process; with `kill_at` it is killed when it is about to write for the n-th time."""
    with started(name, site, *arguments, cluster_file=cluster_file, kill_at=kill_at) as wait:
        return wait()


@contextlib.contextmanager
def started(
    name: str, site: Path, *arguments: object, cluster_file: Path, kill_at: int | None = None
) -> Iterator[Callable[[], Outcome]]:
    """Start a command in a process, and yield what waits for its end."""
    here, there = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_run, args=(there, name, site, arguments, cluster_file, kill_at))
    process.start()
    there.close()

    def wait() -> Outcome:
        try:
            # Received before the end is waited for: what is said may be more than a pipe holds.
            outcome = here.recv() if here.poll(SECONDS) else None
        except EOFError:
            outcome = None
        process.join(SECONDS)
        if process.is_alive():
            raise TimeoutError(f"{name} did not end within {SECONDS} s")
        return Outcome(*outcome) if outcome is not None else Outcome(process.exitcode or 0, "", kill_at or 0)

    try:
        yield wait
    finally:
        if process.is_alive():
            process.kill()
            process.join()


def _run(
    pipe: Connection, name: str, site: Path, arguments: tuple[object, ...], cluster_file: Path, kill_at: int | None
) -> None:
    from tests.frozen.sites import without_performance_pages
    from tests.histories.faults import KILL

    # What a killed command leaves of its cluster goes with the history.
    tempfile.tempdir = str(site.parent)
    with watched(site, None if kill_at is None else Fault(KILL, kill_at)) as writes, without_performance_pages():
        outcome = invoke(name, site, arguments, cluster_file)
        pipe.send((*outcome, writes.number))
    pipe.close()

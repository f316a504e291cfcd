"""Run real commands, each in a process of its own that can be killed at its n-th write to the site."""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

SECONDS = 600
"""No command here takes so long."""
KILLED = -signal.SIGKILL

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


def run_command(name: str, site: Path, *arguments: object, kill_at: int | None = None) -> Outcome:
    """Run a command on a site; with `kill_at` it is killed when it is about to write for the n-th time.

    A write is what Python tells an audit hook of below the folder of the site: a file that is opened for writing, a
    rename, a link, a folder made, anything removed. That holds for whatever the storage layer makes of it.
    """
    here, there = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_run, args=(there, name, site, [str(value) for value in arguments], kill_at))
    process.start()
    there.close()
    try:
        # Received before the end is waited for: what is said may be more than a pipe holds.
        outcome = here.recv() if here.poll(SECONDS) else None
    except EOFError:
        outcome = None
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError(f"{name} did not end within {SECONDS} s")
    if outcome is not None:
        return Outcome(*outcome)
    return Outcome(process.exitcode or 0, "", kill_at or 0)


def _run(pipe: Connection, name: str, site: Path, arguments: list[str], kill_at: int | None) -> None:
    from ammrank_dask.workflows.cli import ammrank
    from tests.frozen.sites import without_performance_pages

    # What a killed command leaves of its cluster goes with the history.
    tempfile.tempdir = str(site.parent)
    count = _count_writes(f"{site}{os.sep}", kill_at)
    with without_performance_pages():
        result = CliRunner().invoke(ammrank, [name, str(site), *arguments])
    pipe.send((result.exit_code, result.output, count()))
    pipe.close()


def _count_writes(below: str, kill_at: int | None) -> Callable[[], int]:
    """Count writes from now on; return what tells their number."""
    number = 0

    def hear(event: str, details: tuple[Any, ...]) -> None:
        nonlocal number
        if event in _WRITES and _WRITES[event](details) and _name(details[0]).startswith(below):
            number += 1
            if number == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)
    return lambda: number


def _name(path: Any) -> str:
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""


_WRITES: dict[str, Callable[[tuple[Any, ...]], bool]] = {
    "open": lambda details: bool((details[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)),
    **dict.fromkeys(
        ("os.rename", "os.link", "os.symlink", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"), lambda details: True
    ),
}

"""Check a cluster before the first task: same versions everywhere, one view of the site, enough memory."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import platform
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client, WorkerPlugin, wait

from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.storage.store.atomic import OTHERS, write_text
from ammrank_dask.storage.store.retried import retried
from ammrank_dask.storage.store.runs import VERSIONED, version_of
from ammrank_dask.tasks import driver_id

MOST_SKEW = 300.0
"""Seconds by which the clock of a worker may differ: certificates and logs are judged by it."""
MARK = ".view-"
_SECONDS_MARKS_STAY = 7 * 86_400
_SECONDS_TO_SEE = 5.0
"""How long a file may take to show up on another host: network file systems remember that it was not there."""


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker knows about itself."""

    versions: dict[str, str]
    sees_site: bool
    clock: float
    machine: str


class CheckedWorker(WorkerPlugin):
    """Let every worker, one that joins in mid-night too, look at its versions and its view of the site once.

    One that does not pass takes no task: `run_tasks` hears its sentence instead.
    """

    def __init__(self, owner: str, site: Path, mark: str, versions: dict[str, str]) -> None:
        self.name = f"ammrank-check-{owner}"
        self.owner = owner
        self.site = site
        self.mark = mark
        self.versions = versions
        self.refusal: str | None = None

    async def setup(self, worker: Any) -> None:
        """Keep the sentence for which the worker cannot be used, if there is one."""
        self.refusal = await asyncio.to_thread(self.inspect, worker.address)

    def inspect(self, address: str) -> str | None:
        """Return what is wrong with this worker."""
        try:
            _compare_versions(f"the worker at {address}", package_versions(), self.versions)
            if not _appears(self.site / self.mark):
                raise BadInput(_say_blind(address, self.site))
            answer = self.site / f"{self.mark}-{uuid.uuid4().hex}"
            answer.write_text(self.mark, encoding="utf-8")
            answer.unlink()
        except OSError as error:
            return str(_say_failure(address, error, self.site, self.versions["ammrank-dask"]))
        except BadInput as error:
            return str(error)
        return None


class PrivateFiles(WorkerPlugin):
    """Let workers make files that others than the owner and the group cannot read, as the client does."""

    name = "ammrank-private-files"

    def setup(self, worker: Any) -> None:
        """Change the umask of the worker."""
        self.before = os.umask(0o077)
        os.umask(self.before | OTHERS)

    def teardown(self, worker: Any) -> None:
        """Put back the umask that was."""
        os.umask(self.before)


@contextlib.contextmanager
def private_workers(client: Client) -> Iterator[None]:
    """Let all workers, also those that join later, write files that other accounts cannot read."""
    client.register_plugin(PrivateFiles())
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the cluster may be gone, and this is the least of the troubles then
            client.unregister_worker_plugin(PrivateFiles.name)


@contextlib.contextmanager
def checked_workers(client: Client, site: Path, *, timeout: float) -> Iterator[None]:
    """Check the workers there are, and until the end of the block every one that joins."""
    check_scheduler(client)
    here = site.resolve()
    mark = f"{MARK}{uuid.uuid4().hex}"
    _sweep_marks(here)
    write_text(here / mark, mark, durable=False)
    plugin = CheckedWorker(driver_id(), here, mark, package_versions())
    try:
        for address, answer in ask_workers(client, here, mark, timeout=timeout).items():
            _judge(address, answer, here)
        client.register_plugin(plugin)
        yield
    finally:
        with contextlib.suppress(Exception):  # the cluster may be gone
            client.unregister_worker_plugin(plugin.name)
        remove_marks(here, mark)


def check_workers(client: Client, site: Path, *, timeout: float) -> None:
    """Refuse a cluster with other versions of the packages, or whose workers do not see the files of the site."""
    with checked_workers(client, site, timeout=timeout):
        pass


def ask_workers(
    client: Client, site: Path, mark: str, *, timeout: float
) -> dict[str, tuple[WorkerFacts, bool, float] | AmmrankError]:
    """Let every worker look at itself.

    Returns
    -------
    dict
        By address what a worker says, whether its file was seen here, and by how many seconds its clock is ahead; or
        the sentence why there is no answer.
    """
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    began = time.time()
    futures = {
        address: client.submit(inspect_worker, site, mark, number, workers=[address], pure=False)
        for number, address in enumerate(workers)
    }
    with contextlib.suppress(TimeoutError), client.as_current():
        wait(list(futures.values()), timeout=timeout)
    ended = time.time()
    answers: dict[str, tuple[WorkerFacts, bool, float] | AmmrankError] = {}
    for number, (address, future) in enumerate(futures.items()):
        if future.status == "error":
            answers[address] = _say_failure(address, future.exception(), site, version_of("ammrank-dask"))
        elif future.status != "finished":
            answers[address] = AmmrankError(
                f"the worker at {address} did not answer within {timeout:g} s; look at its log"
            )
        else:
            answer = future.result()
            skew = max(began - answer.clock, answer.clock - ended, 0.0) * (1 if answer.clock > ended else -1)
            answers[address] = (answer, _appears(_answer_of(site, mark, number)), skew)
    return answers


def _judge(address: str, answer: tuple[WorkerFacts, bool, float] | AmmrankError, site: Path) -> None:
    """Refuse a worker for the first thing that is wrong with it."""
    if isinstance(answer, AmmrankError):
        raise answer
    description, is_seen, skew = answer
    _compare_versions(f"the worker at {address}", description.versions, package_versions())
    if not description.sees_site or not is_seen:
        raise BadInput(_say_blind(address, site))
    if abs(skew) > MOST_SKEW:
        raise BadInput(say_skew(f"the worker at {address}", skew))


def say_skew(who: str, skew: float) -> str:
    """Return the sentence about a clock that goes wrong."""
    way = "ahead of" if skew > 0 else "behind"
    return f"the clock of {who} is {abs(skew):,.0f} s {way} that of this machine; set both by NTP"


def _say_blind(address: str, site: Path) -> str:
    return (
        f"the worker at {address} does not see the files of {site}; the site must be a folder that all"
        " hosts share under one path"
    )


@retried
def _sweep_marks(site: Path) -> None:
    """Remove the files of commands that were killed; none runs for a week."""
    for path in site.glob(f"{MARK}*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _SECONDS_MARKS_STAY:
                path.unlink()


@retried
def remove_marks(site: Path, mark: str) -> None:
    """Remove the files by which client and workers looked whether they see the same folder."""
    for path in site.glob(f"{mark}*"):
        path.unlink(missing_ok=True)


def _say_failure(address: str, error: BaseException | None, site: Path, version: str) -> AmmrankError:
    if isinstance(error, ImportError):
        return AmmrankError(f"the worker at {address} cannot import ammrank-dask; install version {version} there")
    if isinstance(error, OSError):
        return BadInput(
            f"the worker at {address} cannot read and write in {site} ({type(error).__name__}: {error.strerror});"
            " the site must be a folder that all hosts share, may read and may write"
        )
    return AmmrankError(f"the worker at {address} failed with {type(error).__name__}; look at its log")


@retried
def _answer_of(site: Path, mark: str, number: int) -> Path:
    """Return the file by which a worker says that it may write in the site."""
    return site / f"{mark}-answer-of-worker-{number}"


def inspect_worker(site: Path, name: str, number: int) -> WorkerFacts:
    """Look for the client's file, answer with one beside it, and tell the versions of the packages."""
    seen = _appears(site / name)
    if seen:
        _answer_of(site, name, number).write_text(name, encoding="utf-8")
    return WorkerFacts(package_versions(), seen, time.time(), cpu_type())


def cpu_type() -> str:
    """Return the type of CPU as the compiler of the kernels has it: workers of one type give the same bytes."""
    from llvmlite.binding import get_host_cpu_name

    return f"{platform.machine()} {get_host_cpu_name()}"


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages whose versions must be equal on all hosts."""
    versions = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            versions[name] = version_of(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def check_scheduler(client: Client) -> None:
    """Compare what Dask itself knows about the scheduler: ammrank-dask need not be installed there."""
    found: Any = client.get_versions(check=False)
    packages = found["scheduler"]["packages"].items()
    theirs = {name: str(version).split(".final")[0] for name, version in packages if version is not None}
    own = {name: version for name, version in package_versions().items() if name in theirs}
    _compare_versions("the scheduler", theirs, own)


def _compare_versions(who: str, theirs: dict[str, str], own: dict[str, str]) -> None:
    differing = differing_versions(theirs, own)
    if differing:
        raise BadInput(f"{who} has {differing}; install the same versions everywhere")


def differing_versions(theirs: dict[str, str], own: dict[str, str] | None = None) -> str:
    """Return which versions differ from ours, as words; nothing when none does."""
    own = package_versions() if own is None else own
    names = [name for name, version in own.items() if theirs.get(name) != version]
    return ", ".join(f"{name} {theirs.get(name)} instead of {own[name]}" for name in names)


def _appears(path: Path) -> bool:
    end = time.monotonic() + _SECONDS_TO_SEE
    while not path.is_file():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True

"""Check a cluster before the first task, and workers that join later: same versions and one view of the site."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import importlib.metadata
import logging
import os
import platform
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client, Security, WorkerPlugin, wait
from distributed.core import connect, send_recv
from tornado.ioloop import PeriodicCallback

from ammrank_dask.monitor.events import publish
from ammrank_dask.runtime.tasks import driver_id
from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.storage.objects.atomic import make_private
from ammrank_dask.storage.objects.folders import is_file, list_paths, remove
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.store.runs import VERSIONED, version_of
from ammrank_dask.workflows.session.deadline import seconds_left

MOST_SKEW = 300.0
"""Seconds by which the clock of a worker may differ: certificates and logs are judged by it."""
MARK = ".view-"
_SECONDS_MARKS_STAY = 7 * 86_400
_SECONDS_TO_PAUSE = 5.0
_SECONDS_TO_REMOVE = 2.0
_SECONDS_TO_SEE = 5.0
"""How long a file may take to show up on another host: network file systems remember that it was not there."""

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.5
_ALL = "all"
"""The topic under which a scheduler tells of workers that join and leave."""


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker says about itself; `ahead` is by how many seconds its clock is before that of the file system."""

    versions: dict[str, str]
    sees_site: bool
    ahead: float
    machine: str


@dataclass(frozen=True)
class ClientView:
    """What the client has and every worker must have too: the site with the file `mark` in it, versions, the clock."""

    site: Path
    mark: str
    versions: dict[str, str]
    ahead: float

    def refuse(self, address: str, worker: WorkerFacts) -> None:
        """Refuse a worker for the first thing that is wrong with it."""
        _compare_versions(f"the worker at {address}", worker.versions, self.versions)
        if not worker.sees_site:
            raise BadInput(
                f"the worker at {address} does not see the files of {self.site}; the site must be a folder that all"
                " hosts share under one path"
            )
        skew = self.skew_of(worker)
        if abs(skew) > MOST_SKEW:
            raise BadInput(say_skew(f"the worker at {address}", skew))

    def skew_of(self, worker: WorkerFacts) -> float:
        """Return by how many seconds the clock of a worker is ahead of that of the client."""
        return worker.ahead - self.ahead


@contextlib.contextmanager
def show_view(site: Path) -> Iterator[ClientView]:
    """Leave a file in the site for workers to find; it and their answers are removed at the end."""
    here, mark = site.resolve(), f"{MARK}{uuid.uuid4().hex}"
    _sweep_marks(here)
    try:
        yield ClientView(here, mark, package_versions(), _write_mark(here / mark))
    finally:
        _remove_marks(here, mark)


class CheckedWorker(WorkerPlugin):
    """Let every worker, one that joins in mid-night too, look at itself once.

    One that does not pass takes no task, and `Joiners` has it leave.
    """

    def __init__(self, owner: str, view: ClientView) -> None:
        self.name = f"ammrank-check-{owner}"
        self.owner = owner
        self.view = view
        self.refusal: str | None = None

    async def setup(self, worker: Any) -> None:
        """Keep the sentence for which the worker cannot be used, if there is one, and tell the driver."""
        self.refusal = await asyncio.to_thread(self._inspect, worker.address)
        worker.log_event(self.name, {"refusal": self.refusal})

    def _inspect(self, address: str) -> str | None:
        site, answer = self.view.site, f"{self.view.mark}-{uuid.uuid4().hex}"
        try:
            worker = inspect_worker(site, self.view.mark, answer)
            remove(site / answer)
            self.view.refuse(address, worker)
        except OSError as error:
            return str(_say_failure(address, error, self.view))
        except BadInput as error:
            return str(error)
        return None


class PrivateFiles(WorkerPlugin):
    """Let workers make files that others than the owner and the group cannot read, as the client does."""

    name = "ammrank-private-files"

    def __init__(self, *, for_group: bool = False) -> None:
        self.for_group = for_group

    def setup(self, worker: Any) -> None:
        """Change the umask of the worker."""
        self.before = make_private(for_group=self.for_group)

    def teardown(self, worker: Any) -> None:
        """Put back the umask that was."""
        os.umask(self.before)


@contextlib.contextmanager
def private_workers(client: Client, *, for_group: bool = False) -> Iterator[None]:
    """Let all workers, also those that join later, write files that other accounts cannot read."""
    client.register_plugin(PrivateFiles(for_group=for_group))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the cluster may be gone, and this is the least of the troubles then
            remove_plugin(client, PrivateFiles.name)


@contextlib.contextmanager
def checked_workers(client: Client, site: Path, *, timeout: float) -> Iterator[None]:
    """Check the workers there are, and until the end of the block every one that joins."""
    check_scheduler(client)
    with contextlib.ExitStack() as stack:
        view = stack.enter_context(show_view(site))
        plugin = CheckedWorker(driver_id(), view)
        stack.enter_context(Joiners(client, plugin.name, view.versions["ammrank-dask"]).looked_at())
        for address, answer in ask_workers(client, view, timeout=timeout).items():
            if isinstance(answer, AmmrankError):
                raise answer
            view.refuse(address, answer)
        try:
            client.register_plugin(plugin)
            yield
        finally:
            with contextlib.suppress(Exception):  # the cluster may be gone
                remove_plugin(client, plugin.name)


def remove_plugin(client: Client, name: str) -> None:
    """Take a plugin from all workers; one that does not answer is not waited for."""
    # Called on the loop of the client it returns an awaitable, for which there can be a time limit.
    client.sync(client.unregister_worker_plugin, name, callback_timeout=seconds_left(_SECONDS_TO_REMOVE))


def check_workers(client: Client, site: Path, *, timeout: float) -> None:
    """Refuse a cluster with other versions of the packages, or whose workers do not see the files of the site."""
    with checked_workers(client, site, timeout=timeout):
        pass


def ask_workers(client: Client, view: ClientView, *, timeout: float) -> dict[str, WorkerFacts | AmmrankError]:
    """Let every worker look at itself; return by address what it says, or the sentence why there is no answer.

    Only a worker whose file is seen here sees the same site.
    """
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    names = {address: f"{view.mark}-answer-of-worker-{number}" for number, address in enumerate(workers)}
    futures = {
        address: client.submit(inspect_worker, view.site, view.mark, name, workers=[address], pure=False)
        for address, name in names.items()
    }
    paused: set[str] = set()
    for seconds in (min(timeout, _SECONDS_TO_PAUSE), timeout):
        with contextlib.suppress(TimeoutError), client.as_current():
            wait([future for address, future in futures.items() if address not in paused], timeout=seconds)
        paused = _paused_workers(client)  # they begin no task, and memory that no task has taken does not come back
    answers: dict[str, WorkerFacts | AmmrankError] = {}
    for address, future in futures.items():
        if future.status == "error":
            answers[address] = _say_failure(address, future.exception(), view)
        elif future.status != "finished" and address in paused:
            answers[address] = AmmrankError(
                f"the worker at {address} is paused for lack of memory before its first task; give it more"
            )
        elif future.status != "finished":
            answers[address] = AmmrankError(
                f"the worker at {address} did not answer within {timeout:g} s; look at its log"
            )
        else:
            answer = future.result()
            is_seen = answer.sees_site and _appears(view.site / names[address])
            answers[address] = dataclasses.replace(answer, sees_site=is_seen)
    return answers


def _paused_workers(client: Client) -> set[str]:
    """Return the addresses of workers that take no task for lack of memory."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return {address for address, worker in workers.items() if worker["status"] == "paused"}


def inspect_worker(site: Path, mark: str, answer: str) -> WorkerFacts:
    """Find the client's file, answer with one beside it, and return versions, clock and type of CPU."""
    sees_site = _appears(site / mark)
    ahead = _write_mark(site / answer) if sees_site else 0.0
    return WorkerFacts(package_versions(), sees_site, ahead, cpu_type())


@retried
def _write_mark(path: Path) -> float:
    """Write a file, and return by how many seconds the clock of this host is ahead of the file system's."""
    path.write_text(path.name, encoding="utf-8")
    return time.time() - path.stat().st_mtime


def say_skew(who: str, skew: float) -> str:
    """Return the sentence about a clock that goes wrong."""
    way = "ahead of" if skew > 0 else "behind"
    return f"the clock of {who} is {abs(skew):,.0f} s {way} that of this machine; set both by NTP"


@retried
def _sweep_marks(site: Path) -> None:
    """Remove the files of commands that were killed; none runs for a week."""
    for path in list_paths(site, f"{MARK}*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _SECONDS_MARKS_STAY:
                path.unlink()


def _remove_marks(site: Path, mark: str) -> None:
    """Remove the files by which client and workers looked whether they see the same folder."""
    for path in list_paths(site, f"{mark}*"):
        remove(path)


def _say_failure(address: str, error: BaseException | None, view: ClientView) -> AmmrankError:
    if isinstance(error, ImportError):
        version = view.versions["ammrank-dask"]
        return AmmrankError(f"the worker at {address} cannot import ammrank-dask; install version {version} there")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return AmmrankError(f"the worker at {address} cannot write in {view.site} ({error.strerror}); make room there")
    if isinstance(error, OSError):
        return BadInput(
            f"the worker at {address} cannot read and write in {view.site} ({type(error).__name__}: {error.strerror});"
            " the site must be a folder that all hosts share, may read and may write"
        )
    return AmmrankError(f"the worker at {address} failed with {type(error).__name__}; look at its log")


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


def check_dask(address: str, security: Security | None, *, timeout: float) -> None:
    """Refuse a scheduler of another version of Dask before a client joins it, which may not even end well.

    What versions are asked by is the same in all of them.
    """

    async def ask() -> Any:
        more = {} if security is None else security.get_connection_args("client")
        comm = await connect(address, timeout=timeout, **more)
        return await asyncio.wait_for(send_recv(comm, close=True, op="versions"), timeout)

    # In a thread of its own: the one that calls may have an event loop, which `asyncio.run` would take from it.
    with ThreadPoolExecutor(1) as thread:
        theirs = thread.submit(lambda: asyncio.run(ask())).result()["packages"]
    _compare_versions("the scheduler", theirs, {name: version_of(name) for name in ("dask", "distributed")})


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
    while not is_file(path):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


class Joiners:
    """The workers that have joined: `starting` until they have looked at themselves, `refused` with the reason.

    A worker that cannot load its check, because the package is missing there, ends before it is up. With a nanny, which
    waits for it, it stays on the scheduler's list as closing, and whoever asks all workers would wait for it.
    """

    def __init__(self, client: Client, topic: str, version: str) -> None:
        self.client, self.topic, self.version = client, topic, version
        self.starting: set[str] = set()
        self.refused: dict[str, str] = {}

    @contextlib.contextmanager
    def looked_at(self) -> Iterator[None]:
        """Check workers that join from now until the end of the block."""
        loop: Any = self.client.loop
        looks = PeriodicCallback(self._look, 1000 * SECONDS_BETWEEN_LOOKS)
        self.client.subscribe_topic(_ALL, self._take_change)
        self.client.subscribe_topic(self.topic, self._take_check)
        loop.add_callback(looks.start)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # the cluster may be gone
                loop.add_callback(looks.stop)
                self.client.unsubscribe_topic(_ALL)
                self.client.unsubscribe_topic(self.topic)

    def _take_change(self, event: tuple[float, Any]) -> None:
        """Take in that a worker has joined or left."""
        change = event[1]
        if change["action"] == "add-worker":
            self.starting.add(change["worker"])
        elif change["action"] == "remove-worker" and change["worker"] in self.starting:
            self.starting.remove(change["worker"])
            if not change["expected"]:
                self._refuse_unstarted(change["worker"])

    def _take_check(self, event: tuple[float, Any]) -> None:
        """Take in what a worker that looked at itself has to say."""
        check = event[1]
        self.starting.discard(check["worker"])
        if check["refusal"] is not None:
            self.refused[check["worker"]] = check["refusal"]

    async def _look(self) -> None:
        """Let those leave that cannot be used."""
        scheduler: Any = self.client.scheduler
        with contextlib.suppress(OSError):  # the scheduler is gone, or too busy: the next look is soon
            if self.starting:
                workers = (await scheduler.identity(n_workers=-1))["workers"]
                for address in list(self.starting):
                    if workers.get(address, {}).get("status") == "closing":
                        self.starting.discard(address)
                        self._refuse_unstarted(address)
            while self.refused:
                address, refusal = self.refused.popitem()
                sentence = f"{refusal}; the command goes on without this worker"
                logger.warning("%s", sentence)
                publish(self.client, "note", name="workers", text=sentence)
                await scheduler.retire_workers(workers=[address], close_workers=True)

    def _refuse_unstarted(self, address: str) -> None:
        self.refused[address] = (
            f"the worker at {address} did not start; install ammrank-dask {self.version} there and look at its log"
        )

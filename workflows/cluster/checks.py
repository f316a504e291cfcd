"""Check a cluster before the first task: same versions everywhere, one view of the site, enough memory."""

from __future__ import annotations

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
from ammrank_dask.storage.store.atomic import OTHERS
from ammrank_dask.storage.store.runs import VERSIONED, version_of

_SECONDS_TO_SEE = 5.0
"""How long a file may take to show up on another host: network file systems remember that it was not there."""


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker knows about itself."""

    versions: dict[str, str]
    sees_site: bool


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


def check_workers(client: Client, site: Path, *, timeout: float) -> None:
    """Refuse a cluster with other versions of the packages, or whose workers do not see the files of the site."""
    _check_scheduler(client)
    name = f".view-{uuid.uuid4().hex}"
    here = site.resolve()
    (here / name).write_text(name, encoding="utf-8")
    try:
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        futures = {
            address: client.submit(inspect_worker, here, name, number, workers=[address], pure=False)
            for number, address in enumerate(workers)
        }
        with contextlib.suppress(TimeoutError), client.as_current():
            wait(list(futures.values()), timeout=timeout)
        own = package_versions()
        for number, (address, future) in enumerate(futures.items()):
            if future.status == "error":
                raise _say_failure(address, future.exception(), here, own["ammrank-dask"])
            if future.status != "finished":
                raise AmmrankError(f"the worker at {address} did not answer within {timeout:g} s; look at its log")
            facts = future.result()
            _compare_versions(f"the worker at {address}", facts.versions, own)
            if not facts.sees_site or not _appears(here / f"{name}-{number}"):
                raise BadInput(
                    f"the worker at {address} does not see the files of {here}; the site must be a folder that all"
                    " hosts share under one path"
                )
    finally:
        for path in here.glob(f"{name}*"):
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


def inspect_worker(site: Path, name: str, number: int) -> WorkerFacts:
    """Look for the client's file, answer with one beside it, and tell the versions of the packages."""
    seen = _appears(site / name)
    if seen:
        (site / f"{name}-{number}").write_text(name, encoding="utf-8")
    return WorkerFacts(package_versions(), seen)


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages whose versions must be equal on all hosts."""
    versions = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            versions[name] = version_of(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _check_scheduler(client: Client) -> None:
    """Compare what Dask itself knows about the scheduler: ammrank-dask need not be installed there."""
    found: Any = client.get_versions(check=False)
    packages = found["scheduler"]["packages"].items()
    theirs = {name: str(version).split(".final")[0] for name, version in packages if version is not None}
    own = {name: version for name, version in package_versions().items() if name in theirs}
    _compare_versions("the scheduler", theirs, own)


def _compare_versions(who: str, theirs: dict[str, str], own: dict[str, str]) -> None:
    differing = [name for name, version in own.items() if theirs.get(name) != version]
    if differing:
        shown = ", ".join(f"{name} {theirs.get(name)} instead of {own[name]}" for name in differing)
        raise BadInput(f"{who} has {shown}; install the same versions everywhere")


def _appears(path: Path) -> bool:
    end = time.monotonic() + _SECONDS_TO_SEE
    while not path.is_file():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True

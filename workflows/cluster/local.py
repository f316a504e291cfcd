"""Keep a cluster that is started here to its owner: a folder for its files, and pages that only its own may follow."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
from distributed import LocalCluster, WorkerPlugin
from distributed.comm.addressing import unparse_host_port

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.account import is_private_group
from ammrank_dask.workflows.cluster.cluster_file import LOCAL_HOSTS

_SETTING = "temporary-directory"

SETTING = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"


@contextlib.contextmanager
def private_scratch(class_: Any, kwargs: dict[str, Any], path: Path) -> Iterator[None]:
    """Let the cluster put its files into new folders of mode 0700, which are removed at the end; changes `kwargs`.

    Dask takes `dask-scratch-space` of the temporary folder whoever made it, and all its processes, this one too, import
    from there first.
    """
    with contextlib.ExitStack() as stack:
        configured = dask.config.get(_SETTING)
        setting = f"{_SETTING} of Dask's settings" if configured else "the folder for temporary files (TMPDIR)"
        folder = stack.enter_context(_private_folder(configured or tempfile.gettempdir(), setting))
        stack.enter_context(dask.config.set({_SETTING: folder}))
        given = kwargs.get("local_directory")
        if given is not None and isinstance(class_, type) and issubclass(class_, LocalCluster):
            # Clusters of other kinds mean a folder of other machines.
            setting = f"{path}: kwargs.local_directory"
            kwargs["local_directory"] = stack.enter_context(_private_folder(given, setting))
        yield


@contextlib.contextmanager
def _private_folder(parent: Any, setting: str) -> Iterator[str]:
    """Make a folder of our own in `parent`, and leave nothing of it: no files, and nowhere to import from."""
    try:
        base = Path(parent).resolve()
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_shared(base, setting)
        folder = tempfile.mkdtemp(prefix="ammrank-", dir=base)
    except BadInput:
        raise
    except (OSError, TypeError, ValueError) as error:
        raise BadInput(f"{setting} must be a folder that you can write, got {parent} ({error}); correct it") from None
    try:
        yield folder
    finally:
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(folder + os.sep)]
        shutil.rmtree(folder, ignore_errors=True)


def _refuse_shared(base: Path, setting: str) -> None:
    """Refuse a folder in which, or above which, another account can put another folder where ours is."""
    for folder in (base, *base.parents):
        found = folder.stat()
        if found.st_uid not in (0, os.geteuid()):
            raise BadInput(
                f"{setting}: {folder} must belong to you or to root, found user id {found.st_uid}; name another folder"
            )
        is_open = found.st_mode & 0o002 or (found.st_mode & 0o020 and not is_private_group(found.st_gid, os.geteuid()))
        if is_open and not found.st_mode & stat.S_ISVTX:
            mode = stat.filemode(found.st_mode)
            raise BadInput(
                f"{setting}: nobody but you may write {folder}, found {mode}; run `chmod go-w {folder}` or name another"
                " folder"
            )


def own_origins() -> dict[str, Any]:
    """Return the setting that makes a server of pages take localhost with its port only, in the place of Dask's `*`."""
    return {SETTING: []} if dask.config.get(SETTING, None) == ["*"] else {}


def name_origins(dask_scheduler: Any) -> None:
    """Add the other names of a scheduler or worker to those that its pages may have: the port is known only now."""
    if dask.config.get(SETTING, None) != []:
        return
    server = dask_scheduler.http_server
    is_everywhere = server.address in ("0.0.0.0", "::")
    names = (socket.gethostname(), dask_scheduler.ip) if is_everywhere else (server.address,)
    origins = {unparse_host_port(name.lower(), server.port) for name in (*LOCAL_HOSTS, *names)}
    for application in dask_scheduler.http_application.applications:
        if hasattr(application, "websocket_origins"):
            application.websocket_origins.update(origins)


class NameOrigins(WorkerPlugin):
    """Does it for the pages of every worker."""

    name = "ammrank-origins"
    idempotent = True

    def setup(self, worker: Any) -> None:
        """Add the names of a worker."""
        name_origins(worker)

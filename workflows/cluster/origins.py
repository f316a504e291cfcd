"""Let only pages of the dashboard itself follow what it shows, and not pages of other sites in the same browser."""

from __future__ import annotations

import socket
from typing import Any

import dask
from distributed import WorkerPlugin
from distributed.comm.addressing import unparse_host_port

from ammrank_dask.workflows.cluster.cluster_file import LOCAL_HOSTS

SETTING = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"


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

"""The scheduler plugin: count tasks, listen to events, and serve the page, the JSON and the metrics."""

from __future__ import annotations

import json
import logging
import re
import time
from typing import Any

from distributed import Client, SchedulerPlugin

from ammrank_dask.monitor.events import TOPIC
from ammrank_dask.monitor.page import Updates, add_page
from ammrank_dask.monitor.prometheus import NightCollector, add_metrics, remove_metrics
from ammrank_dask.monitor.state import NightState, take_snapshot

logger = logging.getLogger(__name__)

PAGE = "ammrank"
SNAPSHOT_SECONDS = 0.5
"""All readers within this time share one snapshot."""


class NightPlugin(SchedulerPlugin):
    """Watch the nights that run on a scheduler; registered twice it stays the first one."""

    name = "ammrank-monitor"
    idempotent = True

    def __init__(self) -> None:
        self.state = NightState()
        self.collector = NightCollector(self.read)
        self._scheduler: Any = None
        self._snapshot: dict[str, Any] | None = None
        self._taken = 0.0
        self._updates = Updates(self.read)

    def __reduce__(self) -> tuple[type[NightPlugin], tuple[()]]:
        """Travel without state: the scheduler makes its own."""
        return NightPlugin, ()

    async def start(self, scheduler: Any) -> None:
        """Take the scheduler, and add the page, the route and the metrics to its web server."""
        if self._scheduler is not None:
            return
        self._scheduler = scheduler
        for address in scheduler.workers:
            self.add_worker(scheduler, address)
        add_page(scheduler, PAGE, self.to_json, self._updates)
        add_metrics(self.collector)

    async def close(self) -> None:
        """Take the metrics away and end the updates of open pages."""
        remove_metrics(self.collector)
        self._updates.close()

    def read(self) -> dict[str, Any]:
        """Return the snapshot, at most half a second old."""
        now = time.time()
        if self._snapshot is None or not 0 <= now - self._taken <= SNAPSHOT_SECONDS:
            self._snapshot = take_snapshot(self.state, now, self._read_memory())
            self._taken = now
        return self._snapshot

    def _read_memory(self) -> list[dict[str, Any]]:
        """Return what the workers said last about their memory."""
        workers = {} if self._scheduler is None else self._scheduler.workers
        return [
            {"worker": address, "used": worker.metrics.get("memory"), "limit": worker.memory_limit or None}
            for address, worker in workers.items()
        ]

    def to_json(self) -> str:
        """Return the snapshot as JSON text."""
        return json.dumps(self.read(), allow_nan=False)

    def log_event(self, topic: str, msg: Any) -> None:
        """Take in the events of our topic."""
        if topic == TOPIC and isinstance(msg, dict):
            self.state.apply(dict(msg), time.time())
            if msg.get("kind") == "night":
                self._snapshot = None
                self._updates.announce()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Count one task that changed its state."""
        if not (type(key) is tuple and len(key) in (3, 4) and type(key[2]) is int):
            return
        task, key = key, key[:3]  # the fourth tells how often it was taken from a worker
        if finish == "processing":
            worker = self._scheduler.tasks[task].processing_on
            if worker is not None:
                self.state.start_task(key, worker.address)
        elif start == "processing":
            if finish == "memory":
                self.state.finish_task(key)
            elif finish == "erred":
                self.state.fail_task(key, kwargs.get("worker") or "", _error_class(kwargs))
            else:
                self.state.drop_task(key, self._scheduler.workers)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Learn the name of a worker."""
        self.state.name_worker(worker, str(scheduler.workers[worker].name))

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Count a worker that left."""
        self.state.lose_worker()

    def remove_client(self, scheduler: Any, client: str) -> None:
        """End what a client that left was running."""
        self.state.lose_client(client, time.time())


def watch_cluster(client: Client) -> bool:
    """Register the plugin at the client's scheduler and tell whether it is there.

    A night runs just as well unwatched: a scheduler that lacks this package or refuses plugins is left alone.
    """
    try:
        client.register_plugin(NightPlugin())
    except Exception as error:  # whatever unpickling raises on a scheduler without our packages
        logger.warning("the scheduler does not take the AMM-rank page (%s); install ammrank-dask there", error)
        return False
    return True


def page_address(client: Client) -> str:
    """Return the address of the AMM-rank page."""
    return re.sub(r"/status$", f"/{PAGE}", client.dashboard_link)


def _error_class(kwargs: dict[str, Any]) -> str:
    """Return the class of an exception; its message may hold values of the data."""
    found = re.match(r"[A-Za-z_][\w.]*", kwargs.get("exception_text") or "")
    return found.group() if found else "error"

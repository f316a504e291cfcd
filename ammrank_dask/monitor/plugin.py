"""The scheduler plugin: count tasks, listen to events, and serve the page, the JSON and the metrics."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import prometheus_client
from distributed import Client, SchedulerPlugin
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ammrank_dask.monitor.events import TOPIC
from ammrank_dask.monitor.page import Updates, add_page
from ammrank_dask.monitor.state import NightState, take_snapshot

logger = logging.getLogger(__name__)

PAGE = "ammrank"
SNAPSHOT_SECONDS = 0.5
"""All readers within this time share one snapshot."""


NIGHT_STATES = ("none", "begin", "end", "failed")
STAGE_STATES = ("waiting", "running", "end", "failed", "skipped")

_collectors: list[Collector] = []


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


def add_metrics(collector: Collector) -> None:
    """Add metrics to `/metrics`; of several schedulers in one process the newest is shown."""
    for old in list(_collectors):
        remove_metrics(old)
    prometheus_client.REGISTRY.register(collector)
    _collectors.append(collector)


def remove_metrics(collector: Collector) -> None:
    """Take metrics away again."""
    if collector in _collectors:
        _collectors.remove(collector)
        prometheus_client.REGISTRY.unregister(collector)


class NightCollector(Collector):
    """Metrics named `ammrank_…` from the snapshot of a night; the number of series does not grow with categories."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self.read = read

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        facts = self.read()
        night = facts["night"]
        state = GaugeMetricFamily("ammrank_night_state", "1 for the state the night is in", labels=["date", "state"])
        for name in NIGHT_STATES:
            state.add_metric([night["date"] or "", name], float(night["state"] == name))
        yield state
        yield from _gauge("ammrank_night_started_timestamp_seconds", "When the night began", night["started"])
        yield from _gauge("ammrank_night_seconds", "How long the night has been running, or ran", night["seconds"])
        yield from _gauge("ammrank_night_left_seconds", "Estimate of the time left", night["left"])
        yield from _stages(facts["stages"])
        yield CounterMetricFamily("ammrank_tasks_done", "Tasks finished", value=facts["tasks_done"])
        yield CounterMetricFamily("ammrank_tasks_failed", "Tasks failed or lost", value=facts["tasks_failed"])
        yield CounterMetricFamily("ammrank_workers_lost", "Workers lost at work", value=facts["workers_lost"])
        yield from _training(facts["training"] or {})
        exposure = facts["exposure"] or {}
        yield from _gauge("ammrank_exposure_users", "Users scored so far", exposure.get("users"))
        yield from _gauge("ammrank_exposure_coverage", "Share of categories with a user", exposure.get("coverage"))
        yield from _gauge("ammrank_starved_categories", "Starved categories so far", exposure.get("starved_categories"))


def _stages(stages: list[dict[str, Any]]) -> Iterator[Metric]:
    state = GaugeMetricFamily("ammrank_stage_state", "1 for the state a stage is in", labels=["stage", "state"])
    seconds = GaugeMetricFamily("ammrank_stage_seconds", "How long a stage has been running, or ran", labels=["stage"])
    usual = GaugeMetricFamily("ammrank_stage_usual_seconds", "How long the stage took last time", labels=["stage"])
    tasks = GaugeMetricFamily("ammrank_stage_tasks", "Tasks a stage has finished", labels=["stage"])
    rate = GaugeMetricFamily("ammrank_stage_rate", "Units a second of the current step", labels=["stage", "unit"])
    for stage in stages:
        for name in STAGE_STATES:
            state.add_metric([stage["name"], name], float(stage["state"] == name))
        seconds.add_metric([stage["name"]], stage["seconds"])
        tasks.add_metric([stage["name"]], stage["tasks_done"])
        if stage["usual_seconds"] is not None:
            usual.add_metric([stage["name"]], stage["usual_seconds"])
        if stage["rate"] is not None and stage["state"] == "running":
            rate.add_metric([stage["name"], stage["unit"]], stage["rate"])
    yield from (state, seconds, usual, tasks, rate)


def _training(last: dict[str, Any]) -> Iterator[Metric]:
    yield from _gauge("ammrank_training_epoch", "Epoch of the last round", last.get("epoch"))
    yield from _gauge("ammrank_training_loss", "Loss of the last round", last.get("loss"))
    yield from _gauge("ammrank_training_planes", "Planes of the model", last.get("planes"))
    yield from _gauge("ammrank_validation_error", "Held-out disagreement error", last.get("validation_error"))
    yield from _gauge("ammrank_popularity_error", "The same error of popularity", last.get("popularity_error"))


def _gauge(name: str, meaning: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield GaugeMetricFamily(name, meaning, value=value)

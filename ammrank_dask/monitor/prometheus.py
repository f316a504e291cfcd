"""Show the night as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

NIGHT_STATES = ("none", "begin", "end", "failed")
STAGE_STATES = ("waiting", "running", "end", "failed", "skipped")

_collectors: list[Collector] = []


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

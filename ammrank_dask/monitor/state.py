"""What a scheduler knows about the night: counted task by task, told by events, read as one snapshot.

Plain Python without a scheduler in it. Every change is O(1), and memory does not grow with the number of tasks:
a batch of tasks costs one byte a task while it runs, and everything else is a list of fixed length.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ammrank_dask.report.thresholds import Thresholds, starved

FORMAT = 2
MAX_BATCHES, MAX_STAGES, MAX_WORKERS, MAX_FAILURES, MAX_NOTES, MAX_NOTE = 64, 64, 1_000, 20, 12, 400
MAX_SHOWN_WORKERS = 200

Key = tuple[str, str, int]
"""(stage, token, index): how `run_tasks` names its tasks."""


@dataclass
class Batch:
    """One call of `run_tasks`."""

    name: str
    stage: str
    total: int
    unit: str
    units: list[int] | None
    units_total: int
    started: float
    is_done: bytearray
    done: int = 0
    units_done: int = 0
    state: str = "running"
    ended: float | None = None

    def left(self, now: float) -> float | None:
        """Return the seconds that are left at the rate so far, None where there is no rate."""
        if self.state != "running":
            return None
        part, whole = (self.units_done, self.units_total) if self.units else (self.done, self.total)
        return (now - self.started) * (whole - part) / part if part else None

    def rate(self, now: float) -> float | None:
        """Return units a second since the beginning, tasks where no units are known; None before the first task."""
        if not self.done:
            return None
        seconds = max(1e-3, (self.ended or now) - self.started)
        return (self.done if self.unit == "tasks" else self.units_done) / seconds


@dataclass
class Stage:
    """A stage of the night: ingest, features, train …"""

    name: str
    state: str = "waiting"
    started: float | None = None
    ended: float | None = None
    tasks_done: int = 0
    tasks_failed: int = 0
    batch: Batch | None = None
    measured: Batch | None = None

    def seconds(self, now: float) -> float:
        """Return how long it has been running, or ran."""
        return 0.0 if self.started is None else (self.ended if self.ended is not None else now) - self.started


class NightState:
    """The facts behind the page, the JSON and the metrics."""

    def __init__(self) -> None:
        self.tasks_done = 0
        self.tasks_failed = 0
        self.workers_lost = 0
        self.usual: dict[str, float] = {}
        self.batches: OrderedDict[str, Batch] = OrderedDict()
        self.worker_names: OrderedDict[str, str] = OrderedDict()
        self.training: dict[str, Any] = {}
        self._begin_night({}, None)

    # Events of the client

    def apply(self, event: dict[str, Any], now: float) -> None:
        """Take in one event of `ammrank_dask.monitor.events`; unknown kinds are left alone."""
        handler = {
            "night": self._night,
            "stage": self._stage,
            "tasks": self._tasks,
            "units": self._units,
            "train": self._train,
            "exposure": self._exposure,
            "note": self._note,
        }.get(str(event.get("kind")))
        if handler is not None:
            handler(event, now)

    def _night(self, event: dict[str, Any], now: float) -> None:
        if event["state"] == "begin":
            self._begin_night(event, now)
            return
        self.night |= {"state": event["state"], "ended": now, "error": event.get("error")}
        for stage in self.stages.values():
            if stage.state == "running":
                stage.state, stage.ended = event["state"], now
            elif stage.state == "waiting" and event["state"] == "end":
                stage.state = "skipped"
        if event["state"] == "end":
            self.usual |= {stage.name: stage.seconds(now) for stage in self.stages.values() if stage.started}

    def _begin_night(self, event: dict[str, Any], now: float | None) -> None:
        state = "begin" if event else "none"
        self.night: dict[str, Any] = {"date": event.get("date"), "state": state, "started": now}
        self.client = event.get("client")
        self.stages = OrderedDict((name, Stage(name)) for name in event.get("stages", [])[:MAX_STAGES])
        self.open_stage: str | None = None
        self.exposure: dict[str, Any] | None = None
        self.notes: OrderedDict[str, str] = OrderedDict()
        self.in_hand: dict[Key, str] = {}
        self.failures: deque[dict[str, Any]] = deque(maxlen=MAX_FAILURES)
        self.usual |= event.get("usual", {})

    def _stage(self, event: dict[str, Any], now: float) -> None:
        stage = self._find_stage(str(event["name"]))
        if event["state"] == "begin":
            stage.state, stage.started, stage.ended = "running", now, None
            self.open_stage = stage.name
            return
        stage.state = event["state"]
        stage.ended = now if stage.started is not None else None
        if self.open_stage == stage.name:
            self.open_stage = None

    def _tasks(self, event: dict[str, Any], now: float) -> None:
        token, name = str(event["token"]), str(event["name"])
        if event["state"] == "begin":
            # Without a night (a single command, a script) the first word of the tasks' name is the stage.
            stage = self._find_stage(self.open_stage or name.split("-")[0])
            total = int(event["total"])
            units = event.get("units") or None
            unit = event.get("unit", "users") if units or event.get("counted") else "tasks"
            batch = Batch(name, stage.name, total, unit, units, sum(units or []), now, bytearray(total))
            self.batches[token] = stage.batch = batch
            if unit != "tasks" or stage.measured is None:
                stage.measured = batch  # merges between rounds must not hide the users per second
            while len(self.batches) > MAX_BATCHES:
                self.batches.popitem(last=False)
            if self.open_stage is None:
                stage.state, stage.ended = "running", None
                stage.started = now if stage.started is None else stage.started
            return
        ended = self.batches.pop(token, None)
        if ended is not None:
            ended.state, ended.ended, ended.units = event["state"], now, None
            stage = self._find_stage(ended.stage)
            if self.open_stage is None and stage.state == "running":
                stage.state, stage.ended = event["state"], now

    def _units(self, event: dict[str, Any], now: float) -> None:
        batch = self.batches.get(str(event["token"]))
        if batch is not None:
            batch.units_done += sum(units for _, units in event["counts"])

    def _train(self, event: dict[str, Any], now: float) -> None:
        names = ("epoch", "epochs", "round", "rounds", "loss", "planes", "validation_error", "popularity_error")
        facts = {name: event[name] for name in names if name in event}
        before = self.training if self.training.get("night") == self.night["date"] else {}
        if before and (facts["epoch"], facts["round"]) < (before["epoch"], before["round"]):
            before = {}  # another training, perhaps of the same night: that of the model that is tried on later clicks
        # An epoch ends with a second event of its last round; its measures stay until the next epoch has ended.
        self.training = before | facts | {"night": self.night["date"]}

    def _exposure(self, event: dict[str, Any], now: float) -> None:
        self.exposure = {name: value for name, value in event.items() if name not in ("kind", "client")}

    def _note(self, event: dict[str, Any], now: float) -> None:
        self.notes[str(event["name"])[:MAX_NOTE]] = str(event["text"])[:MAX_NOTE]
        while len(self.notes) > MAX_NOTES:
            self.notes.popitem(last=False)

    def _find_stage(self, name: str) -> Stage:
        if name not in self.stages:
            self.stages[name] = Stage(name)
            while len(self.stages) > MAX_STAGES:
                self.stages.popitem(last=False)
        return self.stages[name]

    # Transitions of tasks

    def start_task(self, key: Key, worker: str) -> None:
        """Note that a worker has a task in hand."""
        if key[1] in self.batches:
            self.in_hand[key] = worker

    def drop_task(self, key: Key, workers: Container[str]) -> None:
        """Note that a task is in no worker's hand any more, without a result; `workers` are those there are."""
        worker = self.in_hand.pop(key, None)
        if worker is not None and worker not in workers:
            self.fail_task(key, worker, "worker lost")

    def finish_task(self, key: Key) -> None:
        """Count a finished task; one that ran twice counts once."""
        self.in_hand.pop(key, None)
        batch = self.batches.get(key[1])
        index = key[2]
        if batch is None or not 0 <= index < batch.total or batch.is_done[index]:
            return
        self.tasks_done += 1
        batch.is_done[index] = 1
        batch.done += 1
        batch.units_done += batch.units[index] if batch.units else 0
        self._find_stage(batch.stage).tasks_done += 1

    def fail_task(self, key: Key, worker: str, error: str) -> None:
        """Count a task that raised; `error` is the name of the exception's class."""
        self.in_hand.pop(key, None)
        batch = self.batches.get(key[1])
        if batch is None:
            return
        self.tasks_failed += 1
        self._find_stage(batch.stage).tasks_failed += 1
        name = self.worker_name(worker)
        self.failures.append({"stage": batch.name, "part": key[2], "worker": name, "error": error})

    def name_worker(self, address: str, name: str) -> None:
        """Keep the name of a worker, also for the time after it left; without one it is its address."""
        self.worker_names[address] = f"worker {name}" if name.isdigit() else name.rpartition("//")[2]
        while len(self.worker_names) > MAX_WORKERS:
            self.worker_names.popitem(last=False)

    def lose_worker(self) -> None:
        """Count a worker that left while a night was running."""
        if self.batches:
            self.workers_lost += 1

    def worker_name(self, address: str) -> str:
        """Return what a worker is called."""
        return self.worker_names.get(address) or address.rpartition("//")[2]

    def lose_client(self, client: str, now: float) -> None:
        """End the night of a client that went away without a word."""
        if client == self.client and self.night["state"] == "begin":
            self._night({"state": "failed", "error": "the driver went away"}, now)


def take_snapshot(state: NightState, now: float, memory: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return everything that page, JSON and metrics show about a night, as plain values.

    Parameters
    ----------
    state
        The state in the scheduler.
    now
        Seconds since the epoch.
    memory
        Of every worker that is there its `worker` (address), the bytes it has `used` and its `limit`, None without one.

    Returns
    -------
    dict
        `night`, `stages`, `training`, `memory`, `failures`, `exposure`, `notes` and counters; numbers that are not
        known are None.
    """
    stages = [_describe_stage(stage, state, now) for stage in state.stages.values()]
    running = [stage for stage in stages if stage["state"] == "running"]
    started = state.night["started"]
    left = [stage["left"] for stage in stages if stage["state"] in ("running", "waiting")]
    snapshot = {
        "format": FORMAT,
        "now": now,
        "night": {
            "date": state.night["date"],
            "state": state.night["state"],
            "started": started,
            "seconds": None if started is None else (state.night.get("ended") or now) - started,
            "left": sum(left) if left and None not in left and state.night["state"] == "begin" else None,
            "stage": running[-1]["name"] if running else None,
            "error": state.night.get("error"),
        },
        "stages": stages,
        "training": state.training or None,
        "memory": [row | {"worker": state.worker_name(row["worker"])} for row in memory][:MAX_SHOWN_WORKERS],
        "failures": list(state.failures)[::-1],
        "exposure": None if state.exposure is None else measure_exposure(state.exposure),
        "notes": [{"name": name, "text": text} for name, text in state.notes.items()],
        "tasks_done": state.tasks_done,
        "tasks_failed": state.tasks_failed,
        "workers_lost": state.workers_lost,
    }
    return _finite(snapshot)


def _describe_stage(stage: Stage, state: NightState, now: float) -> dict[str, Any]:
    batch, measured, usual = stage.batch, stage.measured, state.usual.get(stage.name)
    step = None
    if batch is not None:
        step = {"name": batch.name, "state": batch.state, "done": batch.done, "total": batch.total}
    return {
        "name": stage.name,
        "state": stage.state,
        "started": stage.started,
        "ended": stage.ended,
        "seconds": stage.seconds(now),
        "left": _seconds_left(stage, state, now),
        "usual_seconds": usual,
        "tasks_done": stage.tasks_done,
        "tasks_failed": stage.tasks_failed,
        "step": step,
        "unit": None if measured is None else measured.unit,
        "rate": None if measured is None else measured.rate(now),
    }


def _seconds_left(stage: Stage, state: NightState, now: float) -> float | None:
    """Return what a stage needs still: what it took last time, or longer if its tasks say so."""
    usual = state.usual.get(stage.name)
    if stage.state == "waiting":
        return usual
    if stage.state != "running":
        return 0.0
    seconds = stage.seconds(now)
    left = _training_left(state, seconds) if stage.name == "train" else None
    if left is None and stage.batch is not None:
        left = stage.batch.left(now)
    return left if usual is None else max(usual - seconds, left or 0.0)


def _training_left(state: NightState, seconds: float) -> float | None:
    """Return the seconds that training has left, from the epochs it has done."""
    last = state.training
    if "epochs" not in last or last["night"] != state.night["date"]:
        return None
    done = (last["epoch"] - 1 + last["round"] / max(1, last.get("rounds", 1))) / max(1, last["epochs"])
    return seconds * (1 - done) / done if done else None


def measure_exposure(event: dict[str, Any]) -> dict[str, Any]:
    """Return how many categories are starved so far, and the share of categories with a user.

    A category is starved without a user, or when its share of exposure is below `starved_below` (or the usual ratio)
    of its share of clicks.
    """
    counts = event["counts"]
    clicks = event.get("clicks") or [0] * len(counts)
    may_hold = np.array([name not in event.get("excluded", ()) for name in event["categories"]], bool)
    ratio = event.get("starved_below", Thresholds().starved_ratio)
    is_starved = starved(np.array(counts, np.int64), np.array(clicks, np.int64), ratio, may_hold)
    return {
        "users": event.get("users", 0),
        "users_total": event.get("users_total"),
        "categories": len(counts),
        "starved_categories": int(is_starved.sum()),
        "coverage": sum(count > 0 for count in counts) / max(1, len(counts)),
    }


def _finite(value: Any) -> Any:
    """Return the value with None in place of numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

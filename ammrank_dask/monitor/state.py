"""What a scheduler knows about the night: counted task by task, told by events, read as one snapshot.

Plain Python without a scheduler in it. Every change is O(1), and memory does not grow with the number of tasks:
a batch of tasks costs one byte a task while it runs, and everything else is a list of fixed length.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ammrank_dask.report.thresholds import Thresholds, share_of, starved

FORMAT = 1
MAX_BATCHES, MAX_STAGES, MAX_WORKERS, MAX_ROUNDS, MAX_NIGHTS = 64, 64, 1_000, 2_000, 30
MAX_SLOW, MAX_FAILURES, MAX_CHECKS, MAX_NOTES, MAX_NOTE = 5, 20, 64, 12, 400
SLOW_FACTOR, SLOW_SECONDS = 3.0, 5.0
"""A task in hand is slow when it takes three times the mean of its batch, and five seconds."""

Key = tuple[str, str, int]
"""(stage, token, index): how `run_tasks` names its tasks."""

RECENT_TASKS = 16


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
    busy_seconds: float = 0.0
    state: str = "running"
    ended: float | None = None
    slowest: list[tuple[float, int, str]] = field(default_factory=list)
    is_counted: bool = False
    uncounted: dict[int, tuple[str, float]] = field(default_factory=dict)

    def left(self, now: float) -> float | None:
        """Return the seconds that are left at the rate so far, None where there is no rate."""
        if self.state != "running":
            return None
        part, whole = (self.units_done, self.units_total) if self.units else (self.done, self.total)
        return (now - self.started) * (whole - part) / part if part else None

    def rate(self, now: float) -> float:
        """Return units a second since the beginning; tasks where no units are known."""
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


class WorkerPace:
    """The last tasks of one worker in one stage."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.tasks = 0
        self.recent: deque[tuple[int, float]] = deque(maxlen=RECENT_TASKS)

    def add(self, units: int, seconds: float) -> None:
        """Count a finished task."""
        self.tasks += 1
        self.recent.append((units, seconds))

    def rate(self) -> float:
        """Return units per second of work."""
        return sum(units for units, _ in self.recent) / max(1e-6, sum(seconds for _, seconds in self.recent))


class NightState:
    """The facts behind the page, the JSON and the metrics."""

    def __init__(self) -> None:
        self.tasks_done = 0
        self.tasks_failed = 0
        self.workers_lost = 0
        self.nights: deque[dict[str, Any]] = deque(maxlen=MAX_NIGHTS)
        self.batches: OrderedDict[str, Batch] = OrderedDict()
        self.worker_names: OrderedDict[str, str] = OrderedDict()
        self.rounds: deque[dict[str, Any]] = deque(maxlen=MAX_ROUNDS)
        self.planes: dict[str, Any] | None = None
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
            "prices": self._prices,
            "checks": self._checks,
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
            self._remember(self._summary(now))

    def _begin_night(self, event: dict[str, Any], now: float | None) -> None:
        state = "begin" if event else "none"
        self.night: dict[str, Any] = {"date": event.get("date"), "state": state, "started": now}
        self.client = event.get("client")
        self.stages = OrderedDict((name, Stage(name)) for name in event.get("stages", [])[:MAX_STAGES])
        self.open_stage: str | None = None
        self.exposure: dict[str, Any] | None = None
        self.prices: dict[str, Any] | None = None
        self.checks: list[dict[str, Any]] = []
        self.notes: OrderedDict[str, str] = OrderedDict()
        self.in_hand: dict[Key, tuple[float, str]] = {}
        self.paces: OrderedDict[tuple[str, str], WorkerPace] = OrderedDict()
        self.failures: deque[dict[str, Any]] = deque(maxlen=MAX_FAILURES)
        for night in event.get("history", []):
            self._remember(night)

    def _remember(self, night: dict[str, Any]) -> None:
        by_date = {old.get("date"): old for old in self.nights}
        by_date[night.get("date")] = by_date.get(night.get("date"), {}) | night
        self.nights.clear()
        self.nights.extend(sorted(by_date.values(), key=lambda found: str(found.get("date"))))

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
            is_counted = bool(event.get("counted"))
            unit = event.get("unit", "users") if units or is_counted else "tasks"
            batch = Batch(name, stage.name, total, unit, units, sum(units or []), now, bytearray(total))
            batch.is_counted = is_counted
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
        for index, units in event["counts"] if batch is not None else ():
            if batch is not None and index in batch.uncounted:
                batch.units_done += units
                self._pace(batch, *batch.uncounted.pop(index), units)

    def _train(self, event: dict[str, Any], now: float) -> None:
        categories, counts = event.pop("categories", None), event.pop("planes_per_category", None)
        if counts is not None:
            self.planes = {"categories": categories or [str(code) for code in range(len(counts))], "counts": counts}
        facts = {name: value for name, value in event.items() if name not in ("kind", "client")}
        facts["night"] = self.night["date"]
        if self.rounds and self.rounds[-1]["night"] != facts["night"]:
            self.rounds.clear()  # until a night trains, the page shows the training of the night that did last
        last = self.rounds[-1] if self.rounds else {}
        if self.rounds and (facts["epoch"], facts["round"]) < (last["epoch"], last["round"]):
            self.rounds.clear()  # another training of the night: that of the model which is tried on later clicks
            last = {}
        if (last.get("epoch"), last.get("round")) == (facts["epoch"], facts["round"]):
            self.rounds[-1] = facts | last  # the end of an epoch adds what was measured to its last round
        else:
            self.rounds.append(facts)

    def _exposure(self, event: dict[str, Any], now: float) -> None:
        self.exposure = {name: value for name, value in event.items() if name not in ("kind", "client")}

    def _prices(self, event: dict[str, Any], now: float) -> None:
        self.prices = {name: event.get(name) for name in ("categories", "prices", "gap", "passes")}

    def _checks(self, event: dict[str, Any], now: float) -> None:
        self.checks = list(event["checks"])[:MAX_CHECKS]

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

    def start_task(self, key: Key, worker: str, now: float) -> None:
        """Note that a worker has a task in hand."""
        if key[1] in self.batches:
            self.in_hand[key] = (now, worker)

    def drop_task(self, key: Key, workers: Container[str]) -> None:
        """Note that a task is in no worker's hand any more, without a result; `workers` are those there are."""
        held = self.in_hand.pop(key, None)
        if held is not None and held[1] not in workers:
            self._fail(key, held[1], "worker lost")

    def finish_task(self, key: Key, worker: str, seconds: float) -> None:
        """Count a finished task; one that ran twice counts once."""
        self.in_hand.pop(key, None)
        batch = self.batches.get(key[1])
        index = key[2]
        if batch is None or not 0 <= index < batch.total or batch.is_done[index]:
            return
        self.tasks_done += 1
        batch.is_done[index] = 1
        batch.done += 1
        batch.busy_seconds += seconds
        heapq.heappush(batch.slowest, (seconds, index, worker))
        if len(batch.slowest) > MAX_SLOW:
            heapq.heappop(batch.slowest)
        self._find_stage(batch.stage).tasks_done += 1
        if batch.is_counted:
            batch.uncounted[index] = (worker, seconds)
        else:
            units = batch.units[index] if batch.units else 1
            batch.units_done += units
            self._pace(batch, worker, seconds, units)

    def _pace(self, batch: Batch, worker: str, seconds: float, units: int) -> None:
        pace = self.paces.get((worker, batch.stage))
        if pace is not None and batch.unit == "tasks" != pace.unit:
            return  # users or events per second say more than tasks
        if pace is None or pace.unit != batch.unit:
            pace = self.paces[worker, batch.stage] = WorkerPace(batch.unit)
            if len(self.paces) > MAX_WORKERS:
                self.paces.popitem(last=False)
        # What is done beside users says nothing about how fast they are.
        pace.add(units, seconds if units or batch.unit == "tasks" else 0.0)

    def fail_task(self, key: Key, worker: str, error: str) -> None:
        """Count a task that raised; `error` is the name of the exception's class."""
        self.in_hand.pop(key, None)
        if key[1] in self.batches:
            self._fail(key, worker, error)

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

    def _fail(self, key: Key, worker: str, error: str) -> None:
        batch = self.batches.get(key[1])
        if batch is None:
            return
        self.tasks_failed += 1
        self._find_stage(batch.stage).tasks_failed += 1
        name = self.worker_name(worker)
        self.failures.append({"stage": batch.name, "part": key[2], "worker": name, "error": error})

    def _summary(self, now: float) -> dict[str, Any]:
        own = [fact for fact in self.rounds if fact["night"] == self.night["date"]]
        errors = [fact["validation_error"] for fact in own if "validation_error" in fact]
        stages = {stage.name: round(stage.seconds(now), 3) for stage in self.stages.values() if stage.started}
        seconds = now - self.night["started"] if self.night["started"] is not None else None
        summary: dict[str, Any] = {"date": self.night["date"], "seconds": seconds, "stages": stages}
        if errors and not math.isnan(errors[-1]):
            summary["validation_error"] = errors[-1]
        if self.exposure is not None:
            found = exposure_facts(self.exposure)
            summary |= {
                "users": found["users"],
                "starved_categories": found["starved_categories"],
                "coverage": found["coverage"],
            }
        return summary


def exposure_facts(event: dict[str, Any]) -> dict[str, Any]:
    """Return shares and starved categories of an exposure event.

    A category is starved without a user, or when its share of exposure is below `starved_below` (or the usual ratio)
    of its share of clicks.
    """
    counts = event["counts"]
    clicks = event.get("clicks") or [0] * len(counts)
    held, clicked = np.array(counts, np.int64), np.array(clicks, np.int64)
    may_hold = np.array([name not in event.get("excluded", ()) for name in event["categories"]], bool)
    is_starved = starved(held, clicked, event.get("starved_below", Thresholds().starved_ratio), may_hold)
    return {
        "users": event.get("users", 0),
        "users_total": event.get("users_total"),
        "categories": event["categories"],
        "counts": counts,
        "share": share_of(held).tolist(),
        "click_share": share_of(clicked).tolist() if clicked.any() else None,
        "starved": is_starved.tolist(),
        "starved_categories": int(is_starved.sum()),
        "coverage": sum(count > 0 for count in counts) / max(1, len(counts)),
    }


def price_facts(event: dict[str, Any]) -> dict[str, Any]:
    """Return the duality gap and the dearest and the cheapest category of an event of prices."""
    named = sorted(zip(event["prices"], event["categories"], strict=True))
    ends = [{"category": name, "price": price} for price, name in (named[:1] + named[-1:])]
    return {
        "gap": event["gap"],
        "passes": event["passes"],
        "prices": dict(zip(event["categories"], event["prices"], strict=True)),
        "cheapest": ends[0] if ends else None,
        "dearest": ends[-1] if ends else None,
    }

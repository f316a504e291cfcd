"""Read the state of a night as one JSON-ready dictionary: the page, `/ammrank.json` and the metrics all show this."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

from ammrank_dask.monitor.state import (
    FORMAT,
    MAX_SLOW,
    SLOW_FACTOR,
    SLOW_SECONDS,
    NightState,
    Stage,
    exposure_facts,
    price_facts,
)

MAX_SHOWN_WORKERS = 200


def take_snapshot(state: NightState, now: float, memory: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return everything that is shown about a night at one moment.

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
        `night`, `stages`, `training`, `planes`, `workers`, `memory`, `slow`, `failures`, `exposure`, `prices`,
        `checks`, `notes`, `history` and counters; numbers that are not known are None.
    """
    usual = _usual_seconds(state)
    stages = [_stage(stage, usual.get(stage.name), state, now) for stage in state.stages.values()]
    running = [stage for stage in stages if stage["state"] == "running"]
    started = state.night["started"]
    ended = state.night.get("ended")
    left = [stage["left"] for stage in stages if stage["state"] in ("running", "waiting")]
    snapshot = {
        "format": FORMAT,
        "now": now,
        "night": {
            "date": state.night["date"],
            "state": state.night["state"],
            "started": started,
            "seconds": None if started is None else (ended or now) - started,
            "left": sum(left) if left and None not in left and state.night["state"] == "begin" else None,
            "stage": running[-1]["name"] if running else None,
            "error": state.night.get("error"),
        },
        "stages": stages,
        "training": list(state.rounds),
        "planes": state.planes,
        "workers": _workers(state),
        "memory": [row | {"worker": state.worker_name(row["worker"])} for row in memory][:MAX_SHOWN_WORKERS],
        "slow": _slow(state, now),
        "failures": list(state.failures)[::-1],
        "exposure": None if state.exposure is None else exposure_facts(state.exposure),
        "prices": None if state.prices is None else price_facts(state.prices),
        "checks": list(state.checks),
        "notes": [{"name": name, "text": text} for name, text in state.notes.items()],
        "history": list(state.nights),
        "tasks_done": state.tasks_done,
        "tasks_failed": state.tasks_failed,
        "workers_lost": state.workers_lost,
    }
    return _finite(snapshot)


def _stage(stage: Stage, usual: float | None, state: NightState, now: float) -> dict[str, Any]:
    seconds = stage.seconds(now)
    batch = stage.batch
    left = 0.0
    if stage.state == "running":
        found = _training_left(state, seconds) if stage.name == "train" else None
        if found is None and batch is not None:
            found = batch.left(now)
        if usual is not None:
            found = max(usual - seconds, found or 0.0)
        left = found if found is not None else math.nan
    elif stage.state == "waiting":
        left = usual if usual is not None else math.nan
    step = None
    if batch is not None:
        step = {
            "name": batch.name,
            "state": batch.state,
            "done": batch.done,
            "total": batch.total,
        }
    rate = stage.measured
    return {
        "name": stage.name,
        "state": stage.state,
        "started": stage.started,
        "ended": stage.ended,
        "seconds": seconds,
        "left": left,
        "usual_seconds": usual,
        "tasks_done": stage.tasks_done,
        "tasks_failed": stage.tasks_failed,
        "step": step,
        "unit": None if rate is None else rate.unit,
        "rate": None if rate is None or not rate.done else rate.rate(now),
    }


def _training_left(state: NightState, seconds: float) -> float | None:
    """Return the seconds that training has left, from the epochs it has done."""
    last = state.rounds[-1] if state.rounds else {}
    if "epochs" not in last or last["night"] != state.night["date"]:
        return None
    done = (last["epoch"] - 1 + last["round"] / max(1, last.get("rounds", 1))) / max(1, last["epochs"])
    return seconds * (1 - done) / done if done else None


def _usual_seconds(state: NightState) -> dict[str, float]:
    """Return what each stage took in the last night that had it."""
    usual: dict[str, float] = {}
    for night in state.nights:
        if night.get("date") != state.night["date"]:
            usual |= {name: float(seconds) for name, seconds in (night.get("stages") or {}).items()}
    return usual


def _workers(state: NightState) -> list[dict[str, Any]]:
    newest = list(state.paces.items())[-MAX_SHOWN_WORKERS:]
    return [
        {
            "worker": state.worker_name(worker),
            "stage": stage,
            "tasks": pace.tasks,
            "unit": pace.unit,
            "rate": pace.rate(),
        }
        for (worker, stage), pace in newest
    ]


def _slow(state: NightState, now: float) -> list[dict[str, Any]]:
    """Return tasks in hand that take too long, then the slowest of the stages' last batches."""
    found = []
    for (_, token, index), (since, worker) in state.in_hand.items():
        batch = state.batches.get(token)
        mean = batch.busy_seconds / batch.done if batch is not None and batch.done else None
        if batch is not None and mean is not None and now - since > max(SLOW_SECONDS, SLOW_FACTOR * mean):
            found.append((now - since, batch.name, index, worker, "running", mean))
    found = heapq.nlargest(MAX_SLOW, found)
    done = []
    for stage in state.stages.values():
        batch = stage.batch
        if batch is not None and batch.done > 1:
            mean = batch.busy_seconds / batch.done
            seconds, index, worker = max(batch.slowest)
            done.append((seconds, batch.name, index, worker, "done", mean))
    found += heapq.nlargest(MAX_SLOW, done, key=lambda row: row[0] / max(1e-9, row[-1]))
    names = ("seconds", "stage", "part", "worker", "state", "mean_seconds")
    return [dict(zip(names, row, strict=True)) | {"worker": state.worker_name(row[3])} for row in found]


def _finite(value: Any) -> Any:
    """Return the value with None in place of numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

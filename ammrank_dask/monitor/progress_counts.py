"""What is counted of a stage, of one batch of its tasks, and of one worker."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

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

"""Show how far a command is: bars on a terminal, lines elsewhere, JSON lines with --json, nothing with --quiet."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ammrank_dask.monitor.texts import number_text, seconds_text

if TYPE_CHECKING:  # Dask takes a second to import, and `--help` needs none of it
    from ammrank_dask.runtime.tasks import Progress

SECONDS_BETWEEN_LINES = 30.0
"""A stage that takes long says so in a log, but not more often than this."""


@contextlib.contextmanager
def progress_for(quiet: bool, as_json: bool) -> Iterator[Progress]:
    """Yield what commands report their progress to; it writes to the standard error."""
    if quiet:
        yield lambda stage, done, total: None
    elif sys.stderr.isatty() and not as_json:
        with _bars() as bars:
            yield bars
    else:
        yield Lines(as_json)


class StagePace:
    """How far one stage is, and how fast."""

    def __init__(self, total: int) -> None:
        self.started = self.said = time.monotonic()
        self.total = total
        self.done = 0
        self.units = 0
        self.unit = "tasks"

    @property
    def seconds(self) -> float:
        """Seconds since the stage began."""
        return time.monotonic() - self.started

    def rate(self) -> float:
        """Return units a second, tasks where no units are known."""
        return (self.units or self.done) / max(1e-9, self.seconds)

    def left(self) -> float | None:
        """Return the seconds left if it goes on like this, None before the first task is done."""
        return self.seconds * (self.total - self.done) / self.done if self.done else None


class Lines:
    """A line for every stage that ends, and now and then one for a stage that takes long."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.stages: dict[str, StagePace] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show how many tasks of a stage are done."""
        if done == 0 or stage not in self.stages:
            self.stages[stage] = StagePace(total)
        pace = self.stages[stage]
        pace.done = done
        if done == total:
            self._say(stage, self.stages.pop(stage))
        elif time.monotonic() - pace.said >= SECONDS_BETWEEN_LINES:
            pace.said = time.monotonic()
            self._say(stage, pace)

    def count(self, stage: str, units: int, unit: str) -> None:
        """Take in how many users or rows the last task stood for."""
        if stage in self.stages:
            self.stages[stage].units += units
            self.stages[stage].unit = unit

    def _say(self, stage: str, pace: StagePace) -> None:
        is_done = pace.done == pace.total
        if self.as_json:
            facts: dict[str, Any] = {"stage": stage, "tasks": pace.total, "seconds": round(pace.seconds, 3)}
            facts |= {} if is_done else {"done": pace.done}
            facts |= {pace.unit: pace.units} if pace.units else {}
            click.echo(json.dumps(facts), err=True)
        elif is_done:
            units = f", {pace.units:,} {pace.unit}" if pace.units else ""
            rate = f" ({number_text(pace.rate())} {pace.unit}/s)" if pace.units else ""
            click.echo(f"{stage}: {pace.total:,} tasks{units} in {pace.seconds:.1f} s{rate}", err=True)
        else:
            left = f", {seconds_text(pace.left())} left" if pace.left() is not None else ""
            rate = f"{number_text(pace.rate())} {pace.unit}/s"
            click.echo(f"{stage}: {pace.done:,} of {pace.total:,} tasks, {rate}{left}", err=True)


class Bars:
    """One bar for each first word of the stages' names: ingest, features, train …"""

    def __init__(self, bars: Any) -> None:
        self.bars = bars
        self.ids: dict[str, Any] = {}
        self.paces: dict[str, StagePace] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show how many tasks of a stage are done."""
        word = stage.split("-")[0]
        if word not in self.ids:
            self.ids[word] = self.bars.add_task(stage, total=total, rate="")
        if done == 0 or word not in self.paces:
            self.paces[word] = StagePace(total)
            self.bars.reset(self.ids[word], total=total, description=stage, rate="")
        pace = self.paces[word]
        pace.done = done
        rate = f"{number_text(pace.rate())} {pace.unit}/s" if done else ""
        self.bars.update(self.ids[word], completed=done, rate=rate)

    def count(self, stage: str, units: int, unit: str) -> None:
        """Take in how many users or rows the last task stood for."""
        pace = self.paces.get(stage.split("-")[0])
        if pace is not None:
            pace.units += units
            pace.unit = unit


@contextlib.contextmanager
def _bars() -> Iterator[Bars]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description:<18}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:>14}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bars, _logs_above(sys.__stderr__, sys.stderr):
        yield Bars(bars)


@contextlib.contextmanager
def _logs_above(terminal: Any, above: Any) -> Iterator[None]:
    """Let handlers of logs that write to the terminal write above the bars: they keep the stream they began with."""
    loggers = [logging.root, *(found for found in logging.root.manager.loggerDict.values())]
    handlers = {handler for found in loggers for handler in getattr(found, "handlers", ())}
    moved = [
        handler for handler in handlers if isinstance(handler, logging.StreamHandler) and handler.stream is terminal
    ]
    for handler in moved:
        handler.setStream(above)
    try:
        yield
    finally:
        for handler in moved:
            handler.setStream(terminal)

"""Show how far a command is: a line per stage, bars on a terminal, JSON lines with --json, nothing with --quiet."""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import click

from ammrank_dask.monitor.texts import number_text, seconds_text

if TYPE_CHECKING:  # Dask takes a second to import, and `--help` needs none of it
    from ammrank_dask.runtime.tasks import Progress

SECONDS_BETWEEN_LINES = 30.0
"""A stage that takes long reports its tasks, but not more often than this."""
VERBOSE = "ammrank_dask.verbose"
"""The key of click's context that says whether tasks are shown."""
NAME_WIDTH, TIME_WIDTH = 18, 12


@runtime_checkable
class StageProgress(Protocol):
    """A progress callback that shows the stages of a night."""

    def begin_night(self, date: str, stages: Sequence[str]) -> None:
        """Show the night that begins; other stages than these are not part of it."""

    def begin_stage(self, name: str) -> None:
        """Show a stage that begins; all tasks belong to it until it ends."""

    def end_stage(self, summary: str | None) -> None:
        """Show what the stage did, in a few words; None names the events, users or rows of its tasks."""

    def skip_stage(self, name: str) -> None:
        """Take a stage that is not due out of the night."""

    def end_night(self) -> None:
        """Show how long the night took."""


@contextlib.contextmanager
def progress_for(quiet: bool, as_json: bool) -> Iterator[Progress]:
    """Yield the callback to which a command reports its progress; it writes to the standard error."""
    context = click.get_current_context(silent=True)
    verbose = bool(context is not None and context.meta.get(VERBOSE))
    if quiet:
        yield lambda stage, done, total: None
    elif sys.stderr.isatty() and not as_json:
        with _terminal(verbose) as terminal:
            yield terminal
            terminal.close()
    else:
        lines = Stages(JsonWriter() if as_json else LineWriter(), verbose=verbose)
        yield lines
        lines.close()


class TaskCount:
    """How many tasks of one kind are done, and how fast."""

    def __init__(self, total: int) -> None:
        self.started = self.shown = time.monotonic()
        self.total = total
        self.done = 0
        self.units = 0
        self.unit = "tasks"

    @property
    def seconds(self) -> float:
        """Seconds since the first task was submitted."""
        return time.monotonic() - self.started

    def rate(self) -> str:
        """Return units per second, tasks where no units are known."""
        return f"{number_text((self.units or self.done) / max(1e-9, self.seconds))} {self.unit}/s"

    def left(self) -> float | None:
        """Return the seconds left at this rate, None before the first task is done."""
        return self.seconds * (self.total - self.done) / self.done if self.done else None


class LineWriter:
    """Write plain lines."""

    def stage(self, name: str, summary: str, seconds: float) -> None:
        """Write the line of a stage."""
        click.echo(f"{name:<{NAME_WIDTH}} {seconds_text(seconds):<{TIME_WIDTH}} {summary}".rstrip(), err=True)

    def night(self, date: str) -> None:
        """Write the head of a night."""
        click.echo(f"night of {date}", err=True)

    def tasks(self, name: str, tasks: TaskCount) -> None:
        """Write how far the tasks of one kind are."""
        units = f", {tasks.units:,} {tasks.unit}" if tasks.units else ""
        if tasks.done == tasks.total:
            text = f"{tasks.total:,} tasks{units}, {tasks.rate()}"
            click.echo(f"  {name:<{NAME_WIDTH - 2}} {seconds_text(tasks.seconds):<{TIME_WIDTH}} {text}", err=True)
        else:
            left = f", {seconds_text(tasks.left())} left" if tasks.left() is not None else ""
            click.echo(f"  {name}: {tasks.done:,} of {tasks.total:,} tasks{units}, {tasks.rate()}{left}", err=True)


class JsonWriter:
    """Write one JSON object per line."""

    def stage(self, name: str, summary: str, seconds: float) -> None:
        """Write the object of a stage."""
        _write_json(stage=name, seconds=round(seconds, 3), summary=summary)

    def night(self, date: str) -> None:
        """Write the head of a night."""
        _write_json(night=date)

    def tasks(self, name: str, tasks: TaskCount) -> None:
        """Write how far the tasks of one kind are."""
        units = {tasks.unit: tasks.units} if tasks.units else {}
        _write_json(tasks=name, done=tasks.done, total=tasks.total, seconds=round(tasks.seconds, 3), **units)


def _write_json(**facts: Any) -> None:
    click.echo(json.dumps(facts), err=True)


class Stages:
    """The stages of a command. A night names them; elsewhere the first word of the tasks' name is the stage."""

    def __init__(self, writer: LineWriter | JsonWriter, *, verbose: bool) -> None:
        self.writer = writer
        self.verbose = verbose
        self.kinds: dict[str, TaskCount] = {}
        self.units: dict[str, collections.Counter[str]] = {}
        self.name: str | None = None
        self.started = self.night_started = 0.0
        self.is_named = False
        self.date: str | None = None

    def __call__(self, kind: str, done: int, total: int) -> None:
        """Take in how many tasks of a kind are done."""
        if not self.is_named:
            self._follow(kind.split("-")[0])
        if done == 0 or kind not in self.kinds:
            self.kinds[kind] = TaskCount(total)
        tasks = self.kinds[kind]
        tasks.done = done
        is_long = time.monotonic() - tasks.shown >= SECONDS_BETWEEN_LINES
        if done == total:
            del self.kinds[kind]
        if (self.verbose and done == total) or (is_long and done < total):
            tasks.shown = time.monotonic()
            self.writer.tasks(kind, tasks)

    def count(self, kind: str, units: int, unit: str) -> None:
        """Take in how many users or rows the last task stood for."""
        if kind in self.kinds:
            self.kinds[kind].units += units
            self.kinds[kind].unit = unit
            self.units.setdefault(kind, collections.Counter())[unit] += units

    def begin_night(self, date: str, stages: Sequence[str]) -> None:
        """Show the night that begins."""
        self._follow(None)
        self.date, self.night_started = date, time.monotonic()
        self.writer.night(date)

    def begin_stage(self, name: str) -> None:
        """Let all tasks belong to this stage until it ends."""
        self._follow(name)
        self.is_named = True

    def end_stage(self, summary: str | None) -> None:
        """Write the line of the stage."""
        self._follow(None, summary)
        self.is_named = False

    def skip_stage(self, name: str) -> None:
        """Show nothing of a stage that is not due."""

    def end_night(self) -> None:
        """Write how long the night took."""
        self.writer.stage("total", "", time.monotonic() - self.night_started)
        self.date = None

    def close(self) -> None:
        """Write the line of the last stage."""
        self._follow(None)

    def _follow(self, name: str | None, summary: str | None = None) -> None:
        """End the stage that is shown unless it is this one, and begin this one."""
        if name == self.name:
            return
        if self.name is not None:
            units = most_units(self.units) if summary is None else summary
            self.writer.stage(self.name.replace("_", " "), units, time.monotonic() - self.started)
        self.name, self.started = name, time.monotonic()
        self.units = {}


def most_units(by_kind: dict[str, collections.Counter[str]]) -> str:
    """Return each unit with the largest number that one kind of tasks counted: several kinds count the same users.

    >>> from collections import Counter
    >>> most_units({"read": Counter(events=900), "collect": Counter(users=30), "fold": Counter(users=40)})
    '900 events, 40 users'
    """
    most: dict[str, int] = {}
    for counts in by_kind.values():
        for unit, number in counts.items():
            most[unit] = max(number, most.get(unit, 0))
    return ", ".join(f"{number:,} {unit}" for unit, number in most.items())


class Terminal(Stages):
    """Stages on a terminal: lines of those that are done, below them a bar of the tasks and one of the night."""

    def __init__(self, bars: Any, *, verbose: bool) -> None:
        super().__init__(_AboveBars(bars), verbose=verbose)
        self.bars = bars
        self.tasks = bars.add_task("", total=None, rate="", visible=False)
        self.night = bars.add_task("", total=None, rate="", visible=False)

    def __call__(self, kind: str, done: int, total: int) -> None:
        """Move the bar of the tasks."""
        if done == 0 or kind not in self.kinds:
            self.bars.reset(self.tasks, total=total, description=f"  {kind}", rate="", visible=True)
        super().__call__(kind, done, total)
        tasks = self.kinds.get(kind)
        rate = tasks.rate() if tasks is not None and done else ""
        self.bars.update(self.tasks, completed=done, rate=rate)

    def begin_night(self, date: str, stages: Sequence[str]) -> None:
        """Draw the bar of the night."""
        super().begin_night(date, stages)
        self.bars.reset(self.night, total=len(stages), description=f"night {date}", rate="", visible=True)

    def end_stage(self, summary: str | None) -> None:
        """Move the bar of the night."""
        super().end_stage(summary)
        self.bars.update(self.tasks, visible=False)
        self.bars.advance(self.night)

    def skip_stage(self, name: str) -> None:
        """Move the bar past a stage that is not due."""
        self.bars.advance(self.night)

    def end_night(self) -> None:
        """Remove the bar of the night."""
        super().end_night()
        self.bars.update(self.night, visible=False)

    def close(self) -> None:
        """Write the line of the last stage, and remove the bars."""
        super().close()
        for bar in (self.tasks, self.night):
            self.bars.update(bar, visible=False)


class _AboveBars(LineWriter):
    """Write lines above the bars, in colours where the terminal has them."""

    def __init__(self, bars: Any) -> None:
        self.console = bars.console

    def stage(self, name: str, summary: str, seconds: float) -> None:
        from rich.table import Table

        row = Table.grid(padding=(0, 1))
        row.add_column(width=NAME_WIDTH, no_wrap=True, style="bold" if name == "total" else "green")
        row.add_column(width=TIME_WIDTH, no_wrap=True, style="cyan")
        row.add_column(overflow="fold")
        row.add_row(name, seconds_text(seconds), _plain(summary))
        self.console.print(row)

    def night(self, date: str) -> None:
        self.console.print(f"night of {date}", style="bold")

    def tasks(self, name: str, tasks: TaskCount) -> None:
        if tasks.done == tasks.total:  # how far others are is what the bar shows
            units = f", {tasks.units:,} {tasks.unit}" if tasks.units else ""
            self.console.print(_plain(f"  {name}: {tasks.total:,} tasks{units}, {seconds_text(tasks.seconds)}"))


def _plain(text: str) -> Any:
    """Return a text that rich does not search for markup and numbers."""
    from rich.text import Text

    return Text(text)


@contextlib.contextmanager
def _terminal(verbose: bool) -> Iterator[Terminal]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description:<20.20}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:>14.14}", markup=False),
        TimeElapsedColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bars, _logs_above(sys.__stderr__, sys.stderr):
        yield Terminal(bars, verbose=verbose)


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

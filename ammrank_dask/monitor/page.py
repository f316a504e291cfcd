"""The AMM-rank page: which night, which stage, how far, how fast, with how much memory; served beside Dask's own pages.

All that is used of `distributed` without a promise that it stays is here: `Scheduler.http_application`,
`template_variables` and the `title` filter of the dashboard's templates.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jinja2.filters import do_title
from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler

from ammrank_dask.monitor.texts import label_of, number_text, seconds_text, table

REFRESH_SECONDS = 2.0
MAX_FAILURES_SHOWN = 8
NEARLY_FULL = 0.8
"""Share of its memory above which a worker is shown in red."""
NIGHT_WORDS = {"none": "no night yet", "begin": "running", "end": "published", "failed": "failed"}
STAGE_WORDS = {"waiting": "waits", "running": "running", "end": "done", "failed": "failed", "skipped": "not due"}


def night_html(snapshot: dict[str, Any]) -> str:
    """Return everything that changes on the page; all names are escaped."""
    parts = (head_html(snapshot), stages_html(snapshot), notes_html(snapshot), failures_html(snapshot))
    return "".join(f"<section>{part}</section>" for part in parts)


def head_html(snapshot: dict[str, Any]) -> str:
    """Return the line that is read first."""
    night, exposure = snapshot["night"], snapshot["exposure"]
    stage = next((found for found in snapshot["stages"] if found["name"] == night["stage"]), None)
    state = NIGHT_WORDS.get(night["state"], "")
    if night["state"] == "none" and stage is not None:
        state = "running"
    if night["error"]:
        state = "on hold" if night["error"] == "HeldBack" else f"failed: {label_of(night['error'])}"
    cells = [_cell("night", label_of(night["date"] or "–")), _cell("state", state, "state")]
    if stage is not None:
        cells.append(_cell("stage", label_of(stage["name"])))
        if stage["rate"] is not None:
            cells.append(_cell(f"{label_of(stage['unit'])} a second", number_text(stage["rate"])))
    cells.append(_cell("so far", seconds_text(night["seconds"])))
    if night["left"] is not None:
        cells.append(_cell("left, as in earlier nights", seconds_text(night["left"])))
    elif stage is not None and stage["left"] is not None:
        cells.append(_cell("left in this stage", seconds_text(stage["left"])))
    if exposure is not None:
        n_starved = exposure["starved_categories"]
        cells.append(_cell("starved categories", f"{n_starved:,} of {exposure['categories']:,}", bad=n_starved > 0))
    cells += _memory_cell(snapshot["memory"])
    cells.append(_cell("failed tasks", f"{snapshot['tasks_failed']:,}", bad=snapshot["tasks_failed"] > 0))
    if snapshot["workers_lost"]:
        cells.append(_cell("lost workers", f"{snapshot['workers_lost']:,}", bad=True))
    kind = {"failed": " bad", "end": " done"}.get(night["state"], "")
    return f'{_banner(night)}<div class="facts{kind}">{"".join(cells)}</div>{_bar(_share(snapshot), night["state"])}'


def _banner(night: dict[str, Any]) -> str:
    """Return a line that says that the night is over, and how it ended."""
    if night["state"] == "end":
        took = seconds_text(night["seconds"])
        return f'<p class="banner">The night of {escape(label_of(night["date"]))} is over: it took {took}.</p>'
    if night["state"] == "failed":
        how = f"failed ({label_of(night['error'], 60)})" if night["error"] else "failed"
        how = "is on hold for a check" if night["error"] == "HeldBack" else how
        text = f"The night of {label_of(night['date'])} {how}; the lists of the night before stay active."
        return f'<p class="banner wrong">{escape(text)}</p>'
    return ""


def _memory_cell(memory: Sequence[dict[str, Any]]) -> list[str]:
    """Return the memory of the worker that has the least room left, none before a worker told its own."""
    rows = [row for row in memory if row["used"] is not None]
    if not rows:
        return []
    fullest = max(rows, key=lambda row: (row["used"] / row["limit"] if row["limit"] else 0.0, row["used"]))
    of_limit = f" of {_bytes_text(fullest['limit'])}" if fullest["limit"] else ""
    who = "memory of 1 worker" if len(rows) == 1 else f"memory, fullest of {len(rows):,} workers"
    is_full = bool(fullest["limit"]) and fullest["used"] > NEARLY_FULL * fullest["limit"]
    return [_cell(who, f"{_bytes_text(fullest['used'])}{of_limit}", bad=is_full)]


def _share(snapshot: dict[str, Any]) -> float:
    """Return how much of the night is done: by time where earlier nights tell it, else by stages and tasks."""
    night = snapshot["night"]
    if night["state"] == "end":
        return 1.0
    if night["left"] is not None and night["seconds"] is not None:
        return float(night["seconds"] / max(1e-9, night["seconds"] + night["left"]))
    return sum(map(_stage_share, snapshot["stages"])) / max(1, len(snapshot["stages"]))


def _stage_share(stage: dict[str, Any]) -> float:
    """Return how much of a stage is done, a running one without tasks counts as not begun."""
    if stage["state"] != "running":
        return float(stage["state"] in ("end", "skipped"))
    if stage["left"] is not None and stage["usual_seconds"] is not None:
        return float(stage["seconds"] / max(1e-9, stage["seconds"] + stage["left"]))
    return stage["step"]["done"] / max(1, stage["step"]["total"]) if stage["step"] else 0.0


def stages_html(snapshot: dict[str, Any]) -> str:
    """Return a row for each stage: its state, how far it is, its tasks, its throughput, and its time."""
    names = ("stage", "state", "", "tasks", "throughput", "time", "left", "doing")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(_stage_row(stage, snapshot["training"]) for stage in snapshot["stages"])
    empty = f'<tr><td class="none" colspan="{len(names)}">Waits for a night to begin.</td></tr>'
    return f"<h2>Stages</h2><table><thead><tr>{head}</tr></thead><tbody>{rows or empty}</tbody></table>"


def _stage_row(stage: dict[str, Any], training: dict[str, Any] | None) -> str:
    state = stage["state"]
    is_begun = state not in ("waiting", "skipped")
    left = stage["left"] if state in ("running", "waiting") else None
    cells = [
        escape(label_of(stage["name"])),
        STAGE_WORDS.get(state, ""),
        _bar(_stage_share(stage), state) if is_begun else "",
        f"{stage['tasks_done']:,}" if is_begun else "",
        f"{number_text(stage['rate'])} {escape(label_of(stage['unit']))}/s" if stage["rate"] is not None else "",
        seconds_text(stage["seconds"]) if is_begun else "",
        seconds_text(left) if left is not None else "",
        escape(_doing(stage, training)),
    ]
    return f'<tr class="{state}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _doing(stage: dict[str, Any], training: dict[str, Any] | None) -> str:
    """Return the step of a running stage; of training its last round."""
    if stage["name"] == "train" and training is not None and stage["state"] in ("running", "end"):
        loss, error, popularity = (training.get(f) for f in ("loss", "validation_error", "popularity_error"))
        measures = [
            f"epoch {training['epoch']}" + (f" of {training['epochs']}" if "epochs" in training else ""),
            f"{training['planes']:,} planes" if training.get("planes") is not None else "",
            f"loss {loss:.4g}" if loss is not None else "",
            f"validation ε_dis {error:.4g}" if error is not None else "",
            f"popularity {popularity:.4g}" if popularity is not None else "",
        ]
        return ", ".join(filter(None, measures))
    step = stage["step"]
    if stage["state"] != "running" or step is None:
        return ""
    return f"{label_of(step['name'], 26)} {step['done']:,} of {step['total']:,}"


def notes_html(snapshot: dict[str, Any]) -> str:
    """Return what people should read about the night: input, training, gate, and where the report is.

    The path of the report is text to copy: a browser follows no link from a page of a server to a file.
    """
    rows = [
        f"<tr><td>{escape(label_of(note['name'], 40))}</td><td>{escape(label_of(note['text'], 400))}</td></tr>"
        for note in snapshot["notes"]
    ]
    empty = '<p class="none">Waits for what ingest, training, gate and report find.</p>'
    found = f'<table class="notes"><tbody>{"".join(rows)}</tbody></table>' if rows else empty
    return f"<h2>What the night found</h2>{found}"


def failures_html(snapshot: dict[str, Any]) -> str:
    """Return the tasks that failed last, with the class of their error and not its text."""
    rows = [
        (label_of(row["stage"], 28), row["part"], label_of(row["worker"]), label_of(row["error"], 28))
        for row in snapshot["failures"][:MAX_FAILURES_SHOWN]
    ]
    found = table(("step", "partition", "worker", "error"), rows, empty="No failed partition.")
    return f"<h2>Failed partitions</h2>{found}"


def _cell(name: str, value: object, kind: str = "", *, bad: bool = False) -> str:
    outer = ' class="bad"' if bad else ""
    inner = f' class="{kind}"' if kind else ""
    return f"<div{outer}><b{inner}>{escape(str(value))}</b><span>{escape(name)}</span></div>"


def _bar(share: float, state: str) -> str:
    return f'<div class="bar {state}"><i style="width: {share:.1%}"></i></div>'


def _bytes_text(n_bytes: float) -> str:
    gigabytes = n_bytes / 2**30
    return f"{gigabytes:.2g} GiB" if gigabytes >= 1 else f"{n_bytes / 2**20:.0f} MiB"


# In the scheduler's web server


class Updates:
    """What open pages show: read anew every two seconds, and at once when there is news."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self.read = read
        self.is_closed = False
        self._news: set[asyncio.Event] = set()

    def announce(self) -> None:
        """Update all open pages at once: a scheduler of one night may be gone before they ask again."""
        for news in self._news:
            news.set()

    def close(self) -> None:
        """End the streams of all open pages."""
        self.is_closed = True
        self.announce()

    async def stream(self) -> AsyncGenerator[str]:
        """Yield the page as events for the `EventSource` of a browser."""
        news = asyncio.Event()
        self._news.add(news)
        try:
            while not self.is_closed:
                yield "data: " + night_html(self.read()).replace("\n", " ") + "\n\n"
                news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), REFRESH_SECONDS)
        finally:
            self._news.discard(news)


def add_page(scheduler: Any, name: str, to_json: Callable[[], str], updates: Updates) -> None:
    """Serve the page, its updates and its JSON, and put the page first into the navigation bar of Dask's pages.

    Parameters
    ----------
    scheduler
        The scheduler whose web server gets the page; one without a web server is left alone.
    name
        Path of the page without slashes; the others are `name.events` and `name.json`.
    to_json
        Returns the snapshot of the night as JSON.
    updates
        What the page shows.
    """
    from distributed.dashboard.components.scheduler import env
    from distributed.dashboard.scheduler import template_variables

    application = getattr(scheduler, "http_application", None)
    if application is None:
        return
    applications = getattr(application, "applications", [])
    prefix = next((found.prefix for found in applications if hasattr(found, "prefix")), "")
    routes = [
        ("", _PageHandler, {"updates": updates}),
        (r"\.events", _UpdatesHandler, {"updates": updates}),
        (r"\.json", _JsonHandler, {"read": to_json}),
    ]
    application.add_handlers(".*", [(f"{prefix}/{name}{end}", handler, facts) for end, handler, facts in routes])
    env.filters["title"] = lambda page: "AMM-rank" if page == name else do_title(page)
    pages = template_variables(scheduler)["pages"]
    if name not in pages:
        pages.insert(0, name)


class _Handler(RequestHandler):
    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")


class _PageHandler(_Handler):
    def initialize(self, updates: Updates) -> None:
        self.updates = updates

    def get(self) -> None:
        page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        self.write(page.replace("<!-- night -->", night_html(self.updates.read())))


class _UpdatesHandler(_Handler):
    def initialize(self, updates: Updates) -> None:
        self.updates = updates

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        async with contextlib.aclosing(self.updates.stream()) as events:
            async for event in events:
                self.write(event)
                try:
                    await self.flush()
                except StreamClosedError:  # the page was closed
                    return


class _JsonHandler(_Handler):
    def initialize(self, read: Callable[[], str]) -> None:
        self.read = read

    def get(self) -> None:
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.write(self.read())

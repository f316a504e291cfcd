"""Read the nights of a site, also without their reports, and write the pages and metrics that show them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ammrank_dask.report.checks import OK
from ammrank_dask.report.site_page import (
    FAILED,
    NO_LISTS,
    NOT_PUBLISHED,
    ON_HOLD,
    PUBLISHED,
    SERVED,
    UNFINISHED,
    SiteNight,
    category_cells,
    night_figures,
    render_categories_page,
    render_site_page,
)
from ammrank_dask.storage.errors import AmmrankError, DamagedStore, SiteBusy
from ammrank_dask.storage.lake.events import quarantined_share
from ammrank_dask.storage.objects.atomic import read_json, write_text
from ammrank_dask.storage.objects.folders import is_file, is_folder, is_there, list_paths, stat_of
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.reports import PAGE, SUMMARY
from ammrank_dask.storage.site.run_log import HELD, RUN, read_attempt, read_last_end, utc_now, write_last_end
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import DayManifest
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.options import exit_code_of

HISTORY = "history.json"
HISTORY_FORMAT = 1
MAX_NIGHTS = 400
MAX_CELLS = 200_000
"""Rows of history.json, one per night and category: about 6 MB. The oldest nights keep their figures only."""

Entry = dict[str, Any]
"""What history.json has of one night: `stamp` (size and time of its summary), `figures` and `cells`."""

logger = logging.getLogger(__name__)

INDEX, CATEGORIES = "index.html", "categories.html"


METRICS = "metrics.prom"


@retried
def read_nights(site: Site) -> list[SiteNight]:
    """Return the newest nights of a site, oldest first."""
    known = _read_history(site)
    folders = {
        dt.date.fromisoformat(path.name.removeprefix("date="))
        for name in ("runs", "reports")
        for path in list_paths(site.path / name, "date=*")
    }
    end = read_last_end(site.path)
    ended = None if end is None or end["exit_code"] == 0 else dt.date.fromisoformat(end["date"])
    current = site.current()
    published = set() if current is None else set(current.nights)
    dates = sorted({*known, *folders, *published, *([] if ended is None else [ended])})[-MAX_NIGHTS:]
    nights = []
    for date in dates:
        entry, problem = _read_entry(site, date, known.get(date))
        record = read_attempt(site.run_folder(date)) or {}
        if not record and date == ended and end is not None:
            record = {"status": FAILED, "exit_code": end["exit_code"], "finished": end["finished"]}
        links = _find_links(site, date)
        is_served = current is not None and current.date == date and "qualifications" in current.runs
        nights.append(
            SiteNight(
                date,
                SERVED if is_served else PUBLISHED if date in published else _status_of(record, links),
                None if entry is None else entry["figures"],
                {} if entry is None else entry["cells"],
                record,
                problem,
                links,
                () if entry is None else tuple(entry["stamp"]),
            )
        )
    return nights


def _status_of(record: Mapping[str, Any], links: Mapping[str, str]) -> str:
    """Return what has become of a night that is not marked as published; marks go with the lists they are for."""
    done = PUBLISHED if "qualifications" in record.get("runs", ()) else NO_LISTS
    unknown = NOT_PUBLISHED if "lists" in links else PUBLISHED
    statuses = {HELD: ON_HOLD, "done": done, "failed": FAILED, None: unknown}
    return statuses.get(record.get("status"), UNFINISHED)


def _find_links(site: Site, date: dt.date) -> dict[str, str]:
    paths = {
        "report": site.report_folder(date) / PAGE,
        "run record": site.run_folder(date) / RUN,
        "lists": site.qualifications_folder(date) / "by_user",
    }
    return {
        name: site.relative(path) + ("/" if name == "lists" else "") for name, path in paths.items() if is_there(path)
    }


def _read_entry(site: Site, date: dt.date, before: Entry | None) -> tuple[Entry | None, str | None]:
    """Return the figures of a night, as they were carried on or read again, and what is wrong with its summary."""
    path = site.report_folder(date) / SUMMARY
    try:
        found = stat_of(path)
    except FileNotFoundError:
        return before, None if before is None else "its report is no longer kept (retention.reports)"
    stamp = [found.st_size, found.st_mtime_ns]
    if before is not None and before["stamp"] == stamp:
        return before, None
    try:
        summary = read_json(path)
        return {"stamp": stamp, "figures": night_figures(summary), "cells": category_cells(summary)}, None
    except (DamagedStore, LookupError, TypeError, ValueError, AttributeError):
        return (
            before,
            f"its {SUMMARY} cannot be read; write it again with `ammrank report SITE --date {date} --rebuild`",
        )


def _read_history(site: Site) -> dict[dt.date, Entry]:
    """Return what earlier nights left; nothing when the file is not there or is not what was written."""
    path = site.path / HISTORY
    try:
        content = read_json(path) if is_file(path) else {}
        if content.get("format") != HISTORY_FORMAT:
            return {}
        names = content["categories"]
        return {
            dt.date.fromisoformat(date): {**entry, "cells": {names[cell[0]]: cell[1:] for cell in entry["cells"]}}
            for date, entry in content["nights"].items()
        }
    except (DamagedStore, LookupError, TypeError, ValueError, AttributeError):
        return {}


def keep_history(site: Site, nights: Sequence[SiteNight]) -> None:
    """Write the figures of nights, and a row per night and category: code, exposure, click share, ratio, starved."""
    kept = [night for night in nights if night.figures is not None]
    cells_of: dict[dt.date, Mapping[str, Sequence[Any]]] = {}
    n_cells = 0
    for night in reversed(kept):
        n_cells += len(night.cells)
        cells_of[night.date] = night.cells if n_cells <= MAX_CELLS else {}
    names = sorted({name for cells in cells_of.values() for name in cells})
    codes = {name: code for code, name in enumerate(names)}
    entries = {
        str(night.date): {
            "stamp": night.stamp,
            "figures": night.figures,
            "cells": [[codes[name], *cell] for name, cell in sorted(cells_of[night.date].items())],
        }
        for night in kept
    }
    content = {"format": HISTORY_FORMAT, "categories": names, "nights": entries}
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
    write_text(site.path / HISTORY, text, durable=False)


def describe_night(night: SiteNight) -> dict[str, Any]:
    """Return the row of a night as `ammrank nights` has it in JSON; what is not known is None."""
    figures = night.figures or {}
    return {
        "date": str(night.date),
        "status": night.status,
        "users": figures.get("users"),
        "lists": figures.get("lists"),
        "hits": night.hits,
        "error": figures.get("error"),
        "starved_categories": figures.get("starved_categories"),
        "seconds": night.record.get("seconds"),
        **({} if night.why is None else {"why": night.why}),
        **({} if night.problem is None else {"problem": night.problem}),
    }


def night_table(nights: Sequence[SiteNight]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table of nights."""
    rows = []
    for night in nights:
        row = describe_night(night)
        texts = [row["date"], row["status"]]
        for key, form in (
            ("users", "{:,}"), ("lists", "{:,}"), ("hits", "{:.2f}"), ("error", "{:.4f}"),
            ("starved_categories", "{:,}"), ("seconds", "{:,.0f}"),
        ):  # fmt: skip
            texts.append("–" if row[key] is None else form.format(row[key]))
        rows.append(texts)
    return ["night", "status", "users", "lists", "hits", "ε_dis", "starved", "seconds"], rows


def write_site_pages(site: Site) -> Path:
    """Write the pages of a site and return the path of the first."""
    nights = read_nights(site)
    keep_history(site, nights)
    write_text(site.path / CATEGORIES, render_categories_page(nights), durable=False)
    write_text(site.path / INDEX, render_site_page(nights), durable=False)
    return site.path / INDEX


def try_site_pages(site: Site) -> None:
    """Write the pages of a site, if it is one; whatever goes wrong is logged and never changes what a night came to."""
    if not is_file(site.config_path):
        return
    try:
        write_site_pages(site)
    except Exception as error:  # the night is over; a page is no reason to call it failed
        logger.warning("%s was not written: %s", site.path / INDEX, type(error).__name__)


@contextlib.contextmanager
def keep_metrics(path: Path, first: dt.date) -> Iterator[dict[str, str]]:
    """Write `metrics.prom` when the block is left, however that is; a disk that is full does not fail the night.

    Yields
    ------
    dict
        The `date` of the night, the first one unless the block puts another there.
    """
    night = {"date": str(first)}
    try:
        yield night
    except SiteBusy:  # the run that holds the site writes its own
        raise
    except BaseException as error:
        _leave(Site(path), night["date"], exit_code_of(error))
        try_site_pages(Site(path))  # of a night that ended well they are written already
        raise
    _leave(Site(path), night["date"], 0)


def _leave(site: Site, date: str, code: int) -> None:
    try:
        if not is_folder(site.path):
            return
        write_last_end(site.path, {"date": date, "exit_code": code, "finished": utc_now()})
        write_text(site.path / METRICS, site_metrics(site), durable=False)
    except (OSError, AmmrankError) as error:
        logger.warning("%s was not written: %s", site.path / METRICS, error)


@retried
def site_metrics(site: Site) -> str:
    """Return the metrics of a site in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_SiteCollector(site))
    return generate_latest(registry).decode()


class _SiteCollector(Collector):
    def __init__(self, site: Site) -> None:
        self.site = site

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from _last_run(self.site)
        yield from _published(self.site)


def _last_run(site: Site) -> Iterator[Metric]:
    """Yield how the last run ended, and what its night was made of."""
    end = read_last_end(site.path)
    if end is None:
        return
    yield _gauge("ammrank_last_run_exit_code", "Exit code of the last `ammrank nightly`", end["exit_code"])
    finished = dt.datetime.fromisoformat(end["finished"]).timestamp()
    yield _gauge("ammrank_last_run_finished_timestamp_seconds", "When the last run ended", finished)
    date = dt.date.fromisoformat(end["date"])
    attempt = read_attempt(site.run_folder(date)) or {}
    if attempt.get("seconds") is not None:
        yield _gauge("ammrank_last_run_seconds", "How long the last night took", attempt["seconds"])
    stages = GaugeMetricFamily("ammrank_last_run_stage_seconds", "How long its stages took", labels=["stage"])
    for stage in attempt.get("stages", []):
        stages.add_metric([stage["name"]], stage["seconds"])
    yield stages
    day = _day_of(site, date)
    if day is not None:
        yield _gauge("ammrank_last_run_events", "Events of the last night's day", day.n_events)
        share = quarantined_share(day.events_by_outcome)
        yield _gauge("ammrank_last_run_quarantined_share", "Share of them that was quarantined", share)


def _published(site: Site) -> Iterator[Metric]:
    """Yield how old the published night is, and what its report says."""
    current = site.current()
    if current is None:
        return
    end = dt.datetime.combine(current.date + dt.timedelta(1), dt.time(), dt.UTC)
    yield _gauge("ammrank_published_timestamp_seconds", "End of the published night's day, UTC", end.timestamp())
    path = site.report_folder(current.date) / SUMMARY
    if "report" not in current.runs or not is_file(path):
        return
    summary = read_json(path)
    checks = GaugeMetricFamily("ammrank_published_check", "1 if the check of the report is ok", labels=["check"])
    for check in summary["checks"]:
        checks.add_metric([check["name"]], float(check["status"] == OK))
    yield checks
    yield _gauge("ammrank_published_users", "Users of the published night", summary["n_users"])
    starved = summary["policies"][summary["policy"]]["starved_categories"]
    yield _gauge("ammrank_published_starved_categories", "Starved categories of the published night", starved)
    model, gate = summary.get("model") or {}, summary.get("gate") or {}
    judged = gate.get("challenger" if gate.get("accepted") else "champion") or {}
    for name, value in (("validation", model.get("validation_error")), ("gate", judged.get("disagreement_error"))):
        if value is not None:
            meaning = f"Disagreement error of the model in use, of the {name} users"
            yield _gauge(f"ammrank_published_{name}_error", meaning, value)


def _day_of(site: Site, date: dt.date) -> DayManifest | None:
    """Return the manifest of a day that was taken in; of several the one that was written last."""
    runs = [path for path in site.finished_runs("days") if path.parent.name == f"date={date}"]
    newest = max(runs, key=lambda path: stat_of(path).st_mtime, default=None)
    return None if newest is None else DayManifest.of(open_run(newest))


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=value)

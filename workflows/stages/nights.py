"""Read the nights of a site, also of those whose report is gone, and write the pages that show them all."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ammrank_dask.report.figures import (
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
)
from ammrank_dask.report.site_page import render_categories_page, render_site_page
from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.objects.atomic import read_json, write_text
from ammrank_dask.storage.objects.folders import is_file, is_there, list_paths, stat_of
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.reports import PAGE, SUMMARY
from ammrank_dask.storage.site.run_log import HELD, RUN, read_attempt, read_last_end
from ammrank_dask.storage.site.site import Site

HISTORY = "history.json"
HISTORY_FORMAT = 1
MAX_NIGHTS = 400
MAX_CELLS = 200_000
"""Rows of history.json, one per night and category: about 6 MB. The oldest nights keep their figures only."""

Entry = dict[str, Any]
"""What history.json has of one night: `stamp` (size and time of its summary), `figures` and `cells`."""

logger = logging.getLogger(__name__)

INDEX, CATEGORIES = "index.html", "categories.html"


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

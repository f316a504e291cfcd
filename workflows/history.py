"""Look back at the nights of a site, for the dashboard: how long they took and what they came to."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from storage.files import read_json
from storage.reports import SUMMARY
from storage.run_log import read_attempt
from storage.site import Site


def last_nights(site: Site, date: dt.date, n_nights: int = 30) -> list[dict[str, Any]]:
    """Return times and figures of the nights before a date, oldest first; nights without a record are left out."""
    folders = sorted(path for path in (site.path / "runs").glob("date=*") if path.name < f"date={date}")
    attempts = [attempt for attempt in map(read_attempt, folders[-n_nights:]) if attempt is not None]
    return [_summarise(attempt, site.path / "reports" / f"date={attempt['date']}") for attempt in attempts]


def _summarise(attempt: dict[str, Any], report: Path) -> dict[str, Any]:
    night = {
        "date": attempt["date"],
        "status": attempt.get("status"),
        "seconds": attempt.get("seconds"),
        "stages": {stage["name"]: stage["seconds"] for stage in attempt.get("stages", [])},
    }
    training = attempt.get("facts", {}).get("validation_error")
    if training is not None:
        night["validation_error"] = training
    if (report / SUMMARY).is_file():
        summary = read_json(report / SUMMARY)
        measures = summary["policies"][summary["policy"]]
        night["users"] = summary["n_users"]
        night |= {name: measures[name] for name in ("starved_categories", "coverage", "gini")}
    return night

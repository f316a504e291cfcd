"""Look back at the nights of a site, for the dashboard: how long they took and what they came to."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path
from typing import Any

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.objects.atomic import read_json
from ammrank_dask.storage.objects.folders import list_paths
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.reports import SUMMARY
from ammrank_dask.storage.site.run_log import read_attempt
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.storage.store.runs import open_run


@retried
def last_nights(site: Site, date: dt.date, n_nights: int = 30) -> list[dict[str, Any]]:
    """Return times and figures of the nights before a date, oldest first; nights without a record are left out."""
    folders = [path for path in list_paths(site.path / "runs", "date=*") if path.name < f"date={date}"]
    attempts = [attempt for attempt in map(read_attempt, folders[-n_nights:]) if attempt is not None]
    errors = _errors_by_date(site)
    nights = [_summarise(attempt, site.report_folder(dt.date.fromisoformat(attempt["date"]))) for attempt in attempts]
    return [night | errors.get(night["date"], {}) for night in nights]


def _errors_by_date(site: Site) -> dict[str, dict[str, float]]:
    """Return the held-out error of the models that are kept, by the night that trained them; not of damaged ones."""
    found = {}
    for path in site.finished_runs("models"):
        with contextlib.suppress(DamagedStore):  # --rebuild, which comes later, removes it
            manifest = ModelManifest.of(open_run(path))
            found[manifest.date] = manifest.training
    return {
        date: {"validation_error": training["validation_error"]}
        for date, training in found.items()
        if training and training.get("validation_error") is not None
    }


def _summarise(attempt: dict[str, Any], report: Path) -> dict[str, Any]:
    night = {
        "date": attempt["date"],
        "status": attempt.get("status"),
        "seconds": attempt.get("seconds"),
        "stages": {stage["name"]: stage["seconds"] for stage in attempt.get("stages", [])},
    }
    if not (report / SUMMARY).is_file():
        return night
    with contextlib.suppress(DamagedStore):  # the report of that night is no business of this one
        summary = read_json(report / SUMMARY)
        measures = summary["policies"][summary["policy"]]
        night["users"] = summary["n_users"]
        night |= {name: measures[name] for name in ("starved_categories", "coverage", "gini")}
    return night

"""Describe what is published, how old it is, and what is missing."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ammrank_dask.report.site_page import ON_HOLD
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.folders import free_space, is_folder, list_paths
from ammrank_dask.storage.site.run_log import HELD, read_attempt
from ammrank_dask.storage.site.site import Published, Site
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.storage.store.runs import is_finished, open_run
from ammrank_dask.training.forward import describe_forward
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import lake_days
from ammrank_dask.workflows.stages.models import find_forward, find_verdict
from ammrank_dask.workflows.stages.publishing import held_nights

NIGHTS_SHOWN = 5


def describe_site(site: Site, config: Config, today: dt.date) -> dict[str, Any]:
    """Return the facts about a site; `today` is the newest night that could be there."""
    current = site.current()
    holder = site.holder()
    facts: dict[str, Any] = {"site": str(site.path), "running": holder is not None}
    if holder is not None:
        facts["holder"] = str(holder)
    facts |= _describe_published(site, current, today)
    facts |= _describe_last_attempt(site, facts["running"])
    facts["held"] = held_nights(site)
    try:
        waiting, missing = _days_to_come(site, config, current, today)
        facts |= {"days_waiting": waiting, "days_missing": missing}
    except BadInput as error:  # what is published can be told without the lake
        facts["lake"] = str(error)
    free, total = free_space(site.path)
    facts |= {"free_bytes": free, "free_share": round(free / total, 3)}
    return facts


def _describe_published(site: Site, current: Published | None, today: dt.date) -> dict[str, Any]:
    if current is None:
        return {"published": None, "nights_behind": None, "whole": None}
    whole = all(
        is_folder(site.path / name) if role == "report" else is_finished(site.path / name)
        for role, name in current.runs.items()
    )
    facts: dict[str, Any] = {"published": str(current.date)}
    model = None
    if "model" in current.runs and is_finished(site.path / current.runs["model"]):
        model = open_run(site.path / current.runs["model"])
        forward = find_forward(site, current.date, model)
        if forward is not None:
            facts["lists"] = describe_forward(forward)
    facts |= {
        "nights_behind": max(0, (today - current.date).days),
        "whole": whole,
        "has": sorted(current.runs),
    }
    if model is not None:
        facts["model_of"] = ModelManifest.of(model).date
        verdict = find_verdict(site, current.date, model.digest)
        if verdict is not None:
            facts["gate"] = verdict.facts["reason"]
    return facts


def _describe_last_attempt(site: Site, running: bool) -> dict[str, Any]:
    """Return how the newest attempts ended; one that says it is running while nothing does was killed."""
    attempts = [read_attempt(path) for path in list_paths(site.path / "runs", "date=*")]
    found = sorted((attempt for attempt in attempts if attempt is not None), key=lambda a: a["started"])
    if not found:
        return {"last_run": None}
    last = found[-1]
    status = last["status"]
    if status == "running" and not running:
        status = "killed"
    facts = {"date": last["date"], "status": status, "started": last["started"]}
    facts |= {key: last[key] for key in ("seconds", "exit_code", "error") if key in last}
    return {"last_run": facts}


def _days_to_come(site: Site, config: Config, current: Published | None, today: dt.date) -> tuple[list[str], list[str]]:
    """Return the days of the lake after the published one, and the dates up to `today` that it lacks."""
    days = lake_days(site, config)
    first = current.date + dt.timedelta(1) if current is not None else min(days)
    span = [first + dt.timedelta(number) for number in range((today - first).days + 1)]
    return [str(day) for day in span if day in days], [str(day) for day in span if day not in days]


def describe_for_people(description: dict[str, Any]) -> dict[str, Any]:
    """Return the description as short texts."""
    shown = {**description, "published": description["published"] or "nothing yet"}
    if description["nights_behind"] is None:
        shown = {key: value for key, value in shown.items() if key not in ("nights_behind", "whole")}
    for key in {"days_waiting", "days_missing"} & set(description):
        shown[key] = _shorten(description[key])
    if "has" in description:
        shown["has"] = ", ".join(description["has"])
    held = [f"{night['date']} by {', '.join(night['held_by'])}" for night in description["held"]]
    shown["held"] = "; ".join(held) or "none"
    last = description["last_run"]
    if last is None:
        shown["last_run"] = "none"
    else:
        status = ON_HOLD if last["status"] == HELD else last["status"]
        shown["last_run"] = f"{last['date']}, {status}, begun {last['started'][:16].replace('T', ' ')} UTC"
        if "seconds" in last:
            shown["last_run"] += f", {last['seconds']:.0f} s"
        if "error" in last:
            shown["last_run"] += f": {last['error']['message']}"
    shown["free_bytes"] = f"{description['free_bytes'] / 2**30:.1f} GiB ({description['free_share']:.0%})"
    shown["free_space"] = shown.pop("free_bytes")
    del shown["free_share"]
    return {ON_HOLD if key == "held" else key.replace("_", " "): value for key, value in shown.items()}


def _shorten(days: list[str]) -> str:
    more = f" and {len(days) - NIGHTS_SHOWN} more" if len(days) > NIGHTS_SHOWN else ""
    return ", ".join(days[:NIGHTS_SHOWN]) + more if days else "none"

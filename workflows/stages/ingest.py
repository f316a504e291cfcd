"""Bring the interest state of a site up to a date."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ammrank_dask.ingest.events import DayPlan, ingest_days, scan_files
from ammrank_dask.ingest.fold import FoldPlan, find_base, fold_states, history_of, state_digest
from ammrank_dask.ingest.intake import IngestSettings
from ammrank_dask.ingest.users import ingest_users
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import EventMapping
from ammrank_dask.storage.lake.files import FileFacts, day_digest, list_days, list_files, load_scanned, save_scanned
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.atomic import digest_of
from ammrank_dask.storage.store.registry import DAY, STATE
from ammrank_dask.storage.store.runs import Run, is_finished, open_run
from ammrank_dask.tasks import Progress, silent
from ammrank_dask.workflows.cluster.memory_check import check_memory
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import (
    event_mapping,
    first_change,
    lake_path,
    people_mapping,
    site_taxonomy,
    state_settings,
)
from ammrank_dask.workflows.stages.lost_history import refuse_lost_history

ONE_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Ingested:
    """What a site knows at the end of a date."""

    date: dt.date
    taxonomy: Taxonomy
    settings: dict[str, Any]
    history: list[tuple[dt.date, str | None]]
    days: dict[dt.date, Run | None]
    head: Run
    lag: Run | None
    users: Run | None
    id_kind: str

    @property
    def roles(self) -> dict[str, Path]:
        """The runs under their names in CURRENT."""
        runs = {"head": self.head, "lag": self.lag, "users": self.users}
        return {role: run.path for role, run in runs.items() if run is not None}

    @property
    def bridged(self) -> dict[str, str]:
        """The days without events, as a fact to tell; empty when there is none."""
        days = [str(day) for day, digest in self.history if digest is None]
        return {"bridged days": ", ".join(days)} if days else {}


def ingest(
    client: Any,
    site: Site,
    config: Config,
    date: dt.date,
    *,
    rebuild: bool = False,
    forget_history: bool = False,
    with_lag: bool = True,
    progress: Progress = silent,
) -> Ingested:
    """Ingest the days up to `date` that are new or changed, and fold them into the states at `date` and at its lag.

    Without `with_lag` only the state at `date` is made: enough for features of a day that is long past.
    Raises BadInput when a setting changed or a day changed that is older than any state, unless `rebuild`; and when
    `rebuild` would lose days that only the states remember, unless `forget_history`.
    """
    taxonomy = site_taxonomy(site, config)
    settings = state_settings(config, taxonomy)
    if rebuild:
        if not forget_history:
            refuse_lost_history(site, config, settings, date)
        site.remove_damaged()
        shutil.rmtree(site.scratch, ignore_errors=True)
    check_memory(client, site, config, date, len(taxonomy.categories))
    mapping = event_mapping(config, taxonomy)
    states = [] if rebuild else _states_of(site, settings, date)
    files = _scan_lake(client, site, config, mapping, date, progress)
    history = _write_history(site, files, states, settings, config, date)
    lag_date = date - dt.timedelta(config.label.days)
    lag_history = [(day, digest) for day, digest in history if day <= lag_date] if with_lag else []

    base, n_base = find_base(states, history)
    lag_base, n_lag_base = find_base(states, lag_history)
    if base is None:
        _refuse_changed_past(states, history, site, date)
    needed = {day for day, _ in [*history[n_base:], *lag_history[n_lag_base:]]}
    if with_lag:
        needed |= {day for day, _ in history if day > lag_date}
    days = _ingest_needed(client, site, config, mapping, settings, files, history, needed, progress)
    id_kind = _id_kind(days.values(), states)

    head_path = site.run("state", date, state_digest(settings, history))
    plans = [FoldPlan(base, tuple((d, days[d]) for d, _ in history[n_base:]), {date: head_path})]
    lag_path = None
    if lag_history:
        lag_path = site.run("state", lag_history[-1][0], state_digest(settings, lag_history))
        if lag_base is base:
            plans = [FoldPlan(base, plans[0].days, {lag_history[-1][0]: lag_path, date: head_path})]
        else:
            lag_days = tuple((d, days[d]) for d, _ in lag_history[n_lag_base:])
            plans.append(FoldPlan(lag_base, lag_days, {lag_history[-1][0]: lag_path}))
    fold_states(
        client,
        [plan for plan in plans if plan.days],
        history=history,
        settings=settings,
        alpha=config.alpha,
        max_age_days=config.state.max_age_days,
        n_partitions=config.partitions,
        id_kind=id_kind,
        n_cells=mapping.n_cells,
        progress=progress,
    )
    users = _ingest_people(client, site, config, progress)
    lag = open_run(lag_path, STATE.kind) if lag_path is not None else None
    result = Ingested(date, taxonomy, settings, history, days, open_run(head_path, STATE.kind), lag, users, id_kind)
    _refuse_mixed_ids(result)
    return result


def _states_of(site: Site, settings: dict[str, Any], date: dt.date) -> list[Run]:
    """Return the states that fit the settings; refuse to go on when there are only others."""
    states = [open_run(path, STATE.kind) for path in site.finished_runs("state")]
    changes = [first_change(run.manifest["config"], settings) for run in states]
    fitting = [run for run, change in zip(states, changes, strict=True) if change is None]
    if states and not fitting:
        raise BadInput(
            f"the state of {states[-1].manifest['config']['date']} was built when {changes[-1]};"
            f" rebuild with `ammrank ingest {site.path} --date {date} --rebuild`"
        )
    return fitting


def _scan_lake(
    client: Any, site: Site, config: Config, mapping: EventMapping, date: dt.date, progress: Progress
) -> dict[dt.date, tuple[FileFacts, ...]]:
    events = lake_path(site, config.lake.events)
    folders = list_days(events, config.lake.date_key)
    if min(folders) > date and not site.finished_runs("state"):
        raise BadInput(f"the lake has no events up to {date}; its first day is {min(folders)}")
    folders = {day: folder for day, folder in folders.items() if day <= date}
    cache = site.path / "days" / "scanned.json"
    columns = mapping.columns
    names = (columns.user_id, columns.group, columns.category, columns.timestamp)
    known = load_scanned(cache, names)
    listed = [(day, path, folder) for day, folder in folders.items() for path in list_files(folder)]
    wanted = [(path, path.relative_to(folder).as_posix()) for _, path, folder in listed]
    scanned = scan_files(client, wanted, names, known, progress=progress)
    if any(known.get(file.path) != file for file in scanned):
        save_scanned(cache, names, {**known, **{file.path: file for file in scanned}}.values())
    files: dict[dt.date, list[FileFacts]] = {}
    for (day, _, _), file in zip(listed, scanned, strict=True):
        files.setdefault(day, []).append(file)
    return {day: tuple(found) for day, found in files.items()}


def _write_history(
    site: Site,
    files: dict[dt.date, tuple[FileFacts, ...]],
    states: Sequence[Run],
    settings: dict[str, Any],
    config: Config,
    date: dt.date,
) -> list[tuple[dt.date, str | None]]:
    """Return every day from the first one known up to `date` with the digest of its input."""
    longest = max(states, key=lambda run: len(run.manifest["inputs"]), default=None)
    remembered = dict(history_of(longest)) if longest is not None else {}
    known = [*remembered, *files]
    if not known or min(known) > date:
        raise BadInput(f"the lake has no parquet files up to {date}; check lake.events and --date")
    first = min(remembered, default=min(known))
    if min(files, default=first) < first:
        raise BadInput(
            f"the events of {min(files)} came after the state was begun with {first};"
            f" rebuild with `ammrank ingest {site.path} --date {date} --rebuild`"
        )
    settings_digest = digest_of(settings)
    history: list[tuple[dt.date, str | None]] = []
    missing = []
    day = first
    while day <= date:
        # A day that the lake has dropped since is known from the state; one that came late is new input.
        if day in files:
            history.append((day, day_digest(settings_digest, files[day])))
        else:
            history.append((day, remembered.get(day)))
            if day not in remembered:
                missing.append(day)
        day += ONE_DAY
    if missing and config.lake.missing_days == "refuse":
        shown = ", ".join(str(day) for day in missing[:3]) + (" …" if len(missing) > 3 else "")
        raise BadInput(
            f"the lake has no events for {shown}; add them, or set lake.missing_days: bridge to go on without"
        )
    return history


def _refuse_changed_past(
    states: Sequence[Run], history: Sequence[tuple[dt.date, str | None]], site: Site, date: dt.date
) -> None:
    now = dict(history)
    for run in states:
        changed = [day for day, digest in history_of(run) if day in now and now[day] != digest]
        if changed:
            raise BadInput(
                f"the events of {changed[0]} changed after they were folded into every state that is kept;"
                f" rebuild with `ammrank ingest {site.path} --date {date} --rebuild`"
            )


def _ingest_needed(
    client: Any,
    site: Site,
    config: Config,
    mapping: EventMapping,
    settings: dict[str, Any],
    files: dict[dt.date, tuple[FileFacts, ...]],
    history: Sequence[tuple[dt.date, str | None]],
    needed: set[dt.date],
    progress: Progress,
) -> dict[dt.date, Run | None]:
    plans = []
    for day, digest in history:
        if day not in needed or digest is None:
            continue
        run = site.day_run(day, digest)
        if day not in files and not is_finished(run):
            raise BadInput(f"the events of {day} are needed again and no longer in the lake; put them back")
        plans.append(DayPlan(day, files.get(day, ()), run, digest))
    if config.lake.duplicates == "refuse":
        _refuse_duplicates(files, {plan.date for plan in plans if not is_finished(plan.run)})
    ingest_days(client, plans, mapping, _ingest_settings(site, config, settings), alpha=config.alpha, progress=progress)
    days: dict[dt.date, Run | None] = {day: None for day in needed}
    for plan in plans:
        days[plan.date] = open_run(plan.run, DAY.kind)
    return days


def _refuse_duplicates(files: dict[dt.date, tuple[FileFacts, ...]], days: set[dt.date]) -> None:
    """Refuse a file of new days that is there twice: a day that was copied, or a delivery that was repeated."""
    first: dict[str, tuple[dt.date, FileFacts]] = {}
    for day, found in files.items():
        for file in (file for file in found if sum(file.rows)):
            other_day, other = first.setdefault(file.digest, (day, file))
            if other is not file and days & {day, other_day}:
                raise BadInput(
                    f"{file.path} of {day} has the same content as {other.path} of {other_day}; remove one of them,"
                    " or set lake.duplicates: keep to count both"
                )


def _id_kind(days: Any, states: Sequence[Run]) -> str:
    kinds = {run.manifest["config"]["id_kind"] for run in [*days, *states] if run is not None and run.nnz}
    if len(kinds) > 1:
        raise BadInput(
            "user ids were integers on some days and strings on others; convert the log and rebuild with --rebuild"
        )
    return kinds.pop() if kinds else "int64"


def _ingest_people(client: Any, site: Site, config: Config, progress: Progress) -> Run | None:
    if config.lake.users is None:
        return None
    place = lake_path(site, config.lake.users)
    if not place.exists():
        raise BadInput(f"there is no users table at {place}; set lake.users (null for no demographics)")
    mapping = people_mapping(config)
    cache = site.path / "users" / "scanned.json"
    known = load_scanned(cache, mapping.columns)
    folder = place if place.is_dir() else place.parent
    paths = list_files(place) if place.is_dir() else [place]
    if not paths:
        raise BadInput(f"{place} has no parquet files; set lake.users (null for no demographics)")
    wanted = [(path, path.relative_to(folder).as_posix()) for path in paths]
    files = scan_files(client, wanted, mapping.columns, known, progress=progress)
    if any(known.get(file.path) != file for file in files):
        save_scanned(cache, mapping.columns, files)
    settings = {
        "columns": mapping.columns,
        "genders": dict(sorted(mapping.gender_of.items())),
        "ignored": sorted(mapping.ignored_genders),
        "unknown_user_ids": sorted(config.unknown_user_ids),
        "partitions": config.partitions,
    }
    digest = day_digest(digest_of(settings), files)
    intake = _ingest_settings(site, config, settings)
    return ingest_users(client, files, mapping, site.users_run(digest), digest, intake, progress=progress)


def _ingest_settings(site: Site, config: Config, settings: dict[str, Any]) -> IngestSettings:
    quarantine, max_share = site.path / "quarantine", config.quarantine.max_share
    return IngestSettings(config.partitions, site.scratch, quarantine, max_share, settings, forgotten=site.path)


def _refuse_mixed_ids(result: Ingested) -> None:
    if result.users is None or not result.head.nnz or not result.users.n_rows:
        return
    found = result.users.manifest["config"]["id_kind"]
    if found != result.id_kind:
        raise BadInput(
            f"user ids are {result.id_kind} in the events and {found} in the users table; convert one of the two"
        )


def describe(result: Ingested) -> dict[str, Any]:
    """Return the facts of an ingest for a person."""
    fresh = [run.manifest["facts"] for run in result.days.values() if run is not None]
    last = result.days.get(result.date)
    counts = last.manifest["facts"]["counts"] if last is not None else {}
    facts: dict[str, Any] = {
        "date": str(result.date),
        "days": len(result.history),
        "events of the days read": sum(fact["events"] for fact in fresh),
        "events of the date": last.manifest["facts"]["events"] if last is not None else 0,
        "not used": ", ".join(f"{name} {count:,}" for name, count in counts.items() if name != "kept") or "none",
        "users with events": result.head.n_rows,
        "cells": result.head.nnz,
        "state": str(result.head.path),
    }
    return {**facts, **result.bridged}

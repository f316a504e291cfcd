"""Scan a site's lake: the files of every day, with their digests and the caps under which their rows count."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ammrank_dask.ingest.events import DayPlan
from ammrank_dask.ingest.scan import scan_files
from ammrank_dask.ingest.table_ingest import IngestSettings
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import EventMapping
from ammrank_dask.storage.lake.files import FileFacts, load_scanned, save_scanned
from ammrank_dask.storage.lake.listing import LakeFile, list_day_files
from ammrank_dask.storage.lake.paths import FOLDER
from ammrank_dask.storage.objects.folders import remove
from ammrank_dask.storage.site.day_fingerprints import read_day_rows
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.settings import lake_days
from ammrank_dask.workflows.stages.history import (
    Caps,
    DayFiles,
    HistorySettings,
    caps_of_days,
    digest_days,
    folded_days,
)


class LakeFiles(NamedTuple):
    """The files of a lake by day, and the version of the table that they were listed from, if it is one.

    `caps` are the most events of a user and group that count on each day, and `digests` identify its content.
    """

    days: DayFiles
    table_version: int | None
    caps: Caps
    digests: Mapping[dt.date, str]

    def plan(self, night: Night, day: dt.date, digest: str) -> DayPlan:
        """Return what it takes to ingest a day that states know by a digest."""
        run, files = night.site.day_run(day, digest), tuple(self.days.get(day, ()))
        refuses = night.config.lake.duplicates == "refuse"
        return DayPlan(day, files, run, digest, self.table_version, self.caps.get(day), refuses)


def scan_lake(night: Night, mapping: EventMapping) -> LakeFiles:
    """Return the files of the days up to the date, with their digests."""
    site, date = night.site, night.date
    remove(site.scratch / FOLDER)  # of a command that was interrupted, perhaps with the machine
    days = lake_days(site, night.config)
    if min(days) > date and not site.finished_runs("state"):
        raise BadInput(f"the lake has no events up to {date}; its first day is {min(days)}")
    columns = mapping.columns
    names = (columns.user_id, columns.group, columns.category, columns.timestamp)
    by_day = list_day_files({day: of_day for day, of_day in days.items() if day <= date})
    listed = [(day, file) for day, of_day in by_day.items() for file in of_day]
    files: dict[dt.date, list[FileFacts]] = {}
    scanned = scan_new(night, "days", [file for _, file in listed], names, keep=True)
    for (day, _), file in zip(listed, scanned, strict=True):
        files.setdefault(day, []).append(file)
    return LakeFiles({day: tuple(of_day) for day, of_day in files.items()}, days[min(days)].version, {}, {})


def cap_days(
    night: Night, settings: HistorySettings, lake: LakeFiles, states: Sequence[Run], *, rebuild: bool
) -> LakeFiles:
    """Return the lake with the cap of each day, and its digest under that cap."""
    rows, current = read_day_rows(night.site.path), night.site.current()
    caps = caps_of_days(
        digest_days(lake.days, settings, states, rows),
        folded_days(states),
        rows,
        cap=night.config.ingest.max_events_per_user,
        published=None if current is None or rebuild else current.date,
    )
    return lake._replace(caps=caps, digests=digest_days(lake.days, settings, states, rows, caps))


def scan_new(
    night: Night, folder: str, files: Sequence[LakeFile], columns: Sequence[str], *, keep: bool
) -> list[FileFacts]:
    """Scan the files that are new or changed since the last time; with `keep` remember files that are gone, too."""
    cache = night.site.path / folder / "scanned.json"
    before = load_scanned(cache, columns)
    group = night.config.columns.group
    fetched = night.site.scratch / FOLDER
    scanned = scan_files(night.client, files, columns, before, group=group, fetched=fetched, progress=night.progress)
    if any(before.get(file.path) != file for file in scanned):
        now = {file.path: file for file in scanned}
        save_scanned(cache, columns, ({**before, **now} if keep else now).values())
    return scanned


def intake_settings(night: Night, settings: Mapping[str, Any]) -> IngestSettings:
    """Return where rows of the lake go, and which of them stop a night."""
    site, config = night.site, night.config
    quarantine, max_share = site.path / "quarantine", config.quarantine.max_share
    return IngestSettings(config.partitions, site.scratch, quarantine, max_share, dict(settings), forgotten=site.path)

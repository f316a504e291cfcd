"""Scan the lake, compare days whose files changed with what was folded of them, and tell which are corrections."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Client

from ammrank_dask.ingest.events import DayPlan, day_table
from ammrank_dask.ingest.scan import scan_files
from ammrank_dask.ingest.table_ingest import IngestSettings, ingest_tables
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.events import QUARANTINED, UNKNOWN_CATEGORY, EventMapping
from ammrank_dask.storage.lake.files import FileFacts, load_scanned, save_scanned
from ammrank_dask.storage.lake.listing import LakeDay, LakeFile, list_day_files
from ammrank_dask.storage.lake.paths import FOLDER
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.objects.folders import remove
from ammrank_dask.storage.site.day_fingerprints import DayRows, read_day_rows
from ammrank_dask.storage.store.manifests import DayManifest
from ammrank_dask.storage.store.runs import Run, is_finished, open_run, replace_counts
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.settings import event_mapping
from ammrank_dask.workflows.stages.categories import EarlierTaxonomies
from ammrank_dask.workflows.stages.history import (
    Caps,
    DayFiles,
    HistorySettings,
    caps_of_days,
    digest_days,
    folded_days,
    folded_with,
    without_other_caps,
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


def scan_lake(night: Night, mapping: EventMapping, days: Mapping[dt.date, LakeDay]) -> LakeFiles:
    """Return the files of those days of the lake that are not after the date, with their digests."""
    site, date = night.site, night.date
    remove(site.scratch / FOLDER)  # of a command that was interrupted, perhaps with the machine
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


def compare_days(
    night: Night, earlier: EarlierTaxonomies, settings: HistorySettings, lake: LakeFiles, states: Sequence[Run]
) -> ChangedDays:
    """Read the days whose files changed since they were folded, and decide whether to keep or correct them."""
    oldest = folded_with(states, settings)[-1]["taxonomy"]  # an earlier version, which did not note it, had only one
    rows = {
        day: replace(of_day, taxonomy=of_day.taxonomy or oldest)
        for day, of_day in read_day_rows(night.site.path).items()
    }
    folded = without_other_caps(folded_days(states), rows, lake.caps)
    by_taxonomy: dict[str, list[dt.date]] = {}
    for day in days_to_compare(lake.digests, folded, rows):
        by_taxonomy.setdefault((rows[day].taxonomy if day in rows else None) or "", []).append(day)
    read: dict[dt.date, ReadDay] = {}
    for digest, days in by_taxonomy.items():
        taxonomy = earlier.as_then(digest)
        for day, run in _read_days(night, settings, lake, days, taxonomy).items():
            before = night.site.day_run(day, folded[day] or "")
            is_other = taxonomy.digest != earlier.taxonomy.digest
            read[day] = _describe(night.client, run, before, rows.get(day), is_other_taxonomy=is_other)
    return judge_days(
        lake.digests,
        folded,
        rows,
        read,
        lag_date=settings.lag_date(night.date),
        keeps_past=night.config.lake.past == "keep",
    )


def _read_days(
    night: Night, settings: HistorySettings, lake: LakeFiles, days: Sequence[dt.date], taxonomy: Taxonomy
) -> dict[dt.date, Run]:
    """Return the partials of days with the files of now: rows can be told from others only when read as they were.

    Rows that were of no category then are no reason to stop: they may be of one now.
    """
    as_then = {**settings.state, "taxonomy": taxonomy.digest}
    intake = intake_settings(night, as_then)
    if taxonomy.digest != settings.state["taxonomy"]:
        intake = replace(intake, quarantine=night.site.scratch / "as-then", max_quarantine_share=1.0)
    files = {day: lake.days[day] for day in days}
    digests = digest_days(files, replace(settings, state=as_then), caps=lake.caps)
    plans = [lake.plan(night, day, digest) for day, digest in digests.items()]
    if night.config.lake.past == "keep":  # what came to a day that stays as it was folded does not count
        lag_date = settings.lag_date(night.date)
        plans = [replace(plan, refuses_duplicates=False) if plan.date <= lag_date else plan for plan in plans]
    mapping = event_mapping(night.config, taxonomy)
    night.site.begin(plan.run for plan in plans)
    tables = [day_table(plan, mapping, night.site.scratch, alpha=night.config.alpha) for plan in plans]
    runs = ingest_tables(night.client, tables, intake, progress=night.progress)
    return {plan.date: run for plan, run in zip(plans, runs, strict=True)}


def _describe(client: Client, run: Run, before: Path, rows: DayRows | None, *, is_other_taxonomy: bool) -> ReadDay:
    """Describe what a day has now, beside the partial of `before` if that is kept.

    Digests of users of whom one was forgotten tell nothing; the partial, from which he was removed, does.
    """
    now = DayManifest.of(run)
    partial = open_run(before) if is_finished(before) else None
    is_same = None
    if is_other_taxonomy and _has_more_unknown(now, partial, rows):
        is_same = False
    elif partial is not None and rows is not None and rows.blank:
        from ammrank_dask.repartition import digest_run  # few nights need it

        is_same = partial.checksums == run.checksums or digest_run(client, partial) == digest_run(client, run)
        if is_same:  # what was counted of users who are forgotten is not counted any more
            replace_counts(partial, now.counts)
    return ReadDay(now.buckets, now.n_events, is_same)


def _has_more_unknown(now: DayManifest, partial: Run | None, rows: DayRows | None) -> bool:
    """Return whether a day has new rows: no digest has those of categories that were not known then."""
    if partial is not None:
        reason = QUARANTINED[UNKNOWN_CATEGORY]
        return now.events_by_outcome.get(reason, 0) > DayManifest.of(partial).events_by_outcome.get(reason, 0)
    return rows is not None and rows.n_events is not None and now.n_events > rows.n_events


@dataclass(frozen=True)
class ChangedDays:
    """What became of the days whose files are not those that were folded.

    Parameters
    ----------
    as_folded
        The days that stand in the states as they are, with the digest by which states know them: those with the same
        rows in other files, and `kept`.
    kept
        Days with other rows that stay as they were folded.
    corrected
        Days with other rows that are folded again.
    rows
        What is known of the rows of all days, with the new files of the same rows.
    """

    as_folded: Mapping[dt.date, str] = field(default_factory=dict)
    kept: tuple[dt.date, ...] = ()
    corrected: tuple[dt.date, ...] = ()
    rows: Mapping[dt.date, DayRows] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadDay:
    """The rows that the files of a day have now.

    Parameters
    ----------
    buckets
        As `DayRows` has them.
    n_events
        Rows of the files, used or not.
    is_same
        Whether they make the partial that was folded; None where that is not kept, or need not be asked.
    """

    buckets: str
    n_events: int
    is_same: bool | None = None


def days_to_compare(
    inputs: Mapping[dt.date, str], folded: Mapping[dt.date, str | None], rows: Mapping[dt.date, DayRows]
) -> list[dt.date]:
    """Return the days that have to be read to know whether their rows changed.

    Parameters
    ----------
    inputs
        Digest of the files of each day in the lake.
    folded
        Digest of each day in the states, None where it was bridged.
    rows
        What is known of the rows of days.
    """
    return [
        day
        for day in _with_other_files(inputs, folded)
        if day not in rows or not _is_read(inputs[day], folded[day], rows[day])
    ]


def judge_days(
    inputs: Mapping[dt.date, str],
    folded: Mapping[dt.date, str | None],
    rows: Mapping[dt.date, DayRows],
    read: Mapping[dt.date, ReadDay],
    *,
    lag_date: dt.date,
    keeps_past: bool,
) -> ChangedDays:
    """Decide over every day whose files changed.

    Parameters
    ----------
    read
        The rows of the days that `days_to_compare` named.
    lag_date
        The last day that cannot be folded again.
    keeps_past
        Whether days up to that one with other rows stay as they were folded. One of which nothing can be told, for
        users of every bucket were forgotten, stays in any case, unless it has more rows than before.
    """
    as_folded: dict[dt.date, str] = {}
    kept, corrected, known = [], [], dict(rows)
    for day in _with_other_files(inputs, folded):
        digest, before = folded[day], rows.get(day)
        assert digest is not None
        now = read.get(day)
        if now is None:
            assert before is not None
            is_same = inputs[day] in before.digests
        else:
            is_same = before is not None and digest in before.digests and _has_same_rows(before, now)
        if is_same or (day <= lag_date and _is_untold(before, now)):
            as_folded[day] = digest
            if before is not None and now is not None:
                known[day] = before.with_input(inputs[day], now.buckets, now.n_events)
            if not is_same:
                kept.append(day)
        elif keeps_past and day <= lag_date:
            as_folded[day] = digest
            kept.append(day)
            if before is not None and now is not None:
                known[day] = before.with_other(inputs[day])
        else:
            corrected.append(day)
    return ChangedDays(as_folded, tuple(kept), tuple(corrected), known)


def _has_same_rows(before: DayRows, now: ReadDay) -> bool:
    return before.has_rows(now.buckets) if now.is_same is None else now.is_same


def _is_untold(before: DayRows | None, now: ReadDay | None) -> bool:
    """Return whether nobody can know if a day has other rows than before, but that it has no more of them."""
    if before is None or now is None or now.is_same is not None or before.n_events is None:
        return False
    return before.is_blank and now.n_events <= before.n_events


def _with_other_files(inputs: Mapping[dt.date, str], folded: Mapping[dt.date, str | None]) -> list[dt.date]:
    return [day for day, digest in inputs.items() if folded.get(day) not in (None, digest)]


def _is_read(digest: str, folded: str | None, rows: DayRows) -> bool:
    return folded in rows.digests and digest in (*rows.digests, *rows.others)

"""Read days whose files changed after they were folded, as they were read then, to know whether their rows changed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from distributed import Client

from ammrank_dask.ingest.events import ingest_days
from ammrank_dask.repartition import digest_run
from ammrank_dask.storage.lake.events import QUARANTINED, UNKNOWN_CATEGORY
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.site.day_fingerprints import DayRows, read_day_rows
from ammrank_dask.storage.store.manifests import DayManifest
from ammrank_dask.storage.store.runs import Run, is_finished, open_run, replace_counts
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.settings import event_mapping
from ammrank_dask.workflows.stages.categories import EarlierTaxonomies
from ammrank_dask.workflows.stages.changed_days import ChangedDays, ReadDay, days_to_compare, judge_days
from ammrank_dask.workflows.stages.event_caps import without_other_caps
from ammrank_dask.workflows.stages.history import HistorySettings, digest_days, folded_days, folded_with
from ammrank_dask.workflows.stages.lake_scan import LakeFiles, intake_settings


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
    runs = ingest_days(night.client, plans, mapping, intake, alpha=night.config.alpha, progress=night.progress)
    return {plan.date: run for plan, run in zip(plans, runs, strict=True)}


def _describe(client: Client, run: Run, before: Path, rows: DayRows | None, *, is_other_taxonomy: bool) -> ReadDay:
    """Say what a day has now, beside the partial of `before` if that is kept.

    Digests of users of whom one was forgotten tell nothing; the partial, from which he was removed, does.
    """
    now = DayManifest.of(run)
    partial = open_run(before) if is_finished(before) else None
    is_same = None
    if is_other_taxonomy and _has_more_unknown(now, partial, rows):
        is_same = False
    elif partial is not None and rows is not None and rows.blank:
        is_same = partial.checksums == run.checksums or digest_run(client, partial) == digest_run(client, run)
        if is_same:  # what was counted of users who are forgotten is not counted any more
            replace_counts(partial, now.counts)
    return ReadDay(now.buckets, now.n_events, is_same)


def _has_more_unknown(now: DayManifest, partial: Run | None, rows: DayRows | None) -> bool:
    """Tell whether a day has rows that it did not have: of categories that were not known then, no digest has them."""
    if partial is not None:
        reason = QUARANTINED[UNKNOWN_CATEGORY]
        return now.events_by_outcome.get(reason, 0) > DayManifest.of(partial).events_by_outcome.get(reason, 0)
    return rows is not None and rows.n_events is not None and now.n_events > rows.n_events

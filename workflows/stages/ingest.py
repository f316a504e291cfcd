"""Update the interest state of a site to a date."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ammrank_dask.ingest.events import DayPlan, day_table
from ammrank_dask.ingest.fold import fold_states
from ammrank_dask.ingest.table_ingest import ingest_tables
from ammrank_dask.ingest.users import users_table
from ammrank_dask.storage.errors import BadInput, DamagedStore, shell_word
from ammrank_dask.storage.lake.events import EventMapping
from ammrank_dask.storage.lake.files import FileFacts, day_digest
from ammrank_dask.storage.lake.listing import LakeDay, list_day_files, table_files
from ammrank_dask.storage.lake.paths import FOLDER, exists
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.objects.atomic import digest_of, read_json
from ammrank_dask.storage.objects.folders import remove
from ammrank_dask.storage.site.day_fingerprints import DayRows, read_day_rows, write_day_rows
from ammrank_dask.storage.site.popular_days import YEAR, add_popular_days, remove_popular_days
from ammrank_dask.storage.site.root import without_generation
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.taxonomies import keep_taxonomy
from ammrank_dask.storage.store.manifests import DayManifest, StateManifest, UsersManifest
from ammrank_dask.storage.store.registry import DAY, STATE
from ammrank_dask.storage.store.runs import MANIFEST, Run, is_finished, open_run
from ammrank_dask.workflows.cluster.memory_check import check_memory
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.settings import (
    event_mapping,
    lake_days,
    lake_path,
    people_mapping,
    site_taxonomy,
    state_settings,
)
from ammrank_dask.workflows.stages.categories import NAMES_TOLD, EarlierTaxonomies, describe_change, shorten
from ammrank_dask.workflows.stages.corrected_days import (
    ChangedDays,
    LakeFiles,
    cap_days,
    compare_days,
    intake_settings,
    scan_lake,
    scan_new,
)
from ammrank_dask.workflows.stages.history import (
    HistorySettings,
    IngestPlan,
    StatePlan,
    find_lost_days,
    fitting_states,
    folded_with,
    plan_ingest,
)
from ammrank_dask.workflows.stages.publishing import WINDOWS, written_windows

BRIDGED = "bridged days"


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
    changed: ChangedDays
    earlier: EarlierTaxonomies
    n_before: tuple[int, ...]
    """Other numbers of partitions that the site had."""
    windows: dict[dt.date, Run]
    """The states at the dates of closed windows whose rows are not kept yet."""

    @property
    def roles(self) -> dict[str, Path]:
        """The runs under their names in ROOT."""
        runs = {"head": self.head, "lag": self.lag, "users": self.users}
        return {role: run.path for role, run in runs.items() if run is not None}

    @property
    def special_days(self) -> dict[str, list[str]]:
        """The days that differ from the lake, by kind: bridged, kept as folded, corrected."""
        return {
            BRIDGED: [str(day) for day, digest in self.history if digest is None],
            "changed days kept as folded": [str(day) for day in self.changed.kept],
            "corrected days": [str(day) for day in self.changed.corrected],
        }

    def first_click(self, category: str) -> dt.date | None:
        """Return the first day of the label window with a click on a category, None without any."""
        code = self.taxonomy.code_of[category]
        runs = [(day, run) for day, run in self.days.items() if run is not None]
        return min((day for day, run in runs if code in recode_counts(run, DayManifest.of(run).clicks)), default=None)

    @property
    def changed_categories(self) -> dict[str, list[str]]:
        """What came, went and was renamed in the taxonomy since the night before, by kind."""
        return describe_change(self.earlier.change_before(self.head), self.taxonomy)

    @property
    def notes(self) -> dict[str, str]:
        """Special days and changed categories as facts to tell; empty when there is none."""
        days = {name: ", ".join(days) for name, days in self.special_days.items() if days}
        bridged = self.special_days[BRIDGED]
        if len(bridged) > NAMES_TOLD:  # a log with a gap every week has hundreds of them
            days[BRIDGED] = f"{len(bridged):,} from {bridged[0]} to {bridged[-1]}"
        return {**days, **{name: shorten(names) for name, names in self.changed_categories.items()}}


def ingest(
    night: Night,
    *,
    rebuild: bool = False,
    forget_history: bool = False,
    with_lag: bool = True,
    in_lake: Mapping[dt.date, LakeDay] | None = None,
) -> Ingested:
    """Ingest the days up to the date that are new or changed, and fold them into the states at it and at its lag.

    Without `with_lag` only the state at the date is made: enough for features of a day that is long past. `in_lake` are
    the days of the lake where they are listed already.
    Raises BadInput when a setting changed or a day changed that is older than any state, unless `rebuild`; and when
    `rebuild` would lose days that only the states remember, unless `forget_history`.
    """
    site, config = night.site, night.config
    if rebuild:
        from ammrank_dask.storage.site.renewals import remove_damaged, restore_root  # a night seldom needs them

        restore_root(site)
    taxonomy = site_taxonomy(site, config)
    keep_taxonomy(site.path, taxonomy)
    earlier = EarlierTaxonomies(site, taxonomy, len(config.event_groups), config.categories)
    kept = [] if rebuild else kept_states(site)
    settings = history_settings(
        site, config, night.date, earlier, kept, () if rebuild else written_windows(site, config)
    )
    if rebuild:
        if not forget_history:
            _refuse_lost_history(night, settings)
        remove_damaged(site)
        site.discard(site.finished_runs(WINDOWS))  # made again from the lake
        remove_popular_days(site.path)
        remove(site.scratch)
    check_memory(night.client, site, config, night.date, len(taxonomy.categories))
    mapping = event_mapping(config, taxonomy)
    states = [earlier.recode(run) for run in fitting_states(kept, settings)]
    lake = scan_lake(night, mapping, lake_days(site, config) if in_lake is None else in_lake)
    lake = cap_days(night, settings, lake, states, rebuild=rebuild)
    changed = compare_days(night, earlier, settings, lake, states)
    inputs = {**lake.digests, **changed.as_folded}
    plan = plan_ingest(inputs, states, settings, night.date, with_lag=with_lag, other_rows=changed.kept)
    day_plans = _plan_days(night, settings, lake, plan, changed)
    intake = intake_settings(night, settings.state)
    site.begin(day_plan.run for day_plan in day_plans)
    tables = [day_table(day_plan, mapping, site.scratch, alpha=config.alpha) for day_plan in day_plans]
    ingest_tables(night.client, tables, intake, progress=night.progress)
    days = _open_days(night, earlier, lake, plan, changed, day_plans)
    _keep_popularity(site, config, taxonomy, days)  # before a state has the days: then none is read again
    id_kind = _id_kind(days.values(), states, settings)
    folded = folded_with(states, settings)
    made = {date: earlier.recode(run) for date, run in _fold(night, mapping, settings, plan, days, id_kind, folded)}
    head, lag = made[plan.head.date], None if plan.lag is None else made[plan.lag.date]
    n_before = tuple({one["partitions"] for one in folded if "partitions" in one} - {night.config.partitions})
    users = _ingest_people(night, n_before)
    remove(site.scratch / FOLDER)
    history = list(plan.head.history)
    ingested = Ingested(
        night.date, taxonomy, dict(settings.state), history, days, head, lag, users, id_kind, changed, earlier,
        n_before, {state.date: made[state.date] for state in plan.windows},
    )  # fmt: skip
    _refuse_mixed_ids(ingested)
    return ingested


def kept_states(site: Site) -> list[Run]:
    """Return the states of a site, those that are published first: corrections are told against them."""
    current = site.current()
    published = set() if current is None else {site.path / name for name in current.runs.values()}
    paths = sorted(site.finished_runs("state"), key=lambda path: path not in published)
    return [open_run(path, STATE.kind) for path in paths]


def history_settings(
    site: Site,
    config: Config,
    date: dt.date,
    earlier: EarlierTaxonomies,
    states: Sequence[Run],
    written: Collection[dt.date],
) -> HistorySettings:
    """Return what decides over the history of a site in the night of a date."""
    return HistorySettings(
        state_settings(config, earlier.taxonomy),
        config.label.days,
        config.lake.missing_days != "refuse",
        f"`ammrank ingest {shell_word(site.path)} --date {date} --rebuild`",
        earlier.refusals(StateManifest.of(run).taxonomy for run in states),
        config.train.n_windows,
        written,
        frozenset(
            (run.parent.name.removeprefix("date="), without_generation(run.name)) for run in site.finished_runs("days")
        ),
    )


def _refuse_lost_history(night: Night, settings: HistorySettings) -> None:
    """Refuse to fold again what the lake no longer has."""
    days = lake_days(night.site, night.config)
    in_lake = {day for day, files in list_day_files(days).items() if files}
    manifests = []
    for path in night.site.finished_runs("state"):
        with contextlib.suppress(DamagedStore):  # not open_run, which refuses a damaged state
            manifests.append(read_json(path / MANIFEST))
    lost = find_lost_days(manifests, in_lake, settings.state, night.date)
    if lost:
        raise BadInput(
            f"the lake no longer has {len(lost):,} of the days that the state remembers, from {min(lost)} to"
            f" {max(lost)}, and begins with {min(in_lake, default='none')}; --rebuild would lose them: put them back in"
            f" the lake, or go on without them with"
            f" `ammrank ingest {shell_word(night.site.path)} --date {night.date} --rebuild --forget-history`"
        )


def _plan_days(
    night: Night, settings: HistorySettings, lake: LakeFiles, plan: IngestPlan, changed: ChangedDays
) -> list[DayPlan]:
    """Return what it takes to make the partials of the planned days; a day that is bridged has none."""
    day_plans, files = [], lake.days
    for day, digest in plan.head.history:
        if day not in plan.days or digest is None:
            continue
        run = night.site.day_run(day, digest)
        if day not in files and not is_finished(run):
            raise BadInput(f"the events of {day} are needed again and no longer in the lake; put them back")
        if day in changed.kept and not is_finished(run):
            raise BadInput(
                f"the events of {day} changed and are needed again as they were folded; put the earlier files back,"
                f" or rebuild with {settings.rebuild_command}"
            )
        day_plans.append(lake.plan(night, day, digest))
    if night.config.lake.duplicates == "refuse":
        _refuse_duplicates(files, {day.date for day in day_plans if not is_finished(day.run)})
    return day_plans


def _open_days(
    night: Night,
    earlier: EarlierTaxonomies,
    lake: LakeFiles,
    plan: IngestPlan,
    changed: ChangedDays,
    day_plans: Sequence[DayPlan],
) -> dict[dt.date, Run | None]:
    """Return the partials of the planned days, None for a day that is bridged, and remember their fingerprints."""
    days: dict[dt.date, Run | None] = {day: None for day in plan.days}
    rows = {day: of_day for day, of_day in changed.rows.items() if day in lake.days or day > night.date}
    for day_plan in day_plans:
        partial = days[day_plan.date] = earlier.recode(open_run(day_plan.run, DAY.kind))
        if day_plan.date not in rows or day_plan.digest not in rows[day_plan.date].digests:
            manifest = DayManifest.of(partial)
            rows[day_plan.date] = DayRows(
                (day_plan.digest,),
                manifest.buckets,
                max_events=day_plan.max_events,
                taxonomy=manifest.settings["taxonomy"],
                n_events=manifest.n_events,
            )
    if rows != read_day_rows(night.site.path):
        write_day_rows(night.site.path, rows)
    return days


def _fold(
    night: Night,
    mapping: EventMapping,
    settings: HistorySettings,
    plan: IngestPlan,
    days: Mapping[dt.date, Run | None],
    id_kind: str,
    folded: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[dt.date, Run]]:
    """Make the planned states and yield each with its date."""
    paths = {state.date: _state_path(night.site, state, settings) for state in plan.states}
    night.site.begin(paths.values())
    fold_states(
        night.client,
        plan.fold_plans(days, paths),
        history=plan.head.history,
        settings=settings.state,
        folded_with=folded,
        alpha=night.config.alpha,
        max_age_days=night.config.state.max_age_days,
        n_partitions=night.config.partitions,
        id_kind=id_kind,
        n_cells=mapping.n_cells,
        progress=night.progress,
    )
    for date, path in paths.items():
        yield date, open_run(path, STATE.kind)


def _state_path(site: Site, state: StatePlan, settings: HistorySettings) -> Path:
    """Return where a planned state is or will be; one that has all its days is read as it is, whatever its codes."""
    if state.base is not None and not state.new_days:
        return state.base.path
    return site.run("state", state.date, state.digest(settings))


def _refuse_duplicates(files: Mapping[dt.date, Sequence[FileFacts]], days: set[dt.date]) -> None:
    """Refuse a file of new days that is there twice: a day that was copied, or a delivery that was repeated."""
    first: dict[str, tuple[dt.date, FileFacts]] = {}
    for day, of_day in files.items():
        for file in (file for file in of_day if sum(file.rows)):
            other_day, other = first.setdefault(file.digest, (day, file))
            if other is not file and days & {day, other_day}:
                raise BadInput(
                    f"{file.path} of {day} has the same content as {other.path} of {other_day}; remove one of them,"
                    " or set lake.duplicates: keep to count both"
                )


def _id_kind(days: Iterable[Run | None], states: Sequence[Run], settings: HistorySettings) -> str:
    kinds = {DayManifest.of(run).id_kind for run in days if run is not None and run.nnz}
    kinds |= {StateManifest.of(run).id_kind for run in states if run.nnz}
    if len(kinds) > 1:
        raise BadInput(
            "user ids were integers on some days and strings on others; convert the log and rebuild with"
            f" {settings.rebuild_command}"
        )
    return kinds.pop() if kinds else "int64"


def _ingest_people(night: Night, n_before: Sequence[int]) -> Run | None:
    config = night.config
    if config.lake.users is None:
        return None
    table = lake_path(night.site, config.lake.users)
    if not exists(table):
        raise BadInput(f"there is no users table at {table}; set lake.users (null for no demographics)")
    mapping = people_mapping(config)
    people = table_files(table)
    if not people:
        raise BadInput(f"{table} has no parquet files; set lake.users (null for no demographics)")
    files = scan_new(night, "users", people, mapping.columns, keep=False)
    settings = {
        "columns": mapping.columns,
        "genders": dict(sorted(mapping.gender_of.items())),
        "ignored": sorted(mapping.ignored_genders),
        "unknown_user_ids": sorted(config.unknown_user_ids),
        "partitions": config.partitions,
    }

    def digest_with(n_partitions: int) -> str:
        return day_digest(digest_of({**settings, "partitions": n_partitions}), files)

    digest = choose_digest(digest_with, night.site.users_run, config.partitions, n_before)
    run = night.site.users_run(digest)
    night.site.begin([run])
    tables = [users_table(files, mapping, run, digest, night.site.scratch)]
    return ingest_tables(night.client, tables, intake_settings(night, settings), progress=night.progress)[0]


def _refuse_mixed_ids(ingested: Ingested) -> None:
    if ingested.users is None or not ingested.head.nnz or not ingested.users.n_rows:
        return
    in_table = UsersManifest.of(ingested.users).id_kind
    if in_table != ingested.id_kind:
        raise BadInput(
            f"user ids are {ingested.id_kind} in the events and {in_table} in the users table; convert one of the two"
        )


def _keep_popularity(site: Site, config: Config, taxonomy: Taxonomy, days: Mapping[dt.date, Run | None]) -> None:
    """Remember who clicked what on the days that were read, for as long as a window of training looks back a year."""
    read: dict[dt.date, dict[str, int]] = {}
    for day, run in days.items():
        if run is not None:
            counts = recode_counts(run, DayManifest.of(run).clickers or [])
            read[day] = {taxonomy.categories[code]: count for code, count in counts.items()}
    n_kept = YEAR + (config.train.n_windows + 2) * config.label.days
    add_popular_days(site.path, read, n_kept=n_kept)


def recode_counts(run: Run, counts: Iterable[tuple[int, int]]) -> Counter[int]:
    """Return counts of a day by the codes that categories have now."""
    recoded: Counter[int] = Counter()
    for code, count in counts:
        recoded[code if run.recoding is None else run.recoding.codes[code]] += count
    del recoded[-1]
    return recoded


def describe_ingested(ingested: Ingested) -> dict[str, Any]:
    """Return the facts of an ingest for a person."""
    read = {day: DayManifest.of(run) for day, run in ingested.days.items() if run is not None}
    last = read.get(ingested.date)
    counts = last.events_by_outcome if last is not None else {}
    facts: dict[str, Any] = {
        "date": str(ingested.date),
        "days": len(ingested.history),
        "events of the days read": sum(day.n_events for day in read.values()),
        "events of the date": last.n_events if last is not None else 0,
        "not used": ", ".join(f"{name} {count:,}" for name, count in counts.items() if name != "kept") or "none",
        "users with events": ingested.head.n_rows,
        "cells": ingested.head.nnz,
        "state": str(ingested.head.path),
    }
    return {**facts, **ingested.notes}


def choose_digest(
    digest_with: Callable[[int], str], path_of: Callable[[str], Path], n_partitions: int, n_before: Sequence[int]
) -> str:
    """Return the digest of a run in `n_partitions`, or of the one in `n_before` that is in so many by now.

    A run keeps its digest, and with it its name, when `ammrank repartition` places its users anew: what was made from
    it is from the same input.
    """
    digest = digest_with(n_partitions)
    if is_finished(path_of(digest)):
        return digest
    earlier = [one for one in map(digest_with, n_before) if is_finished(path_of(one))]
    return next((one for one in earlier if open_run(path_of(one)).n_parts == n_partitions), digest)

"""Plan an ingest: which days count and with which cap, from which states to go on, and which days to read.

Everything here is a function of its arguments: no file is opened and no task is run.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ammrank_dask.ingest.fold import FoldPlan, History, find_base, state_digest
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import FileFacts, day_digest
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.site.day_fingerprints import DayRows
from ammrank_dask.storage.store.manifests import CHANGEABLE, StateManifest
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.workflows.session.settings import first_change

ONE_DAY = dt.timedelta(days=1)
DAYS_NAMED = 3

DayFiles = Mapping[dt.date, Sequence[FileFacts]]

Caps = Mapping[dt.date, int | None]


@dataclass(frozen=True)
class Refusal:
    """Why days that were counted with an earlier taxonomy cannot go on, and what else than a rebuild would help."""

    reason: str
    remedy: str | None = None


@dataclass(frozen=True)
class HistorySettings:
    """What decides over the history of a site.

    Parameters
    ----------
    state
        The settings on which partials and states depend.
    label_days
        Days of the label window: the lag state ends before it.
    bridges_missing_days
        Whether a day that the lake does not have is taken as a day without events.
    rebuild_command
        The command that makes the state again from the lake, for messages.
    taxonomies
        By digest of an earlier taxonomy why what was counted with it cannot go on; None when it can.
    n_windows, written, partials
        Label windows to keep the rows of, the dates of those that are kept, and the days, as date and digest, whose
        partials are.
    """

    state: Mapping[str, Any]
    label_days: int
    bridges_missing_days: bool
    rebuild_command: str
    taxonomies: Mapping[str, Refusal | None] = field(default_factory=dict)
    n_windows: int = 0
    written: Collection[dt.date] = ()
    partials: Collection[tuple[str, str]] = ()

    def lag_date(self, date: dt.date) -> dt.date:
        """Return the last day before the label window of a night."""
        return date - dt.timedelta(self.label_days)

    def window_dates(self, first: dt.date, date: dt.date) -> list[dt.date]:
        """Return the dates after which closed windows begin, the newest first.

        They do not move with the night: rows are written once. A whole window of log lies before each.
        """
        newest = self.lag_date(date)
        newest -= dt.timedelta(newest.toordinal() % self.label_days)
        n_kept = self.n_windows if self.n_windows > 1 else 0
        dates = (newest - dt.timedelta(number * self.label_days) for number in range(n_kept))
        return [each for each in dates if (each - first).days + 1 >= self.label_days]


@dataclass(frozen=True)
class StatePlan:
    """A state to be made: its days, the state to go on from, and how many days that has."""

    history: History
    base: Run | None
    n_base: int

    @property
    def date(self) -> dt.date:
        """The last day of the state."""
        return self.history[-1][0]

    def digest(self, settings: HistorySettings) -> str:
        """Return the digest that names the state."""
        return state_digest(settings.state, self.history)

    @property
    def new_days(self) -> list[dt.date]:
        """The days to fold into the base."""
        return [day for day, _ in self.history[self.n_base :]]


@dataclass(frozen=True)
class IngestPlan:
    """What an ingest has to do.

    Parameters
    ----------
    head
        The state at the date.
    lag
        The state before the label window; None when there is no day before it, or nobody wants it.
    days
        The days whose partials are needed: to fold, or for the clicks of a label window.
    windows
        The states at the dates of closed windows whose rows are not kept yet.
    """

    head: StatePlan
    lag: StatePlan | None
    days: frozenset[dt.date]
    windows: tuple[StatePlan, ...] = ()

    @property
    def states(self) -> list[StatePlan]:
        """All states to be made."""
        return [self.head, *([] if self.lag is None else [self.lag]), *self.windows]

    def fold_plans(self, runs: Mapping[dt.date, Run | None], paths: Mapping[dt.date, Path]) -> list[FoldPlan]:
        """Return the folds that are left to do; states from the same base are made in one pass."""
        by_base: dict[Path | None, list[StatePlan]] = {}
        for state in self.states:
            if state.new_days:
                by_base.setdefault(None if state.base is None else state.base.path, []).append(state)
        return [
            FoldPlan(
                states[0].base,
                _with_runs(max((state.new_days for state in states), key=len), runs),
                {state.date: paths[state.date] for state in states},
            )
            for states in by_base.values()
        ]


def plan_ingest(
    inputs: Mapping[dt.date, str],
    states: Sequence[Run],
    settings: HistorySettings,
    date: dt.date,
    *,
    with_lag: bool = True,
    other_rows: Collection[dt.date] = (),
) -> IngestPlan:
    """Plan how the states at a date and at its lag come out of the days of a lake and the states that are kept.

    Raises BadInput when the lake lacks a day, when a day came that is older than the state, and when a day changed
    that is in every state.

    Parameters
    ----------
    inputs
        Digest of each day in the lake.
    other_rows
        Days that the lake has with other rows than those that were folded, and that stay as they were folded.
    """
    history = write_history(inputs, states, settings, date)
    lag_date = settings.lag_date(date)
    lag_history = [(day, digest) for day, digest in history if day <= lag_date] if with_lag else []
    head = StatePlan(history, *find_base(states, history))
    lag = StatePlan(lag_history, *find_base(states, lag_history)) if lag_history else None
    if head.base is None:
        _refuse_changed_past(states, history, settings, lag_date)
    days = {*head.new_days, *(lag.new_days if lag is not None else ())}
    windows = []
    if with_lag:
        days |= {day for day, _ in history if day > lag_date}
        in_lake = inputs.keys() - set(other_rows)
        for window in _plan_windows(in_lake, states, settings, history, date):
            windows.append(window)
            end = window.date + dt.timedelta(settings.label_days)
            days |= {*window.new_days, *(day for day, _ in history if window.date < day <= end)}
    return IngestPlan(head, lag, frozenset(days), tuple(windows))


def _plan_windows(
    in_lake: Collection[dt.date], states: Sequence[Run], settings: HistorySettings, history: History, date: dt.date
) -> Iterator[StatePlan]:
    """Yield the states of windows that are not written and whose days can all be read: no night ends for one."""
    for start in settings.window_dates(history[0][0], date):
        if start in settings.written:
            continue
        until = [(day, digest) for day, digest in history if day <= start]
        state = StatePlan(until, *find_base(states, until))
        end = start + dt.timedelta(settings.label_days)
        needed = [(day, digest) for day, digest in history if (state.new_days or [end])[0] <= day <= end]
        needed += [(day, digest) for day, digest in history if start < day <= end]
        if all(digest is None or day in in_lake or (str(day), digest) in settings.partials for day, digest in needed):
            yield state


def fitting_states(states: Sequence[Run], settings: HistorySettings) -> list[Run]:
    """Return the states from which it can go on with these settings; raise BadInput when there are only others."""
    changes = [_change_since(StateManifest.of(run), settings) for run in states]
    fitting = [run for run, change in zip(states, changes, strict=True) if change is None]
    if states and not fitting:
        change = changes[-1]
        assert change is not None
        remedy = "" if change.remedy is None else f"{change.remedy}, or "
        raise BadInput(
            f"the state of {StateManifest.of(states[-1]).date} was built when {change.reason};"
            f" {remedy}rebuild with {settings.rebuild_command}"
        )
    return fitting


def _change_since(state: StateManifest, settings: HistorySettings) -> Refusal | None:
    """Return why a state does not fit, with the days in it if categories are the reason."""
    taxonomy = state.taxonomy
    if taxonomy is None or taxonomy == settings.state.get("taxonomy") or taxonomy not in settings.taxonomies:
        change = first_change(state.settings, settings.state)
        return None if change is None else Refusal(change)
    change = first_change({**state.settings, "taxonomy": settings.state["taxonomy"]}, settings.state)
    refusal = settings.taxonomies[taxonomy]
    if change is not None or refusal is None:
        return None if change is None else Refusal(change)
    days = f"that concerns its {len(state.days):,} days, from {state.days[0][0]} to {state.days[-1][0]}"
    return Refusal(f"{refusal.reason}; {days}", refusal.remedy)


def folded_days(states: Sequence[Run]) -> dict[dt.date, str | None]:
    """Return the days that the longest state has, with the digest that the first state with a day has for it.

    Published states come first: a night that was stopped after it folded a corrected day has still to tell of it. The
    digest is None for a day that was bridged.
    """
    known = [dict(StateManifest.of(run).days) for run in states]
    return {day: next(days[day] for days in known if day in days) for day in max(known, key=len, default={})}


def folded_with(states: Sequence[Run], settings: HistorySettings) -> list[Mapping[str, Any]]:
    """Return the settings that may change which the days of some states were folded with, and those of now first."""
    found: list[Mapping[str, Any]] = [{name: settings.state[name] for name in CHANGEABLE if name in settings.state}]
    for run in reversed(states):
        found += [one for one in StateManifest.of(run).folded_with if one not in found]
    return found


def digest_days(
    files: DayFiles,
    settings: HistorySettings,
    states: Sequence[Run] = (),
    rows: Mapping[dt.date, DayRows] | None = None,
    caps: Caps | None = None,
) -> dict[dt.date, str]:
    """Return the digest of each day's files: as the states know it, if these are the files that were folded.

    A digest is of the taxonomy and the number of partitions that a day was folded with; both may be others now.
    `rows` tells of other files with the same rows, `caps` how many events of a user count.
    """

    def digest_with(settings_digest: str, day: dt.date) -> str:
        return capped_digest(day_digest(settings_digest, files[day]), (caps or {}).get(day))

    folded = folded_days(states)
    now, *earlier = (digest_of({**settings.state, **one}) for one in folded_with(states, settings))
    digests = {day: digest_with(now, day) for day in files}
    for day, digest in digests.items():
        if folded.get(day) not in (None, digest):
            listed = (rows or {}).get(day)
            same_rows = {folded[day], *(() if listed is None else listed.digests)}
            if digest not in same_rows:
                as_folded = (digest_with(one, day) for one in earlier)
                digests[day] = next((one for one in as_folded if one in same_rows), digest)
    return digests


def write_history(
    inputs: Mapping[dt.date, str], states: Sequence[Run], settings: HistorySettings, date: dt.date
) -> list[tuple[dt.date, str | None]]:
    """Return every day from the first one of state or lake up to `date` with the digest of its input."""
    remembered = folded_days(states)
    days = [*remembered, *inputs]
    if not days or min(days) > date:
        raise BadInput(f"the lake has no parquet files up to {date}; check lake.events and --date")
    first = min(remembered, default=min(days))
    if min(inputs, default=first) < first:
        raise BadInput(
            f"the events of {min(inputs)} came after the state was begun with {first};"
            f" rebuild with {settings.rebuild_command}"
        )
    history: list[tuple[dt.date, str | None]] = []
    missing = []
    for day in (first + n * ONE_DAY for n in range((date - first).days + 1)):
        # A day that the lake has dropped since stands in the state; one that came late is new input.
        if day in inputs:
            history.append((day, inputs[day]))
        else:
            history.append((day, remembered.get(day)))
            if day not in remembered:
                missing.append(day)
    if missing and not settings.bridges_missing_days:
        named = ", ".join(str(day) for day in missing[:DAYS_NAMED]) + (" …" if len(missing) > DAYS_NAMED else "")
        raise BadInput(
            f"the lake has no events for {named}; add them, or set lake.missing_days: bridge to go on without"
        )
    return history


def find_lost_days(
    manifests: Iterable[Mapping[str, Any]], days_in_lake: Collection[dt.date], state: Mapping[str, Any], date: dt.date
) -> set[dt.date]:
    """Return the days that only states remember: a rebuild from the lake would lose them.

    There are none when a state of this date and these settings was already made without them. A manifest that is not
    one of a state is left out: the days can be read of a state that is damaged or of another format, but not of that.
    """
    lost: set[dt.date] = set()
    for manifest in map(StateManifest, manifests):
        try:
            days = {day for day, digest in manifest.days if digest is not None}
            is_same = manifest.date == str(date) and first_change(manifest.settings, state) is None
        except (LookupError, TypeError, ValueError):
            continue
        if is_same and days <= set(days_in_lake):
            return set()
        lost |= days - set(days_in_lake)
    return lost


def _refuse_changed_past(states: Sequence[Run], history: History, settings: HistorySettings, lag_date: dt.date) -> None:
    now = dict(history)
    for run in states:
        changed = [day for day, digest in StateManifest.of(run).days if day in now and now[day] != digest]
        if changed:
            may_stay = ", or set lake.past: keep to leave such days as they were folded"
            raise BadInput(
                f"the events of {changed[0]} changed after they were folded into every state that is kept;"
                f" rebuild with {settings.rebuild_command}{may_stay if changed[-1] <= lag_date else ''}"
            )


def _with_runs(days: Sequence[dt.date], runs: Mapping[dt.date, Run | None]) -> tuple[tuple[dt.date, Run | None], ...]:
    return tuple((day, runs[day]) for day in days)


def caps_of_days(
    digests: Mapping[dt.date, str],
    folded: Mapping[dt.date, str | None],
    rows: Mapping[dt.date, DayRows],
    *,
    cap: int | None,
    published: dt.date | None,
) -> dict[dt.date, int | None]:
    """Return the cap of each day of the lake: the one of the config, or that with which a published day was folded.

    Parameters
    ----------
    digests
        Digest of the files of each day.
    folded
        Digest of each day in the states, None where it was bridged.
    rows
        What is known of the rows of days.
    published
        The last published night; None when nothing is, or when all days are to be folded again.
    """
    caps: dict[dt.date, int | None] = {}
    for day, digest in digests.items():
        if published is None or day > published or folded.get(day) is None:
            caps[day] = cap
        elif day in rows:
            caps[day] = rows[day].max_events
        else:  # the list of rows is lost, or older than caps
            caps[day] = cap if folded[day] == capped_digest(digest, cap) else None
    return caps


def capped_digest(digest: str, cap: int | None) -> str:
    """Return the digest of a day whose events are capped."""
    return digest if cap is None else digest_of([digest, "max_events_per_user", cap])


def without_other_caps(
    folded: Mapping[dt.date, str | None], rows: Mapping[dt.date, DayRows], caps: Caps
) -> dict[dt.date, str | None]:
    """Return the folded days without those that were folded with another cap: they are new input, no correction."""
    return {
        day: digest
        for day, digest in folded.items()
        if day not in caps or day not in rows or rows[day].max_events == caps[day]
    }

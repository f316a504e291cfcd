"""Tell of days whose files changed after they were folded whether their rows did: compaction is no correction.

Everything here is a function of its arguments.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from ammrank_dask.storage.site.day_fingerprints import DayRows


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
    """Tell whether nobody can know if a day has other rows than before, but that it has no more of them."""
    if before is None or now is None or now.is_same is not None or before.n_events is None:
        return False
    return before.is_blank and now.n_events <= before.n_events


def _with_other_files(inputs: Mapping[dt.date, str], folded: Mapping[dt.date, str | None]) -> list[dt.date]:
    return [day for day, digest in inputs.items() if folded.get(day) not in (None, digest)]


def _is_read(digest: str, folded: str | None, rows: DayRows) -> bool:
    return folded in rows.digests and digest in (*rows.digests, *rows.others)

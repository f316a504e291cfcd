"""Tell of days whose files changed after they were folded whether their rows did: compaction is no correction."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from ammrank_dask.storage.site.day_rows import DayRows


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
    return [day for day in _with_other_files(inputs, folded) if not _is_known(day, inputs[day], folded, rows)]


def judge_days(
    inputs: Mapping[dt.date, str],
    folded: Mapping[dt.date, str | None],
    rows: Mapping[dt.date, DayRows],
    read: Mapping[dt.date, str],
    *,
    keep_until: dt.date | None,
) -> ChangedDays:
    """Decide over every day whose files changed.

    Parameters
    ----------
    read
        The rows of the days that `days_to_compare` named, as `DayRows.buckets` has them.
    keep_until
        Days with other rows up to this one stay as they were folded; None when none does.
    """
    as_folded: dict[dt.date, str] = {}
    kept, corrected, known = [], [], dict(rows)
    for day in _with_other_files(inputs, folded):
        digest = folded[day]
        assert digest is not None
        if day not in read:
            as_folded[day] = digest
            continue
        before = rows.get(day)
        if before is not None and digest in before.digests and before.has_rows(read[day]):
            as_folded[day] = digest
            known[day] = before.with_input(inputs[day], read[day])
        elif keep_until is not None and day <= keep_until:
            as_folded[day] = digest
            kept.append(day)
        else:
            corrected.append(day)
    return ChangedDays(as_folded, tuple(kept), tuple(corrected), known)


def _with_other_files(inputs: Mapping[dt.date, str], folded: Mapping[dt.date, str | None]) -> list[dt.date]:
    return [day for day, digest in inputs.items() if folded.get(day) not in (None, digest)]


def _is_known(day: dt.date, digest: str, folded: Mapping[dt.date, str | None], rows: Mapping[dt.date, DayRows]) -> bool:
    return day in rows and {digest, folded[day]} <= set(rows[day].digests)

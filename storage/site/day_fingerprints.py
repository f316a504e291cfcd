"""Remember what the rows of every day were, so that a day whose files changed is known again by its rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.objects.atomic import read_json, write_json

DAY_ROWS_NAME = "rows.json"
_HEX_OF_BUCKET = 16


@dataclass(frozen=True)
class DayRows:
    """The rows of a day by bucket of users, and the digests of the files that have held them.

    Parameters
    ----------
    digests
        Digests of the day's input. The first one is what states know; the others had the same rows.
    buckets
        What tells the rows of each bucket from others: 16 hexadecimal digits a bucket.
    blank
        Buckets of which nothing is known any more: users of theirs were forgotten.
    max_events
        The most events of a user and group that counted when the day was folded; None for all.
    taxonomy
        The digest of the taxonomy that the rows were read with; None in a list of an earlier version.
    n_events
        Rows of the files, used or not; None in a list of an earlier version.
    others
        Digests of files that have other rows, although the day stands as it was folded.
    """

    digests: tuple[str, ...]
    buckets: str
    blank: tuple[int, ...] = ()
    max_events: int | None = None
    taxonomy: str | None = None
    n_events: int | None = None
    others: tuple[str, ...] = ()

    def has_rows(self, buckets: str) -> bool:
        """Return whether rows are those of this day; False when there is no bucket left to tell it by.

        Examples
        --------
        >>> day = DayRows(("a",), f"{7:016x}{8:016x}", blank=(1,))
        >>> day.has_rows(f"{7:016x}{9:016x}"), day.has_rows(f"{6:016x}{8:016x}")
        (True, False)
        """
        mine, others = _cut(self.buckets), _cut(buckets)
        told = [number for number in range(len(mine)) if number not in set(self.blank)]
        return len(mine) == len(others) and bool(told) and all(mine[number] == others[number] for number in told)

    @property
    def is_blank(self) -> bool:
        """Whether so many users were forgotten that nothing is known of the rows any more."""
        return bool(self.buckets) and len(self.blank) == len(_cut(self.buckets))

    def with_input(self, digest: str, buckets: str, n_events: int) -> DayRows:
        """Return the day with one more input that has its rows, known anew in all buckets."""
        return replace(self, digests=(*self.digests, digest), buckets=buckets, blank=(), n_events=n_events)

    def with_other(self, digest: str) -> DayRows:
        """Return the day with one more input that has other rows."""
        return replace(self, others=(*self.others, digest))

    def without(self, buckets: Iterable[int]) -> DayRows:
        """Return the day with nothing known of some buckets."""
        return replace(self, blank=tuple(sorted({*self.blank, *buckets})))


def read_day_rows(site: Path) -> dict[dt.date, DayRows]:
    """Return what is known of the days of a site; nothing when there is no list, or it cannot be read.

    Without it no result changes: days whose files changed count as changed.
    """
    try:
        content = read_json(_path(site))
        return {
            dt.date.fromisoformat(day): DayRows(
                tuple(entry["digests"]),
                entry["buckets"],
                tuple(entry["blank"]),
                entry.get("max_events"),
                entry.get("taxonomy"),
                entry.get("n_events"),
                tuple(entry.get("others", ())),
            )
            for day, entry in content["days"].items()
        }
    except (FileNotFoundError, DamagedStore, LookupError, TypeError, ValueError, AttributeError):
        return {}


def write_day_rows(site: Path, days: Mapping[dt.date, DayRows]) -> None:
    """Remember the days of a site."""
    listed = {
        str(day): {
            "digests": rows.digests,
            "buckets": rows.buckets,
            "blank": rows.blank,
            "taxonomy": rows.taxonomy,
            "n_events": rows.n_events,
            **({"others": rows.others} if rows.others else {}),
            **({} if rows.max_events is None else {"max_events": rows.max_events}),
        }
        for day, rows in sorted(days.items())
    }
    write_json(_path(site), {"days": listed})


def _cut(buckets: str) -> list[str]:
    return [buckets[start : start + _HEX_OF_BUCKET] for start in range(0, len(buckets), _HEX_OF_BUCKET)]


def _path(site: Path) -> Path:
    return site / "days" / DAY_ROWS_NAME

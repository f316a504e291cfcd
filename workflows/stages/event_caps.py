"""Decide how many events of a user count on each day: a new cap holds for days that nobody has seen results of.

Everything here is a function of its arguments.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.site.day_fingerprints import DayRows

Caps = Mapping[dt.date, int | None]


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

"""Remember how many users clicked each category on every day: what was popular a year ago outlives the partials."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.objects.atomic import read_json, write_json
from ammrank_dask.storage.objects.folders import remove

POPULAR_DAYS_NAME = "popular.json"
YEAR = 365

PopularDays = Mapping[dt.date, Mapping[str, int]]
"""By day and category the users who clicked it; what nobody clicked is left out."""


def read_popular_days(site: Path) -> dict[dt.date, dict[str, int]]:
    """Return the users who clicked each category by day; nothing when there is no file, or it cannot be read.

    Without it nothing is known of the year before.
    """
    try:
        content = read_json(_path(site))
        names = content["categories"]
        return {
            dt.date.fromisoformat(day): {names[code]: count for code, count in counts}
            for day, counts in content["days"].items()
        }
    except (FileNotFoundError, DamagedStore, LookupError, TypeError, ValueError, AttributeError):
        return {}


def add_popular_days(site: Path, days: PopularDays, *, n_kept: int) -> None:
    """Remember more days of a site, in the place of what was known of them, and forget all but the newest `n_kept`."""
    known = read_popular_days(site)
    together = {**known, **{day: dict(counts) for day, counts in days.items()}}
    oldest = max(together, default=dt.date.max) - dt.timedelta(n_kept)
    together = {day: counts for day, counts in together.items() if day > oldest}
    if together == known:
        return
    names = sorted({name for counts in together.values() for name in counts})
    code_of = {name: code for code, name in enumerate(names)}
    listed = {
        str(day): [[code_of[name], count] for name, count in sorted(counts.items())]
        for day, counts in sorted(together.items())
    }
    write_json(_path(site), {"categories": names, "days": listed})


def remove_popular_days(site: Path) -> None:
    """Forget all days: a rebuild reads them again."""
    remove(_path(site))


def popular_around(
    days: PopularDays, date: dt.date, n_days: int, categories: Sequence[str], name_now: Callable[[str], str]
) -> np.ndarray:
    """Return clicking users summed over days: the `n_days` up to a date, and those that began a year before it.

    It is (2, L) int64; users count once a day. All is 0 while the log is younger than a year.

    Examples
    --------
    >>> days = {dt.date(2025, 1, 1): {"a": 3}, dt.date(2025, 12, 31): {"a": 1, "b": 2}}
    >>> popular_around(days, dt.date(2025, 12, 31), 30, ["a", "b"], str).tolist()
    [[1, 2], [3, 0]]
    """
    code_of = {name: code for code, name in enumerate(categories)}
    sums = np.zeros((2, len(categories)), np.int64)
    ago = date - dt.timedelta(YEAR)
    if min(days, default=dt.date.max) > ago + dt.timedelta(1):
        return sums
    for row, before in enumerate((date - dt.timedelta(n_days), ago)):
        for number in range(1, n_days + 1):
            for name, count in days.get(before + dt.timedelta(number), {}).items():
                code = code_of.get(name, code_of.get(name_now(name)))
                if code is not None:
                    sums[row, code] += count
    return sums


def _path(site: Path) -> Path:
    return site / "days" / POPULAR_DAYS_NAME

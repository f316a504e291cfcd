"""Compare the input of a night with that of the nights before it."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ammrank_dask.report.thresholds import Thresholds
from ammrank_dask.storage.lake.taxonomy import SIMILAR, name_pairs

NIGHTS = 7
"""Published nights whose median is what is usual."""
FEW = 20
"""Added to both sides of a ratio of counts: a handful of events more or less is no news."""
TIMES_USUAL = 3.0
"""A share warns from so many times the usual one on, if that is more than its threshold."""
TIMES_MEAN = 10.0
"""An id is not heavy with fewer events than so many times the mean of all users."""


def describe_day(
    date: str,
    *,
    events: int,
    groups: Mapping[str, int],
    users: int,
    quarantined: int,
    late: int,
    capped: int,
    heaviest: Sequence[int],
    clicks: Mapping[str, int],
) -> dict[str, Any]:
    """Return what came in on a day as `summary.json` has it: counts and shares, no user.

    Parameters
    ----------
    events
        Rows of the log; those of `groups` were used.
    users
        Users with a used event.
    late
        Used events from before the day.
    capped
        Events left out because their user had too many.
    heaviest
        Events of the users with the most.
    clicks
        Used clicks by category.
    """
    used = sum(groups.values())
    return {
        "date": date,
        "events": events,
        "used": used,
        "groups": dict(groups),
        "users": users,
        "quarantined": quarantined,
        "quarantined_share": quarantined / max(1, events),
        "late": late,
        "late_share": late / max(1, used),
        "capped": capped,
        "heaviest_ids": len(heaviest),
        "heaviest_id_share": max(heaviest, default=0) / max(1, used),
        "heaviest_ids_share": sum(heaviest) / max(1, used),
        "clicks": dict(clicks),
    }


def usual_input(days: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the medians over the days of published nights; None when there are none."""
    if not days:
        return None

    def median(values: Iterable[float]) -> float:
        return float(statistics.median(values))

    groups = sorted({group for day in days for group in day["groups"]})
    categories = sorted({category for day in days for category in day["clicks"]})
    shares = [_shares(day["clicks"]) for day in days]
    return {
        "nights": [day["date"] for day in days],
        "used_share": median([_used_share(day) for day in days if day["events"]] or [0.0]),
        "groups": {group: median(day["groups"].get(group, 0) for day in days) for group in groups},
        **{
            name: median(day[name] for day in days)
            for name in ("users", "quarantined_share", "late_share", "heaviest_id_share", "heaviest_ids_share")
        },
        "click_shares": {name: median(of_day.get(name, 0.0) for of_day in shares) for name in categories},
    }


def check_input(intake: Mapping[str, Any], thresholds: Thresholds) -> list[dict[str, Any]]:
    """Return the checks of what came in, each of the day that is worst.

    Parameters
    ----------
    intake
        `days`, as `describe_day` has them: all since the last published night; `usual` (`usual_input`); and, if there
        are any, `similar_categories`: pairs of names.
    """
    checks: dict[str, dict[str, Any]] = {}
    for day in intake["days"]:
        for check in _check_day(day, intake["usual"], thresholds):
            name = check["name"]
            if name not in checks or _excess(check) > _excess(checks[name]):
                checks[name] = check
    return [*checks.values(), _check_similar(intake.get("similar_categories", ()))]


def _check_day(day: Mapping[str, Any], usual: Mapping[str, Any] | None, thresholds: Thresholds) -> list[dict[str, Any]]:
    date, nights = day["date"], 0 if usual is None else len(usual["nights"])
    median = "the night before" if nights == 1 else f"the median of the last {nights} nights"
    checks = []
    if day["events"]:  # of a day without rows there is no share, and it is a night like any other
        checks.append(_check_used(day, None if usual is None else usual["used_share"], thresholds))
    if usual is not None:
        factors = {
            group: _factor(day["groups"].get(group, 0), usual["groups"].get(group, 0))
            for group in sorted({*day["groups"], *usual["groups"]})
        }
        worst = max(factors, key=lambda group: factors[group], default=None)
        if worst is not None:
            what = f"{worst} events on {date} vs. {median}"
            checks.append(_check("events_by_group", what, factors[worst], thresholds.events_by_group))
        what = f"active users on {date} vs. {median}"
        checks.append(_check("active_users", what, _factor(day["users"], usual["users"]), thresholds.active_users))
    for name, what in (("quarantined", "quarantined rows"), ("late", "late events, from before the day")):
        before = 0.0 if usual is None else usual[f"{name}_share"]
        limit = max(getattr(thresholds, name), TIMES_USUAL * before)
        checks.append(_check(name, f"{what}, {date}", day[f"{name}_share"], limit))
    for n_ids, key in ((1, "heaviest_id_share"), (day["heaviest_ids"], "heaviest_ids_share")):
        # Where there are few users, the heaviest are no news.
        few = TIMES_MEAN * n_ids / max(1, day["users"])
        before = 0.0 if usual is None else TIMES_USUAL * usual[key]
        limit = min(1.0, max(thresholds.heaviest_ids, before, few))
        what = f"events of the {'heaviest id' if n_ids == 1 else f'{n_ids} heaviest ids'}, {date}"
        checks.append(_check("heaviest_ids", what, day[key], limit))
    n_clicks = sum(day["clicks"].values())
    if usual is not None and n_clicks and usual["click_shares"]:
        limit = max(thresholds.click_shares, 2 * _chance_distance(usual["click_shares"].values(), n_clicks))
        value = _distance(_shares(day["clicks"]), usual["click_shares"])
        what = f"clicks on {date} on other categories than {median}"
        checks.append(_check("click_shares", what, value, limit))
    return checks


def _check_used(day: Mapping[str, Any], usual_share: float | None, thresholds: Thresholds) -> dict[str, Any]:
    """Check that rows are used, as many as usual; on a first night, when nothing is usual, that clicks are."""
    date, n_used = day["date"], day["used"] + day["capped"]
    if not n_used:
        return _check("used_share", f"rows of {date} that are used", 0, 1, worse="below")
    if usual_share is None:
        return _check("used_share", f"clicks of {date} that are used", sum(day["clicks"].values()), 1, worse="below")
    what = f"used rows of {date}; usual is {usual_share:.1%}"
    return _check("used_share", what, _used_share(day), thresholds.used_share * usual_share, worse="below")


def _check_similar(pairs: Sequence[Sequence[str]]) -> dict[str, Any]:
    what = f"pairs of categories that {SIMILAR}{f': {name_pairs(pairs)}' if pairs else ''}"
    return _check("similar_categories", what, len(pairs), 0)


def _used_share(day: Mapping[str, Any]) -> float:
    """Return the share of rows that are used; a cap is no reason why a row cannot be."""
    return float((day["used"] + day["capped"]) / max(1, day["events"]))


def _check(name: str, what: str, value: float, limit: float, worse: str = "above") -> dict[str, Any]:
    status = "warn" if (value > limit if worse == "above" else value < limit) else "ok"
    return {"name": name, "what": what, "value": value, "limit": limit, "worse": worse, "status": status}


def _excess(check: Mapping[str, Any]) -> float:
    value, limit = check["value"], check["limit"]
    over, under = (value, limit) if check["worse"] == "above" else (limit, value)
    return float(over / max(under, 1e-12))


def _factor(count: float, usual: float) -> float:
    """Return how many times one count is the other, whichever is larger.

    Examples
    --------
    >>> _factor(980, 480), _factor(0, 5), _factor(0, 380)
    (2.0, 1.25, 20.0)
    """
    larger, smaller = max(count, usual), min(count, usual)
    return (larger + FEW) / (smaller + FEW)


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = max(1, sum(counts.values()))
    return {name: count / total for name, count in counts.items()}


def _distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return half the sum of the differences of shares: 0 for the same, 1 when nothing is in common.

    Medians need not add up to 1; they are scaled.
    """
    total = math.fsum(other.values()) or 1.0
    return math.fsum(abs(one.get(name, 0.0) - other.get(name, 0.0) / total) for name in one.keys() | other.keys()) / 2


def _chance_distance(shares: Iterable[float], n_clicks: int) -> float:
    """Return the distance that so many clicks have by chance alone from the shares that they come from."""
    listed = list(shares)
    total = math.fsum(listed) or 1.0
    scaled = [share / total for share in listed]
    return math.fsum(math.sqrt(max(0.0, share * (1 - share)) * 2 / (math.pi * n_clicks)) for share in scaled) / 2

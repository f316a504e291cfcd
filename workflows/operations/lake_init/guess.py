"""Guess how a lake is meant from its names, types and counts; nothing here reads a file."""

from __future__ import annotations

import calendar
import datetime as dt
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ammrank_dask.lake_survey import INTEGER, NAIVE, UNITS, TimeFacts
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import missing_days
from ammrank_dask.storage.lake.paths import LakePath
from ammrank_dask.storage.store.ids import is_string
from ammrank_dask.storage.vocabulary import (
    AGE,
    CATEGORY,
    GENDER,
    GENDERS,
    GROUP,
    GROUPS,
    IGNORE_GROUP,
    TIMESTAMP,
    USER_ID,
    USERS_A_PARTITION,
)

EVENT_ROLES = (USER_ID, GROUP, CATEGORY, TIMESTAMP)
USER_ROLES = (AGE, GENDER)
MIN_PARTITIONS = 8
MIN_SHARE_UTC, MIN_SHARE_UNIT = 0.95, 0.5
MAX_STEPS_UP = 2
MIN_CLOSED_DAYS, MIN_SHARE_WHOLE = 3, 0.2

# Names as `_plain_spelling` writes them: lower case, letters and digits only. The usual ones come first.
COLUMN_NAMES = {
    USER_ID: "userid uid user cookieid cookie visitorid customerid clientid deviceid memberid accountid"
    " customer client account member visitor",
    GROUP: "group eventgroup eventtype type action eventname event activity eventkind kind",
    CATEGORY: "category categoryname cat categoryid categorycode categorypath topic topicname segment interest"
    " section family product item",
    TIMESTAMP: "timestamp ts eventtime eventtimestamp eventts time datetime eventdatetime occurredat createdat",
    AGE: "age userage ageyears years",
    GENDER: "gender sex usergender",
}
GROUP_SPELLINGS = {
    "pv": "pv pageview view pageviewed pageload contentview articleview",
    "sq": "sq search query searchquery searched",
    "slc": "slc searchclick searchlinkclick searchresultclick resultclick organicclick",
    "olc": "olc sponsoredclick sponsoredlinkclick sponsoredsearchclick paidclick paidsearchclick",
    "adv": "adv adview adimpression impression imp adviewed adshown adserved",
    "adc": "adc adclick click adclicked bannerclick clickthrough",
}
VAGUE_SPELLINGS = frozenset({"view", "search", "query", "click", "impression", "imp"})
"""Spellings that are taken for a group only when the log has no clearer one for it."""
GENDER_SPELLINGS = {"female": "f female w woman women girl", "male": "m male man men boy"}
NO_GENDER = "other unknown u na none null unspecified undisclosed notspecified nonbinary diverse d prefernottosay"


@dataclass(frozen=True)
class Guessed:
    """What was understood: names by meaning, and the values left over."""

    names: dict[str, list[str]]
    unmapped: list[str]


def guess_columns(
    schema: pa.Schema, roles: Sequence[str], given: Mapping[str, str], where: str
) -> dict[str, str | None]:
    """Return the column of every role, None where none fits.

    In this order: the column given, the default name, a usual name in any case, and for times the only column
    with timestamps. A name counts only when the type of its column fits.

    Raises
    ------
    BadInput
        When a column that was given is not there, has another type, or is given twice.

    Examples
    --------
    >>> schema = pa.schema({"UID": pa.int64(), "at": pa.timestamp("us")})
    >>> guess_columns(schema, ["user_id", "timestamp"], {}, "a file")
    {'user_id': 'UID', 'timestamp': 'at'}
    """
    found: dict[str, str | None] = {}
    for role in roles:
        name = given.get(role)
        if name is None:
            continue
        if name not in schema.names:
            raise BadInput(f"{where} has no column {name!r} for {role}; it has {describe_columns(schema)}")
        if not _fits(role, schema.field(name).type):
            raise BadInput(
                f"{where}: the column {name!r} cannot be {role}: it must be {_WANTED[role]},"
                f" found {schema.field(name).type}; convert it or choose another"
            )
        if name in found.values():
            raise BadInput(f"the column {name!r} is given twice; each --column needs one of its own")
        found[role] = name
    for role in roles:
        if role not in found:
            found[role] = _guess_column(schema, role, {name for name in found.values() if name is not None})
    return {role: found[role] for role in roles}


def describe_columns(schema: pa.Schema) -> str:
    """Return the columns of a file with their types."""
    return ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"


def guess_zone(times: TimeFacts) -> str | None:
    """Return UTC when naive times were sampled that lie in the date of their folder, None when it does not help."""
    sampled = times.sampled[NAIVE]
    return "UTC" if sampled and times.inside >= MIN_SHARE_UTC * sampled else None


def guess_day_zone(times: TimeFacts) -> str | None:
    """Return the zone whose days the folders are, as whole hours from UTC; None when they are days of UTC, or of none.

    Examples
    --------
    >>> from collections import Counter
    >>> tokyo = TimeFacts(offsets=Counter({hour: 10 for hour in range(-9, 15)}))
    >>> guess_day_zone(tokyo), guess_day_zone(TimeFacts(offsets=Counter({hour: 10 for hour in range(24)})))
    ('Etc/GMT-9', None)
    """
    total = sum(times.offsets.values())
    if not total or _inside(times, 0) >= MIN_SHARE_UTC * total:
        return None
    best = max(range(-12, 15), key=lambda hours: (_inside(times, hours), -abs(hours)))
    if _inside(times, best) < MIN_SHARE_UTC * total:
        return None
    return f"Etc/GMT{-best:+d}"  # the sign of these names is that of UTC minus the clock


def _inside(times: TimeFacts, hours: int) -> int:
    """Count the times inside the days of a zone that is so many hours before UTC."""
    return sum(count for hour, count in times.offsets.items() if -hours <= hour < 24 - hours)


def guess_closed_weekdays(days: Collection[dt.date]) -> list[int]:
    """Return the weekdays (Monday is 0) that are missing in most weeks, three or more of them; not all seven.

    Examples
    --------
    >>> first = dt.date(2026, 1, 5)  # a Monday
    >>> days = [first + dt.timedelta(n) for n in range(28)]
    >>> guess_closed_weekdays([day for day in days if day.weekday() < 5]), guess_closed_weekdays(days[:9] + days[12:])
    ([5, 6], [])
    """
    missing = Counter(day.weekday() for day in missing_days(dict.fromkeys(days), min(days), max(days)))
    present = Counter(day.weekday() for day in days)
    closed = [weekday for weekday, n in sorted(missing.items()) if n >= MIN_CLOSED_DAYS and n > present[weekday]]
    return closed if len(closed) < len(calendar.day_name) else []


def guess_last_whole_day(clicks: Mapping[dt.date, int]) -> dt.date:
    """Return the newest day that has a fifth of the median clicks of the days before it, or more.

    Examples
    --------
    >>> first = dt.date(2026, 1, 5)
    >>> str(guess_last_whole_day({first + dt.timedelta(n): count for n, count in enumerate([50, 60, 50, 9])}))
    '2026-01-07'
    """
    days = sorted(clicks)
    while len(days) > 1 and clicks[days[-1]] < MIN_SHARE_WHOLE * statistics.median(clicks[day] for day in days[:-1]):
        days.pop()
    return days[-1]


def guess_unit(times: TimeFacts) -> str | None:
    """Return the unit that brings most integer times near the date of their folder, None when none does."""
    sampled = times.sampled[INTEGER]
    if not sampled:
        return None
    best = max(UNITS, key=lambda unit: times.plausible[unit])
    return best if times.plausible[best] >= MIN_SHARE_UNIT * sampled else None


def guess_groups(counts: Mapping[str, int], given: Sequence[tuple[str, str]]) -> Guessed:
    """Map the values of a log to the six groups; groups without a value are left out.

    Parameters
    ----------
    counts
        Events of every value.
    given
        (group, value) pairs that a person has decided; the group may be `ignore`.

    Examples
    --------
    >>> guess_groups({"PageView": 9, "AD_CLICK": 1, "scroll": 3}, [("ignore", "scroll")]).names
    {'pv': ['PageView'], 'adc': ['AD_CLICK'], 'ignore': ['scroll']}
    """
    for group, value in given:
        if value not in counts:
            raise BadInput(f"--group {group}={value}: no event has the group {value!r}; the log has {_first(counts)}")
    decided = {value: group for group, value in given}
    known = {spelling: group for group, names in GROUP_SPELLINGS.items() for spelling in names.split()}
    clear: dict[str, str] = dict(decided)
    vague: dict[str, str] = {}
    for value in counts:
        spelling = _singular(_plain_spelling(value), known)
        if value not in decided and spelling in known:
            (vague if spelling in VAGUE_SPELLINGS else clear)[value] = known[spelling]
    meant = dict(clear)
    meant.update({value: group for value, group in vague.items() if group not in clear.values()})
    return _by_meaning(counts, meant, (*GROUPS, IGNORE_GROUP))


def guess_genders(counts: Mapping[str, int]) -> Guessed:
    """Map the spellings of genders; a gender that is not spelled keeps its name.

    Examples
    --------
    >>> guess_genders({"F": 2, "N/A": 1, "x": 1})
    Guessed(names={'female': ['F'], 'male': ['male'], 'ignore': ['N/A']}, unmapped=['x'])
    """
    known = {spelling: name for name, names in GENDER_SPELLINGS.items() for spelling in names.split()}
    known.update({spelling: IGNORE_GROUP for spelling in NO_GENDER.split()})
    meant = {
        value: known.get(_plain_spelling(value), IGNORE_GROUP if not _plain_spelling(value) else "") for value in counts
    }
    found = _by_meaning(counts, {v: name for v, name in meant.items() if name}, (*GENDERS, IGNORE_GROUP))
    names = {name: found.names.get(name, [name]) for name in GENDERS}
    if IGNORE_GROUP in found.names:
        names[IGNORE_GROUP] = found.names[IGNORE_GROUP]
    return Guessed(names, found.unmapped)


def choose_partitions(n_users: int) -> int:
    """Return the number of partitions for this many users.

    Examples
    --------
    >>> choose_partitions(1_000), choose_partitions(1_000_001)
    (8, 21)
    """
    return max(MIN_PARTITIONS, math.ceil(n_users / USERS_A_PARTITION))


def choose_path(target: LakePath, site: Path) -> str:
    """Return how the config of `site` names a path: relative when it is near, absolute otherwise.

    Examples
    --------
    >>> choose_path(Path("/data/lake/events"), Path("/data/site"))
    '../lake/events'
    >>> choose_path(Path("/data/lake/events"), Path("/home/me/site"))
    '/data/lake/events'
    """
    if not isinstance(target, Path):
        return str(target)
    relative = Path(os.path.relpath(target, site))
    return relative.as_posix() if relative.parts.count("..") <= MAX_STEPS_UP else target.as_posix()


_WANTED = {
    USER_ID: "integers or strings",
    GROUP: "strings",
    CATEGORY: "strings or integers",
    TIMESTAMP: "timestamps or integers",
    AGE: "numbers",
    GENDER: "strings",
}


def _guess_column(schema: pa.Schema, role: str, taken: set[str]) -> str | None:
    fitting = [field.name for field in schema if field.name not in taken and _fits(role, field.type)]
    if role in fitting:
        return role
    for usual in COLUMN_NAMES[role].split():
        for name in fitting:
            if _plain_spelling(name) == usual:
                return name
    times = [name for name in fitting if pa.types.is_timestamp(schema.field(name).type)]
    return times[0] if role == TIMESTAMP and len(times) == 1 else None


def _fits(role: str, data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    if pa.types.is_null(data_type):
        return role in (CATEGORY, AGE, GENDER)
    if role == TIMESTAMP:
        return pa.types.is_timestamp(data_type) or pa.types.is_integer(data_type)
    if role == USER_ID:
        return pa.types.is_integer(data_type) or is_string(data_type)
    if role == AGE:
        return pa.types.is_integer(data_type) or pa.types.is_floating(data_type)
    return is_string(data_type) or (role == CATEGORY and pa.types.is_integer(data_type))


def _plain_spelling(text: str) -> str:
    return re.sub(r"[\W_]", "", text.casefold())


def _singular(spelling: str, spellings: Mapping[str, str]) -> str:
    return spelling if spelling in spellings else spelling.removesuffix("s")


def _by_meaning(counts: Mapping[str, int], meant: Mapping[str, str], order: Sequence[str]) -> Guessed:
    names = {name: sorted(value for value in counts if meant.get(value) == name) for name in order}
    unmapped = sorted((value for value in counts if value not in meant), key=lambda v: (-counts[v], v))
    return Guessed({name: values for name, values in names.items() if values}, unmapped)


def _first(counts: Mapping[str, int]) -> str:
    values = sorted(counts, key=lambda value: (-counts[value], value))
    return ", ".join(map(repr, values[:10])) + (" …" if len(values) > 10 else "")

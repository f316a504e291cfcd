"""Write tiny lakes and sites: a few users, a few days, columns of any type.

lake = write_lake(tmp_path / "lake", n_days=3)      # nothing is wrong with it: change what a test is about
write_events(lake, 1, [event(1), event(2, "adc", "Hats", At(24))])      # replace the day after FIRST_DAY
site = write_site(tmp_path / "site", lake, alpha=0.5)
"""

import contextlib
import datetime as dt
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.vocabulary import AGE, CATEGORY, GENDER, GROUP, GROUPS, TIMESTAMP, USER_ID

FIRST_DAY = dt.date(2026, 1, 5)
HOUR_US = 3_600_000_000

TAXONOMY = (
    ("Retail", ""),
    ("Shoes", "Retail"),
    ("Boots", "Shoes"),
    ("Hats", "Retail"),
    ("Travel", ""),
    ("Flights", "Travel"),
)
"""The ranked categories, in the order of their codes, are Flights, Hats and Shoes; Boots are Shoes."""

USERS = ((1, 34, "female"), (2, 19, "male"), (3, None, None), (4, 70, "female"))

EVENT_TYPES = {
    USER_ID: pa.int64(),
    GROUP: pa.string(),
    CATEGORY: pa.string(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
}
USER_TYPES = {USER_ID: pa.int64(), AGE: pa.int16(), GENDER: pa.string()}


class At(float):
    """Hours since the folder's day began, UTC: 24 is T."""


NOON = At(12)
Event = dict[str, Any]


def date_of(day: int) -> dt.date:
    """Return the date of a day, counted from FIRST_DAY."""
    return FIRST_DAY + dt.timedelta(day)


def microseconds(day: int, hour: float = 0) -> int:
    """Return a time as microseconds since 1970 UTC."""
    return (date_of(day) - dt.date(1970, 1, 1)).days * 24 * HOUR_US + round(hour * HOUR_US)


def event(user_id: Any, group: Any = "pv", category: Any = "Shoes", timestamp: Any = NOON) -> Event:
    """Return one row of a log; a timestamp other than an `At` is written as it is."""
    return {USER_ID: user_id, GROUP: group, CATEGORY: category, TIMESTAMP: timestamp}


def good_events(ids: Sequence[Any] = (1, 2, 3), repeat: int = 1) -> list[Event]:
    """Return events with which nothing is wrong: `repeat` times every user in every group, over the day."""
    categories = ("Boots", "Hats", "Flights")
    return [
        event(user, group, categories[(i + j) % 3], At(1 + 3 * j + k / repeat))
        for i, user in enumerate(ids)
        for j, group in enumerate(GROUPS)
        for k in range(repeat)
    ]


def event_table(day: int, events: Sequence[Event], **types: pa.DataType) -> pa.Table:
    """Return events as a table; `types` replaces the types of columns, and `None` for a type leaves the column out."""
    columns = {}
    for name, type_ in {**EVENT_TYPES, **types}.items():
        if type_ is not None:
            values = [row[name] for row in events]
            columns[name] = pa.array([_value(value, day, type_) for value in values], type_)
    return pa.table(columns)


def write_events(lake: Path, day: int, events: Sequence[Event], *, file: str = "part-0.parquet", **types: Any) -> Path:
    """Write one file of events into the folder of a day."""
    return write_table(event_folder(lake, day) / file, event_table(day, events, **types))


def write_table(path: Path, table: pa.Table, **options: Any) -> Path:
    """Write a parquet file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def event_folder(lake: Path, day: int) -> Path:
    """Return the folder of a day."""
    return lake / "events" / f"date={date_of(day)}"


def write_users(lake: Path, users: Sequence[Sequence[Any]] = USERS, **types: Any) -> Path:
    """Write users.parquet from (id, age, gender) rows; `types` as in `event_table`."""
    columns = {}
    for position, (name, type_) in enumerate({**USER_TYPES, **types}.items()):
        if type_ is not None:
            columns[name] = pa.array([row[position] for row in users], type_)
    return write_table(lake / "users.parquet", pa.table(columns))


def write_taxonomy(lake: Path, pairs: Sequence[tuple[str, str]] = TAXONOMY) -> Path:
    """Write taxonomy.csv from (category, parent) pairs, every field quoted."""
    lines = ["category,parent", *(",".join(_quote(name) for name in pair) for pair in pairs)]
    lake.mkdir(parents=True, exist_ok=True)
    path = lake / "taxonomy.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_lake(path: Path, *, n_days: int = 3, ids: Sequence[Any] = (1, 2, 3), repeat: int = 12, **types: Any) -> Path:
    """Write a lake with which nothing is wrong: `ids` are active every day, and users.parquet knows one more."""
    for day in range(n_days):
        write_events(path, day, good_events(ids, repeat), **types)
    is_text = not isinstance(ids[0], int)
    people = [(f"{ids[0]}-cold" if is_text else 4, 70, "female"), *((user, 34, "male") for user in ids)]
    write_users(path, people, **({USER_ID: pa.string()} if is_text else {}))
    write_taxonomy(path)
    return path


def lake_config(lake: Path, /, **config: Any) -> dict[str, Any]:
    """Return the config of a site on a lake.

    `config` holds what differs from the defaults, its `lake` what differs in that section. Lakes of tests are of days,
    not of months: models score without having won an earlier label window, unless `gate` says otherwise.
    """
    places = {"events": "events", "users": "users.parquet", "taxonomy": "taxonomy.csv"}
    return {
        "label": {"days": 2, "min_categories": 1},
        "partitions": 2,
        **config,
        "gate": {"forward": False, **config.get("gate", {})},
        "lake": {**{key: str(lake / name) for key, name in places.items()}, **config.get("lake", {})},
    }


def write_site(path: Path, lake: Path, /, **config: Any) -> Site:
    """Make a site on a lake; `config` as in `lake_config`."""
    path.mkdir(parents=True, exist_ok=True)
    site = Site(path)
    site.config_path.write_text(yaml.safe_dump(lake_config(lake, **config), allow_unicode=True), encoding="utf-8")
    return site


def replace_by(path: Path, kind: str) -> str:
    """Put what is no regular file in the place of a file: a pipe, socket or device; return what messages call it."""
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
        return "named pipe"
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # its address must be short
            made.bind(path.name)
        return "socket"
    path.symlink_to(kind)
    return "device"


def lose_link(path: Path) -> str:
    """Put a link that leads nowhere in the place of a file or folder; return what is said about it."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to("gone")
    return f"{path} is a link to gone, which leads nowhere; restore what is there, or remove the link"


def _value(value: Any, day: int, type_: pa.DataType) -> Any:
    """Return a time of day in what the column holds: microseconds, or for other units as many of those."""
    if not isinstance(value, At):
        return value
    unit = type_.unit if pa.types.is_timestamp(type_) else "us"
    scale = {"s": 1_000_000, "ms": 1_000, "us": 1}
    time = microseconds(day, value)
    return time * 1000 if unit == "ns" else time // scale[unit]


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

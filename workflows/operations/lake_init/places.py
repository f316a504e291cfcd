"""Find where a lake keeps its events, its users and its taxonomy, and how its folders say the day and the group."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.delta import is_delta
from ammrank_dask.storage.lake.iceberg import day_columns, is_iceberg, read_iceberg
from ammrank_dask.storage.lake.listing import list_files, refuse_table
from ammrank_dask.storage.lake.paths import LakePath, is_lake_folder, list_folder
from ammrank_dask.storage.objects.folders import refuse_lost_link
from ammrank_dask.storage.vocabulary import CLICK_GROUP
from ammrank_dask.workflows.operations.lake_init.guess import guess_groups
from ammrank_dask.workflows.session.config import Config

DEFAULTS = Config()
_DAY_FOLDER = re.compile(r"([^=]+)=(?:\d{4}-\d{2}-\d{2}|\d{8})")

_FORMS = (
    (re.compile(r"\d{4}-\d{2}-\d{2}"), "YYYY-MM-DD"),
    (re.compile(r"\d{8}"), "YYYYMMDD"),
    (re.compile(r"\d{4}"), "YYYY"),
    (re.compile(r"\d{4}-\d{2}"), "YYYY-MM"),
)
_NEXT = {"YYYY": "MM", "YYYY/MM": "DD", "YYYY-MM": "DD"}
_NUMBER = re.compile(r"\d{1,2}")


@dataclass(frozen=True)
class Places:
    """Where a lake keeps what: absolute paths, None for what it does not have."""

    events: LakePath
    date_key: str
    users: LakePath | None
    taxonomy: LakePath | None
    layout: str | None = None


def find_places(lake: LakePath, groups: Sequence[tuple[str, str]] = ()) -> Places:
    """Find the events, the users and the taxonomy of a lake.

    Events are in `events`, in the lake itself or in its only folder that has folders of days; or these have one folder
    a group, whose names are known to mean groups or given as (group, value) pairs.
    """
    if not is_lake_folder(lake):
        raise BadInput(f"there is no lake at {lake}; --lake names a folder")
    table = next((folder for folder in (lake / "events", lake) if is_iceberg(folder)), None)
    if table is not None:
        events, layout, date_key = table, None, _day_column(table)
    else:
        refuse_table(lake / "events")
        events, layout = _find_events(lake, groups)
        keys = _date_keys(events)
        date_key = min(keys, key=lambda key: (-keys[key], key)) if keys else DEFAULTS.lake.date_key
    people = [lake / "users.parquet"]
    if events != lake and list_files(lake / "users"):
        people.append(lake / "users")
    for path in (*people, lake / "taxonomy.csv"):
        refuse_lost_link(path)
    users = next((path for path in people if path.exists()), None)
    taxonomy = lake / "taxonomy.csv"
    is_listed = taxonomy.exists() and not taxonomy.is_dir()  # what is no regular file is refused when it is read
    return Places(events, date_key, users, taxonomy if is_listed else None, layout)


def _day_column(table: LakePath) -> str:
    """Return the column of the day that a table of Iceberg is partitioned by."""
    names = day_columns(read_iceberg(table))
    if not names:
        raise BadInput(f"the Iceberg table at {table} is not partitioned by days; partition it by a column of dates")
    return DEFAULTS.lake.date_key if DEFAULTS.lake.date_key in names else names[0]


def _find_events(lake: LakePath, groups: Sequence[tuple[str, str]]) -> tuple[LakePath, str | None]:
    """Return the folder of events, and its layout where that is not one folder KEY=DATE a day."""
    for folder in (lake / "events", lake):
        layout = guess_day_layout(folder)
        if layout is not None:
            inner = None if is_delta(folder) else add_groups_of_days(layout, first_day(folder, layout), groups)
            return folder, inner or (None if _date_keys(folder) else layout)
        layout = guess_group_layout(folder, groups)
        if layout is not None:
            return folder, layout
    found = [folder for folder in list_folder(lake) if guess_day_layout(folder) is not None]
    if len(found) > 1:
        names = ", ".join(folder.name for folder in found)
        raise BadInput(f"{lake} has several folders of days ({names}); name the one with events by --lake")
    if not found:
        raise BadInput(
            f"{lake} has no folders named KEY=YYYY-MM-DD, nor has a folder in it; events are one folder per day,"
            " for example events/date=2026-03-05"
        )
    refuse_table(found[0])
    return found[0], None if _date_keys(found[0]) else guess_day_layout(found[0])


def _date_keys(folder: LakePath) -> Counter[str]:
    """Count the day folders of a folder by key."""
    keys: Counter[str] = Counter()
    if is_lake_folder(folder):
        for child in folder.iterdir():
            match = _DAY_FOLDER.fullmatch(child.name)
            if match and is_lake_folder(child):
                keys[match[1]] += 1
    return keys


def guess_day_layout(folder: LakePath) -> str | None:
    """Return the layout of the days below a folder, None when its folders are no dates."""
    forms: Counter[str] = Counter()
    first: dict[str, LakePath] = {}
    for child in _folders(folder):
        key, value = _split_key(child.name)
        form = next((form for pattern, form in _FORMS if pattern.fullmatch(value)), None)
        if form is not None:
            forms[f"{key}{form}"] += 1
            first.setdefault(f"{key}{form}", child)
    for layout, _ in forms.most_common():
        whole = _complete(layout, first[layout])
        if whole is not None:
            return whole
    return None


def _complete(layout: str, folder: LakePath) -> str | None:
    """Return the layout with its months and days, which are one or two folders deeper; None if they are not there."""
    while True:
        bare = "/".join(_split_key(part)[1] for part in layout.split("/"))
        wanted = _NEXT.get(bare)
        if wanted is None:
            return layout
        children = [(child, *_split_key(child.name)) for child in _folders(folder)]
        dated = [(child, key) for child, key, value in children if _NUMBER.fullmatch(value)]
        if not dated:
            return None
        folder, key = dated[0]
        layout = f"{layout}/{key}{wanted}"


def guess_group_layout(folder: LakePath, given: Sequence[tuple[str, str]]) -> str | None:
    """Return the layout of a folder that has one folder a group, and in each the days; None when it has not."""
    layouts = {child.name: guess_day_layout(child) for child in _folders(folder)}
    dated = {name: layout for name, layout in layouts.items() if layout is not None}
    key = _key_of_groups(list(dated), given)
    if key is None:
        return None
    most, _ = Counter(dated.values()).most_common(1)[0]
    return f"{key}GROUP/{most}"


def add_groups_of_days(layout: str, day: LakePath, given: Sequence[tuple[str, str]]) -> str | None:
    """Return the layout with the groups that have a folder each in a day, None when they have none."""
    key = _key_of_groups([child.name for child in _folders(day)], given)
    return None if key is None else f"{layout}/{key}GROUP"


def first_day(folder: LakePath, layout: str) -> LakePath:
    """Return the folder of one day of a layout without groups."""
    parts = layout.split("/")
    for depth in range(1, len(parts) + 1):
        part = re.escape(parts[depth - 1])
        for token, digits in (("YYYY", r"\d{4}"), ("MM", r"\d{1,2}"), ("DD", r"\d{1,2}")):
            part = part.replace(token, digits)
        folder = [child for child in _folders(folder) if re.fullmatch(part, child.name)][-1]
    return folder


def _key_of_groups(names: Sequence[str], given: Sequence[tuple[str, str]]) -> str | None:
    """Return what stands before the groups in names of folders, None when they are not groups with clicks."""
    keys = {_split_key(name)[0] for name in names}
    values = {_split_key(name)[1]: 1 for name in names}
    decided = [(group, value) for group, value in given if value in values]
    if len(keys) != 1 or CLICK_GROUP not in guess_groups(values, decided).names:
        return None
    return keys.pop()


def _split_key(name: str) -> tuple[str, str]:
    key, found, value = name.partition("=")
    return (f"{key}=", value) if found else ("", name)


def _folders(folder: LakePath) -> list[LakePath]:
    if not is_lake_folder(folder):
        return []
    return [child for child in list_folder(folder) if not child.name.startswith((".", "_")) and is_lake_folder(child)]

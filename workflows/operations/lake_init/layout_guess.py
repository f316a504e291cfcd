"""Recognise how the folders of a lake say the day and the group of their files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ammrank_dask.storage.lake.paths import LakePath, is_lake_folder, list_folder
from ammrank_dask.storage.vocabulary import CLICK_GROUP
from ammrank_dask.workflows.operations.lake_init.guess import guess_groups

_FORMS = (
    (re.compile(r"\d{4}-\d{2}-\d{2}"), "YYYY-MM-DD"),
    (re.compile(r"\d{8}"), "YYYYMMDD"),
    (re.compile(r"\d{4}"), "YYYY"),
    (re.compile(r"\d{4}-\d{2}"), "YYYY-MM"),
)
_NEXT = {"YYYY": "MM", "YYYY/MM": "DD", "YYYY-MM": "DD"}
_NUMBER = re.compile(r"\d{1,2}")


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


def says_groups(layout: str | None) -> bool:
    """Tell whether folders say the group."""
    return layout is not None and "GROUP" in layout

"""Read the table of what a click on each category is worth: CSV or parquet, from dates on, by groups of users."""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ammrank_dask.storage.errors import BadInput, suggest
from ammrank_dask.storage.lake.paths import LakePath, read_table
from ammrank_dask.storage.vocabulary import CATEGORY, VALUE

FROM, USERS = "from", "group"
COLUMNS = (CATEGORY, VALUE, FROM, USERS)
"""The columns of the table; the last two may be left out."""
_WITH_CURRENCY = re.compile(rf"{VALUE} \(([^()]{{1,12}})\)")
MOST = 1e9
"""The largest value of a click: a larger one is taken for a mistake."""


@dataclass(frozen=True)
class ValueTable:
    """What a click is worth on one day: `values` by category, and `by_group` of users, whose values come first.

    `currency` is a word that is printed with them.
    """

    values: dict[str, float] = field(default_factory=dict)
    by_group: dict[str, dict[str, float]] = field(default_factory=dict)
    currency: str = ""

    def to_json(self) -> dict[str, str]:
        """Return what a manifest keeps beside the values."""
        return {"currency": self.currency} if self.currency else {}


def read_value_table(
    path: LakePath,
    date: dt.date | None,
    categories: Sequence[str],
    user_groups: Sequence[str],
    names_now: Mapping[str, str | None] | None = None,
) -> ValueTable:
    """Return the values of a table that hold on a date; a category without a row for that date has none.

    Parameters
    ----------
    path
        A CSV or parquet file with the columns `category` and `value`, and `from` (a date) and `group` (of users) if
        they are needed. The second may be named with its currency, `value (EUR)`. Of several rows of a category and a
        group the one with the latest `from` up to the date holds.
    date
        None for the latest rows.
    categories, user_groups
        The names that may be in the table.
    names_now
        By former name of a category the name it has now; None for one that nobody gets any more.
    """
    former = names_now or {}
    found: dict[tuple[str, str], dict[str, tuple[str, float]]] = {}
    rows, currency = _read_rows(path)
    for where, row in rows:
        named = row[CATEGORY].strip()
        name = named if named in categories else former.get(named, named)
        if name is None:
            continue
        if name not in categories:
            meant = suggest(name, categories, show=repr, limit=5)
            raise BadInput(f"{where}: there is no ranked category {name!r}; {meant}")
        group = row[USERS].strip()
        if group and group not in user_groups:
            meant = suggest(group, user_groups, show=repr, limit=5)
            raise BadInput(f"{where}: there is no group of users {group!r}; {meant}")
        start, value = _start(where, row[FROM].strip()), _value(where, row[VALUE].strip())
        of_cell = found.setdefault((group, name), {})
        if start in of_cell:
            from_then = f" from {start}" if start else ""
            raise BadInput(f"{where}: there is another value of {name!r}{from_then}; leave one")
        of_cell[start] = (where, value)
    result = ValueTable(currency=currency)
    for (group, name), of_cell in found.items():
        started = [start for start in of_cell if date is None or not start or start <= date.isoformat()]
        if started:
            own = result.by_group.setdefault(group, {}) if group else result.values
            own[name] = of_cell[max(started)][1]
    if not any(value > 0 for own in (result.values, *result.by_group.values()) for value in own.values()):
        when = "" if date is None else f" on {date}"
        raise BadInput(f"{path}: no category has a value above 0{when}; give at least one")
    return result


def _start(where: str, text: str) -> str:
    if not text:
        return ""
    try:
        return dt.date.fromisoformat(text[:10]).isoformat()
    except ValueError:
        raise BadInput(f"{where}: {FROM} must be a date like 2026-01-31, found {text!r}") from None


def _value(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST:
        raise BadInput(f"{where}: the value of a click must be a number from 0 to {MOST:.0f}, found {text!r}")
    return value


def _read_rows(path: LakePath) -> tuple[list[tuple[str, dict[str, str]]], str]:
    """Return where each row stands with its cells as text, a missing cell as an empty one; and the currency."""
    try:
        if path.suffix == ".parquet":
            table = read_table(path)
            names, rows = table.column_names, table.to_pylist()
            listed = [(f"{path}, row {number}", row) for number, row in enumerate(rows, start=1)]
        else:
            reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")), restkey="")
            listed = [(f"{path}, line {reader.line_num}", row) for row in reader if any(row.values())]
            names = [name.strip() for name in reader.fieldnames or []]
            listed = [(where, {name.strip(): text for name, text in row.items()}) for where, row in listed]
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        said = str(error).splitlines()[0]
        raise BadInput(f"cannot read {path}: {said}; give a table with the columns {CATEGORY},{VALUE}") from None
    currency = ""
    for number, name in enumerate(names):
        if found := _WITH_CURRENCY.fullmatch(name):
            currency, names[number] = found[1], VALUE
            listed = [
                (where, {VALUE if key == name else key: text for key, text in row.items()}) for where, row in listed
            ]
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not {CATEGORY, VALUE} <= set(names) or len(set(names)) < len(names):
        raise BadInput(
            f"{path} must have the columns {CATEGORY},{VALUE} and may have {FROM},{USERS}, found {','.join(names)}"
        )
    for where, row in listed:
        if "" in row:
            raise BadInput(f"{where}: must have {len(names)} fields, found more")
    cells = [
        (where, {name: "" if row.get(name) is None else str(row[name]) for name in COLUMNS}) for where, row in listed
    ]
    return cells, currency

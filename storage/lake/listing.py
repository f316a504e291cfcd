"""List the days and the parquet files of a lake: of folders, or of the newest snapshot of a table."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.delta import DELTA_LOG, Snapshot, is_delta, read_snapshot
from ammrank_dask.storage.lake.iceberg import METADATA, is_iceberg, is_metadata, read_iceberg
from ammrank_dask.storage.lake.paths import (
    LakePath,
    RemotePath,
    is_lake_folder,
    list_folder,
    map_at_once,
)
from ammrank_dask.storage.objects.folders import refuse_lost_link, walk
from ammrank_dask.storage.objects.retry import retried

_NOT_DATA = (".", "_")
_DATE = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")


_PARTS = {
    "YYYY": r"(?P<year>\d{4})",
    "MM": r"(?P<month>\d{1,2})",
    "DD": r"(?P<day>\d{1,2})",
    "GROUP": r"(?P<group>[^/]+)",
}
_SPLIT = re.compile(r"(YYYY|MM|DD|GROUP)")


class LakeFile(NamedTuple):
    """A file of a lake: where it is, its name below the folder it belongs to, and its group if a folder says that."""

    path: LakePath
    name: str
    group: str | None = None


@dataclass(frozen=True)
class LakeDay:
    """A day of a lake: its folder, and of a table the files that are alive and the version they were read from.

    In a lake without one folder per day, `live` has the files of the day, too. `group_of` are the groups of files that
    have no column for it.
    """

    folder: LakePath
    live: tuple[LakePath, ...] | None = None
    version: int | None = None
    group_of: Mapping[LakePath, str] = field(default_factory=dict)

    @retried
    def files(self) -> list[LakePath]:
        """Return the parquet files of the day in name order."""
        return _walk_files(self.folder) if self.live is None else list(self.live)

    def name_files(self) -> list[LakeFile]:
        """Return the files of the day with their names below its folder."""
        return [LakeFile(path, name_below(path, self.folder), self.group_of.get(path)) for path in self.files()]


def name_below(path: LakePath, folder: LakePath) -> str:
    """Return the name of a file below a folder."""
    if isinstance(path, RemotePath):
        assert isinstance(folder, RemotePath)
        return path.relative_to(folder).as_posix()
    return path.relative_to(str(folder)).as_posix()


def list_day_files(days: Mapping[dt.date, LakeDay]) -> dict[dt.date, list[LakeFile]]:
    """Return the files of days; many folders of an object store are listed at once."""
    is_remote = any(isinstance(day.folder, RemotePath) for day in days.values())
    listed = map_at_once(LakeDay.name_files, days.values()) if is_remote else map(LakeDay.name_files, days.values())
    return dict(zip(days, listed, strict=True))


@retried
def list_days(
    events: LakePath, date_key: str, layout: str | None = None, group: str = "group"
) -> dict[dt.date, LakeDay]:
    """Return the days of a lake in date order.

    Parameters
    ----------
    date_key
        Day folders are named KEY=DATE; of a table it is the column of the day.
    layout
        Where the files of a day are if not in such folders (see `Layout`).
    group
        The column of groups, which a table may be partitioned by.
    """
    table = _read_table(events)
    if table is not None:
        return _list_days_of_table(table, date_key, group)
    if not is_lake_folder(events):
        raise BadInput(f"there is no folder of events at {events}; set lake.events")
    refuse_table(events)
    if layout is not None:
        return _list_days_of_layout(events, Layout.parse(layout))
    days: dict[dt.date, LakeDay] = {}
    for folder in list_folder(events):
        key, found, value = folder.name.partition("=")
        if not found or key != date_key or not is_lake_folder(folder):
            continue
        date = _read_date(value)
        if date is None:
            raise BadInput(
                f"{folder} is not a date; day folders are named {date_key}=YYYY-MM-DD or {date_key}=YYYYMMDD"
            )
        if date in days:
            raise BadInput(f"{days[date].folder} and {folder} are the same day; bring their files into one folder")
        days[date] = LakeDay(folder)
    if not days:
        raise BadInput(f"{events} has no folder named {date_key}=YYYY-MM-DD; set lake.events or lake.date_key")
    return dict(sorted(days.items()))


def _list_days_of_layout(events: LakePath, layout: Layout) -> dict[dt.date, LakeDay]:
    files: dict[dt.date, dict[LakePath, str | None]] = {}
    for path in _walk_files(events):
        matched = layout.match(name_below(path, events))
        if matched is not None:
            files.setdefault(matched.date, {})[path] = matched.group
    if not files:
        raise BadInput(f"{events} has no parquet files in folders {layout.text}; set lake.events or lake.layout")
    return {
        date: LakeDay(
            events, tuple(of_day), group_of={path: group for path, group in of_day.items() if group is not None}
        )
        for date, of_day in sorted(files.items())
    }


def _read_table(path: LakePath) -> Snapshot | None:
    """Return the newest snapshot of the table that a path is, None when it is none."""
    if is_delta(path):
        return read_snapshot(path)
    return read_iceberg(path) if is_iceberg(path) else None


def _list_days_of_table(table: Snapshot, date_key: str, group: str) -> dict[dt.date, LakeDay]:
    named = f"the {table.kind} table at {table.folder}"
    if date_key not in table.partitioned_by:
        names = ", ".join(table.partitioned_by) or "nothing"
        raise BadInput(
            f"{named} is partitioned by {names}, not by {date_key}; set lake.date_key to the column of the day"
        )
    files: dict[dt.date, list[LakePath]] = {}
    group_of: dict[LakePath, str] = {}
    for path, partition in table.files:
        if group in partition:
            group_of[path] = partition[group]
        value = partition.get(date_key, "none")
        date = _read_date(value)
        if date is None:
            raise BadInput(f"{path} of {named} has {date_key} {value!r}, which is not a date")
        files.setdefault(date, []).append(path)
    if not files:
        raise BadInput(f"{named} has no files; is it the right one?")
    return {date: LakeDay(table.folder, tuple(live), table.version, group_of) for date, live in sorted(files.items())}


def _read_date(text: str) -> dt.date | None:
    """Return the date that is written as YYYY-MM-DD or YYYYMMDD, None for any other text."""
    match = _DATE.fullmatch(text)
    if match is None or text.count("-") not in (0, 2):
        return None
    try:
        return dt.date(*map(int, match.groups()))
    except ValueError:
        return None


def refuse_table(folder: LakePath) -> None:
    """Raise if the folder is in a table, whose log says which of its files are alive."""
    if is_delta(folder.parent):
        raise BadInput(
            f"{folder} is a folder of the Delta Lake table at {folder.parent}, and files that the table no longer uses"
            " would count too; name the table itself in lake.events or lake.users"
        )
    for above in (folder, folder.parent):
        if is_iceberg(above):
            raise BadInput(
                f"{above} is a table of Iceberg (it has {METADATA}/*.metadata.json), and files that the table no longer"
                " uses would count too; name the table itself in lake.events or lake.users"
            )


@retried
def table_files(table: LakePath) -> list[LakeFile]:
    """Return the files of a table that is one file or a folder of files."""
    if not table.is_dir() and not is_metadata(table):
        return [LakeFile(table, table.name)]
    folder = table.parent.parent if is_metadata(table) else table
    return [LakeFile(path, name_below(path, folder)) for path in list_files(table)]


@retried
def list_files(folder: LakePath) -> list[LakePath]:
    """Return the parquet files of a folder in name order, without hidden ones and those of unfinished writers.

    Of a table of Delta Lake or Iceberg these are the files of its newest snapshot.
    """
    table = _read_table(folder)
    if table is not None:
        return [path for path, _ in table.files]
    refuse_table(folder)
    return _walk_files(folder)


def _walk_files(folder: LakePath) -> list[LakePath]:
    if isinstance(folder, RemotePath):
        return _walk_remote_files(folder)
    refuse_lost_link(folder)
    paths: list[LakePath] = []
    for root, folders, names in walk(folder):
        if DELTA_LOG in folders:
            refuse_table(Path(root) / DELTA_LOG)
        if METADATA in folders:
            refuse_table(Path(root))
        folders[:] = [name for name in folders if not name.startswith(_NOT_DATA)]
        for path in (Path(root) / name for name in names if not name.startswith(_NOT_DATA)):
            if path.suffix in (".parquet", ".parq"):
                paths.append(path)
            else:
                refuse_lost_link(path)
    return sorted(paths)


def _walk_remote_files(folder: RemotePath) -> list[LakePath]:
    files: list[LakePath] = []
    for path in folder.walk():
        *above, name = path.relative_to(folder).parts
        if DELTA_LOG in above:
            refuse_table(folder / "/".join(above[: above.index(DELTA_LOG)]) / DELTA_LOG)
        if above[-1:] == [METADATA] and name.endswith(".metadata.json"):
            refuse_table(path.parent.parent)
        if name.endswith((".parquet", ".parq")) and not any(part.startswith(_NOT_DATA) for part in (*above, name)):
            files.append(path)
    return files


class FolderFacts(NamedTuple):
    """What the folders of a file say: the day, and the group if the layout has it."""

    date: dt.date
    group: str | None


@dataclass(frozen=True)
class Layout:
    """A pattern of folders, with YYYY, MM and DD each once, and GROUP at most once.

    Examples
    --------
    >>> layout = Layout.parse("GROUP/YYYY/MM/DD")
    >>> layout.match("clicks/2026/03/05/part-0.parquet")
    FolderFacts(date=datetime.date(2026, 3, 5), group='clicks')
    >>> layout.match("users/part-0.parquet") is None
    True
    """

    text: str
    pattern: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Return the layout that a text describes; what is in folders below those of the text does not matter."""
        pieces = _SPLIT.split(text.strip("/"))
        counts = [pieces.count(part) for part in _PARTS]
        if counts[:3] != [1, 1, 1] or counts[3] > 1:
            raise BadInput(
                f"a layout must have YYYY, MM and DD once and GROUP at most once, for example YYYY/MM/DD or"
                f" GROUP/date=YYYY-MM-DD, got {text!r}"
            )
        pattern = "".join(_PARTS.get(piece, re.escape(piece)) for piece in pieces)
        return cls(text, re.compile(pattern + "/.*"))

    def match(self, name: str) -> FolderFacts | None:
        """Return what the folders of a file say, None for a file in other folders."""
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        try:
            date = dt.date(int(found["year"]), int(found["month"]), int(found["day"]))
        except ValueError:
            raise BadInput(f"{name} is in folders {self.text} that are not a date; rename or remove them") from None
        return FolderFacts(date, unquote(found["group"]) if "GROUP" in self.text else None)

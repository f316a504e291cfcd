"""List the days and the parquet files of a lake: plain folders, or the newest snapshot of a Delta Lake table."""

from __future__ import annotations

import datetime as dt
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.delta import DELTA_LOG, is_delta, read_snapshot

_NOT_DATA = (".", "_")
_ICEBERG = "metadata"
_DATE = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")


@dataclass(frozen=True)
class LakeDay:
    """A day of a lake: its folder, and of a table the files that are alive and the version they were read from."""

    folder: Path
    live: tuple[Path, ...] | None = None
    version: int | None = None

    def files(self) -> list[Path]:
        """Return the parquet files of the day in name order."""
        return list_files(self.folder) if self.live is None else list(self.live)


def list_days(events: Path, date_key: str) -> dict[dt.date, LakeDay]:
    """Return the days of a lake in date order."""
    if not events.is_dir():
        raise BadInput(f"there is no folder of events at {events}; set lake.events")
    if is_delta(events):
        return _list_days_of_table(events, date_key)
    refuse_table(events)
    days: dict[dt.date, LakeDay] = {}
    for folder in sorted(events.iterdir()):
        key, found, value = folder.name.partition("=")
        if not found or key != date_key or not folder.is_dir():
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


def _list_days_of_table(events: Path, date_key: str) -> dict[dt.date, LakeDay]:
    snapshot = read_snapshot(events)
    if date_key not in snapshot.partitioned_by:
        names = ", ".join(snapshot.partitioned_by) or "nothing"
        raise BadInput(
            f"the Delta Lake table at {events} is partitioned by {names}, not by {date_key}; set lake.date_key to the"
            " column of the day"
        )
    files: dict[dt.date, list[Path]] = {}
    for path, partition in snapshot.files:
        date = _read_date(partition[date_key])
        if date is None:
            raise BadInput(f"{path} of a Delta Lake table has {date_key} {partition[date_key]!r}, which is not a date")
        files.setdefault(date, []).append(path)
    if not files:
        raise BadInput(f"the Delta Lake table at {events} has no files; is it the right one?")
    return {date: LakeDay(events, tuple(live), snapshot.version) for date, live in sorted(files.items())}


def _read_date(text: str) -> dt.date | None:
    """Return the date that is written as YYYY-MM-DD or YYYYMMDD, None for any other text."""
    match = _DATE.fullmatch(text)
    if match is None or text.count("-") not in (0, 2):
        return None
    try:
        return dt.date(*map(int, match.groups()))
    except ValueError:
        return None


def refuse_table(folder: Path) -> None:
    """Raise if the folder is in a table, or is one of Iceberg, whose log says which of its files are alive."""
    if is_delta(folder.parent):
        raise BadInput(
            f"{folder} is a folder of the Delta Lake table at {folder.parent}, and files that the table no longer uses"
            " would count too; name the table itself in lake.events or lake.users"
        )
    for place in (folder, folder.parent):
        if next((place / _ICEBERG).glob("*.metadata.json"), None) is not None:
            raise BadInput(
                f"{place} is a table of Iceberg (it has {_ICEBERG}/*.metadata.json), and parquet files that the table"
                " no longer uses would count too; export one snapshot of it as plain parquet files, and name that copy"
                " in lake.events or lake.users"
            )


def list_files(folder: Path) -> list[Path]:
    """Return the parquet files of a folder in name order, without hidden ones and those of unfinished writers.

    Of a Delta Lake table these are the files of its newest snapshot.
    """
    if is_delta(folder):
        return [path for path, _ in read_snapshot(folder).files]
    refuse_table(folder)
    paths = []
    for root, folders, names in os.walk(folder):
        if DELTA_LOG in folders:
            refuse_table(Path(root) / DELTA_LOG)
        if _ICEBERG in folders:
            refuse_table(Path(root))
        folders[:] = [name for name in folders if not name.startswith(_NOT_DATA)]
        paths += [
            Path(root) / name
            for name in names
            if name.endswith((".parquet", ".parq")) and not name.startswith(_NOT_DATA)
        ]
    return sorted(paths)

"""Copy published nights to where consumers read them: an object store, or a folder.

    TO/date=2026-03-05/DIGEST/by_user/… by_category/… delta/… report/…
    TO/CURRENT      names the folder of the newest night, and is written last

The digest is that of the files, so that a folder never changes: a night that was made again, or from which users were
removed, has another one. An object is seen whole or not at all, so one of the right size is there already.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from ammrank_dask.storage.errors import REBUILD_COMMAND, DamagedStore
from ammrank_dask.storage.lake.paths import map_at_once
from ammrank_dask.storage.objects.atomic import TEMPORARY, digest_of, json_text, read_json
from ammrank_dask.storage.objects.folders import is_file, read_file
from ammrank_dask.storage.objects.objects import Objects
from ammrank_dask.storage.site.reports import CHECKSUMS
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import is_finished, open_run

POINTER = "CURRENT"
COPY_FORMAT = 1
REPORT = "report"
_COPY = re.compile(r"(date=(\d{4}-\d{2}-\d{2})/[0-9a-f]{16})/")


@dataclass(frozen=True)
class NightFiles:
    """The files of a night as they are copied: name in the copy, file here, size and checksum."""

    date: dt.date
    files: tuple[tuple[str, Path, int, int], ...]

    @classmethod
    def of(cls, site: Site, date: dt.date) -> NightFiles:
        """Return the files of a night whose qualifications are kept; its report is there if it is kept, too."""
        run = open_run(site.qualifications_folder(date))
        files = [(name, run.path / name, size, checksum) for name, (size, checksum) in run.files.items()]
        report = site.report_folder(date)
        if is_file(report / CHECKSUMS):
            listed = read_json(report / CHECKSUMS)["files"]
            files += [(f"{REPORT}/{name}", report / name, *entry) for name, entry in listed.items()]
        return cls(date, tuple(sorted(files)))

    @property
    def folder(self) -> str:
        """The folder of the copy, below the target."""
        digest = digest_of([[name, size, checksum] for name, _, size, checksum in self.files])
        return f"date={self.date}/{digest}"


def copy_night(night: NightFiles, target: Objects) -> int:
    """Copy the files of a night that are not there yet, many at once; return their number."""
    present = {one.key: one.size for one in target.list(f"{night.folder}/")}
    wanted = [
        (path, f"{night.folder}/{name}", size, checksum)
        for name, path, size, checksum in night.files
        if present.get(f"{night.folder}/{name}") != size
    ]
    map_at_once(lambda file: _copy_file(target, *file), wanted)
    return len(wanted)


def point_to(night: NightFiles, target: Objects) -> None:
    """Make a night that is copied whole the one that consumers read: one small object, unless it is that already."""
    content = {
        "format": COPY_FORMAT,
        "date": str(night.date),
        "folder": night.folder,
        "files": len(night.files),
        "bytes": sum(size for _, _, size, _ in night.files),
    }
    if read_pointer(target) != content:
        target.put(POINTER, [json_text(content).encode()])


def read_pointer(target: Objects) -> dict[str, object] | None:
    """Return what the pointer says, None when there is none."""
    try:
        content: dict[str, object] = json.loads(target.get(POINTER)[0])
    except FileNotFoundError:
        return None
    except ValueError:
        return None  # not ours, or damaged: it is written again
    return content


def renew_copies(site: Site, target: Objects) -> int:
    """Copy all nights again whose files changed, and remove the copies before at once; return their number."""
    renewed, newest = 0, max(site.published_nights(), default=None)
    for date, folders in copied_nights(target).items():
        kept = NightFiles.of(site, date) if is_finished(site.qualifications_folder(date)) else None
        if kept is not None:
            copy_night(kept, target)
            if date == newest:
                point_to(kept, target)
        replaced = [key for folder, keys in folders.items() if kept is None or folder != kept.folder for key in keys]
        target.delete(replaced)
        renewed += bool(replaced)
    return renewed


def try_target(target: Objects) -> None:
    """Write a small object to where copies go and remove it, or raise what stands in the way."""
    key = f"{TEMPORARY}{uuid.uuid4().hex[:12]}"
    target.put(key, [])
    target.delete([key])


def copied_nights(target: Objects) -> dict[dt.date, dict[str, list[str]]]:
    """Return the keys of copies by night and folder; what else is there is not ours, and nobody may remove it."""
    nights: dict[dt.date, dict[str, list[str]]] = {}
    for one in target.list("date="):
        copy = _COPY.match(one.key)
        if copy is None:
            continue
        try:
            date = dt.date.fromisoformat(copy[2])
        except ValueError:  # of a name that looks like a date only
            continue
        nights.setdefault(date, {}).setdefault(copy[1], []).append(one.key)
    return nights


def _copy_file(target: Objects, source: Path, key: str, size: int, checksum: int) -> None:
    data = read_file(source)
    if len(data) != size or google_crc32c.value(data) != checksum:
        raise DamagedStore(f"{source} is not what was written (checksum differs); make it again with {REBUILD_COMMAND}")
    target.put(key, [data])

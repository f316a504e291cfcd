"""Copy published nights to where consumers read them: an object store, or a folder.

    TO/date=2026-03-05/DIGEST/by_user/… by_category/… delta/… report/…
    TO/CURRENT      names the folder of the newest night, and is written last

The digest is that of the files, so that a folder never changes: a night that was made again, or from which users were
removed, has another one. An object is seen whole or not at all, so one of the right size is there already.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from ammrank_dask.storage.errors import REBUILD_COMMAND, DamagedStore
from ammrank_dask.storage.lake.paths import LakePath, RemotePath, list_folder, map_at_once, say_failures
from ammrank_dask.storage.objects.atomic import TEMPORARY, digest_of, json_text, read_json, write_atomic
from ammrank_dask.storage.site.reports import CHECKSUMS
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import open_run

POINTER = "CURRENT"
COPY_FORMAT = 1
REPORT = "report"
_NIGHT, _DIGEST = re.compile(r"date=(\d{4}-\d{2}-\d{2})"), re.compile(r"[0-9a-f]{16}")


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
        if (report / CHECKSUMS).is_file():
            listed = read_json(report / CHECKSUMS)["files"]
            files += [(f"{REPORT}/{name}", report / name, *entry) for name, entry in listed.items()]
        return cls(date, tuple(sorted(files)))

    @property
    def folder(self) -> str:
        """The folder of the copy, below the target."""
        digest = digest_of([[name, size, checksum] for name, _, size, checksum in self.files])
        return f"date={self.date}/{digest}"


def copy_night(night: NightFiles, target: LakePath) -> int:
    """Copy the files of a night that are not there yet, many at once; return their number."""
    folder = target / night.folder
    present = {path: path.stat().st_size for path in _walk(folder)}
    wanted = [
        (path, folder / name, size, checksum)
        for name, path, size, checksum in night.files
        if present.get(folder / name) != size
    ]
    map_at_once(lambda file: _copy_file(*file), wanted)
    return len(wanted)


def point_to(night: NightFiles, target: LakePath) -> None:
    """Make a night that is copied whole the one that consumers read: one small object, unless it is that already."""
    content = {
        "format": COPY_FORMAT,
        "date": str(night.date),
        "folder": night.folder,
        "files": len(night.files),
        "bytes": sum(size for _, _, size, _ in night.files),
    }
    if read_pointer(target) != content:
        _write(target / POINTER, json_text(content).encode())


def read_pointer(target: LakePath) -> dict[str, object] | None:
    """Return what the pointer says, None when there is none."""
    try:
        with say_failures(target):
            content: dict[str, object] = json.loads((target / POINTER).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return None  # not ours, or damaged: it is written again
    return content


def try_target(target: LakePath) -> None:
    """Write a small object to where copies go and remove it, or raise what stands in the way."""
    path = target / f"{TEMPORARY}{uuid.uuid4().hex[:12]}"
    _write(path, b"")
    with say_failures(path):
        path.unlink()


def copied_nights(target: LakePath) -> dict[dt.date, list[str]]:
    """Return the folders of copies by night; what else is there is not ours, and nobody may remove it."""
    nights: dict[dt.date, list[str]] = {}
    for folder in list_folder(target) if target.is_dir() else []:
        date = _NIGHT.fullmatch(folder.name)
        if date is None or not folder.is_dir():
            continue
        copies = [copy.name for copy in list_folder(folder) if _DIGEST.fullmatch(copy.name) and copy.is_dir()]
        with contextlib.suppress(ValueError):  # of a name that looks like a date only
            nights[dt.date.fromisoformat(date[1])] = [f"{folder.name}/{copy}" for copy in copies]
    return nights


def remove_copies(target: LakePath, folders: Iterable[str]) -> None:
    """Remove copies of nights."""
    files = [file for folder in folders for file in _walk(target / folder)]
    map_at_once(_remove, files)
    if isinstance(target, Path):
        for folder in folders:
            for path in sorted((target / folder).rglob("*"), reverse=True):
                path.rmdir()
            (target / folder).rmdir()


def _remove(path: LakePath) -> None:
    path.unlink()


def _walk(folder: LakePath) -> list[LakePath]:
    if isinstance(folder, RemotePath):
        return list(folder.walk())
    return [path for path in folder.rglob("*") if path.is_file()]


def _copy_file(source: Path, target: LakePath, size: int, checksum: int) -> None:
    data = source.read_bytes()
    if len(data) != size or google_crc32c.value(data) != checksum:
        raise DamagedStore(f"{source} is not what was written (checksum differs); make it again with {REBUILD_COMMAND}")
    _write(target, data)


def _write(path: LakePath, data: bytes) -> None:
    if isinstance(path, RemotePath):
        path.write_bytes(data)
    else:
        write_atomic(path, lambda temporary: temporary.write_bytes(data))

"""Know the folders of a site, name its runs, and publish a night with one write of ROOT."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ammrank_dask.storage.errors import REBUILD_COMMAND, BadInput, DamagedStore, EarlierFormat, SiteBusy, name_night
from ammrank_dask.storage.objects.atomic import (
    OTHERS,
    digest_tree,
    sync_folder,
    undo_swaps,
    write_text,
)
from ammrank_dask.storage.objects.folders import is_folder, list_paths, rename
from ammrank_dask.storage.objects.objects import PosixObjects, Tag
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.account import is_of_group, refuse_account
from ammrank_dask.storage.site.root import ROOT, Root, move_root, put_root_back, read_root
from ammrank_dask.storage.store.runs import LATEST, MANIFEST, SUCCESS, open_run, remove_run, verify_run

CONFIG_NAME = "ammrank.yaml"
RUN_FOLDERS = ("days", "users", "state", "features", "windows", "models", "chances", "gates")
PROMISED = ("state", "users", "features", "models", "chances", "qualifications")
"""Folders whose published bytes are the same for the same input, config and seed."""
FORGETTING = ".forgetting"
"""Name of the empty file that is there while users are being forgotten."""
REPLACED = ".replaced-"
"""Prefix of qualifications that others took the place of."""
LOOK_SECONDS = 2.0
"""How long a run waits for a lock before it takes its holder for another run."""
OPTIONAL_ROLES = frozenset({"users", "lag", "chances"})
"""What a night may do without: no users table, not yet a whole label window, or too few held-out users."""


@dataclass(frozen=True)
class Site:
    """A deployment: a POSIX folder that all workers see."""

    path: Path

    @property
    def config_path(self) -> Path:
        """The config of the site."""
        return self.path / CONFIG_NAME

    @property
    def scratch(self) -> Path:
        """A folder whose content may be removed at any time between two commands."""
        return self.path / "scratch"

    def day_run(self, date: dt.date, digest: str) -> Path:
        """Return the folder of a day's partials."""
        return self.path / "days" / f"date={date}" / digest

    def run(self, folder: str, date: dt.date, digest: str) -> Path:
        """Return the folder of a run of a dated stage."""
        return self.path / folder / f"date={date}-{digest}"

    def users_run(self, digest: str) -> Path:
        """Return the folder of the demographics read from one state of users.parquet."""
        return self.path / "users" / digest

    def report_folder(self, date: dt.date) -> Path:
        """Return the folder of a night's reports."""
        return self.path / "reports" / f"date={date}"

    def qualifications_folder(self, date: dt.date) -> Path:
        """Return the folder of a night's qualifications."""
        return self.path / "qualifications" / f"date={date}"

    def run_folder(self, date: dt.date) -> Path:
        """Return the folder of the log and the record of a night."""
        return self.path / "runs" / f"date={date}"

    def verdict_folder(self, date: dt.date) -> Path:
        """Return the folder of what the gate decided at a date."""
        return self.path / "gates" / f"date={date}"

    @retried
    def finished_runs(self, folder: str) -> list[Path]:
        """Return the finished runs of one folder, oldest date first."""
        pattern = "*/*" if folder == "days" else "*"
        runs = [path.parent for path in list_paths(self.path / folder, f"{pattern}/{MANIFEST}")]
        return [run for run in runs if not run.name.startswith(".")]

    def kept_runs(self) -> list[Path]:
        """Return all finished runs of the site."""
        runs = [run for folder in RUN_FOLDERS for run in self.finished_runs(folder)]
        return [*runs, *self.scored_nights()]

    def scored_nights(self) -> list[Path]:
        """Return the folders of all qualifications that are whole, the oldest date first."""
        return [path.parent for path in list_paths(self.path / "qualifications", f"date=*/{MANIFEST}")]

    def relative(self, path: Path) -> str:
        """Return a path as ROOT names it."""
        return path.relative_to(self.path).as_posix()

    @property
    def objects(self) -> PosixObjects:
        """The objects of the site by key."""
        return PosixObjects(self.path)

    def current(self) -> Root | None:
        """Return what is published, None before the first time."""
        return read_root(self.objects)[0]

    def remove_damaged(self) -> list[Path]:
        """Remove the runs that are not what was written, so that they can be made again, and put a whole ROOT back.

        Nights that an earlier version scored go, too: nothing can be compared with them.
        """
        damaged = []
        for run in (run for folder in RUN_FOLDERS for run in self.finished_runs(folder)):
            try:
                verify_run(run)
            except DamagedStore:
                damaged.append(run)
                remove_run(run)
        for night in self.scored_nights():
            with contextlib.suppress(DamagedStore):  # of another kind: who reads it says so
                try:
                    open_run(night)
                except EarlierFormat:
                    damaged.append(night)
                    remove_run(night)
        try:
            self.current()
        except DamagedStore:
            damaged.append(self.path / ROOT)
            put_root_back(self.objects)
        self.drop_nights()
        return damaged

    def publish(self, date: dt.date, runs: Mapping[str, Path]) -> bool:
        """Make these runs the current ones with one write of ROOT; return whether they are.

        ROOT never goes back in time and never loses a stage: a stage that was run alone moves it only when
        what it has replaces all that is published. A night that was scored is remembered as published, an earlier one
        too: it was whole, only later than others.
        """
        root, tag = read_root(self.objects)
        nights = {*(() if root is None else root.nights), *((date,) if "qualifications" in runs else ())}
        if root is not None and date < root.date:
            self._move(replace(root, nights=tuple(sorted(nights))), root, tag)
            return False
        if root is not None and not set(runs) >= set(root.runs) - OPTIONAL_ROLES:
            return False
        for role, path in runs.items():
            if not is_folder(path):
                raise BadInput(f"cannot publish {role}: {path} does not exist")
        named = {role: self.relative(path) for role, path in runs.items()}
        self._move(Root(date, named, tuple(sorted(nights))), root, tag)
        return True

    def _move(self, root: Root, before: Root | None, tag: Tag | None) -> None:
        """Write ROOT, unless it says the same already, and what follows from it."""
        if root != before:
            move_root(self.objects, root, tag)
        self.mark_published()

    @retried
    def mark_published(self) -> None:
        """Tell readers of qualifications what is published: `_SUCCESS` in the folder of a night, and `LATEST`.

        Both follow from ROOT: what a crash left out is made up for by the next run.
        """
        nights = self.published_nights()
        for night in nights:
            folder = self.qualifications_folder(night)
            if (folder / MANIFEST).is_file() and not (folder / SUCCESS).is_file():
                (folder / SUCCESS).touch()
        if nights and self.qualifications_folder(nights[-1]).is_dir():
            latest = self.path / "qualifications" / LATEST
            text = f"{self.qualifications_folder(nights[-1]).name}\n"
            if not latest.is_file() or latest.read_text(encoding="utf-8") != text:
                write_text(latest, text)

    def set_aside(self, replaced: Path, date: dt.date) -> None:
        """Keep qualifications that others took the place of until the next retention: somebody may be reading them."""
        for path in list_paths(self.path / "qualifications", f"{REPLACED}date={date}-*"):
            remove_run(path)
        rename(replaced, replaced.with_name(f"{REPLACED}date={date}-{uuid.uuid4().hex[:12]}"))

    def remove_replaced(self, date: dt.date) -> None:
        """Remove what was set aside before the night of a date."""
        for path in list_paths(self.path / "qualifications", f"{REPLACED}date=*"):
            if not path.name.startswith(f"{REPLACED}date={date}-"):
                remove_run(path)

    def published_nights(self) -> list[dt.date]:
        """Return the dates whose qualifications were published and are kept, oldest first."""
        root = self.current()
        return [] if root is None else list(root.nights)

    def is_published(self, date: dt.date) -> bool:
        """Tell whether the qualifications of a date were published."""
        return date in self.published_nights()

    def drop_nights(self, gone: Collection[dt.date] = ()) -> None:
        """Take nights out of ROOT before their qualifications are removed, and those that have none any more."""
        root, tag = read_root(self.objects)
        if root is not None:
            kept = (night for night in root.nights if self.qualifications_folder(night).is_dir())
            self._move(replace(root, nights=tuple(night for night in kept if night not in gone)), root, tag)

    def digest(self) -> str:
        """Return one hash over the promised bytes of what is published."""
        current = self.current()
        if current is None:
            raise BadInput(f"{self.path} has nothing published yet; run `ammrank nightly` or `ammrank ingest` first")
        names = {name for name in current.runs.values() if name.split("/")[0] in PROMISED}
        reports = self.report_folder(current.date)
        if "report" in current.runs:
            names |= {self.relative(reports / name) for name in ("exposure.csv", "summary.json")}
        missing = sorted(name for name in names if not (self.path / name).exists())
        if missing:
            sentence = f"{self.path / missing[0]} is published and missing; make it again with {REBUILD_COMMAND}"
            raise DamagedStore(name_night(sentence, self.path, current.date))
        marks = [self.qualifications_folder(current.date) / SUCCESS] if "qualifications" in current.runs else []
        return digest_tree(self.path, names, marks)

    def is_held(self) -> bool:
        """Tell whether a run is going on, as far as the caller may look."""
        try:
            descriptor = os.open(self.path / ".lock", os.O_RDONLY)
        except (FileNotFoundError, PermissionError):
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the site against other runs, and repair what a killed one left half renamed.

        The lock goes with the process, whatever ends it.

        The folder is closed to everybody who is neither its owner nor in its group. Whoever is neither, as root may
        be, is refused: the owner could not go on with their files.
        """
        descriptor = self._open_lock()
        try:
            self._lock(descriptor)
            self._mend()
            yield
        finally:
            os.close(descriptor)

    @retried
    def _open_lock(self) -> int:
        """Make the folder, refuse an account that is not its own, close it to others, and open the file of the lock."""
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_account(self.path)
        found = self.path.stat()
        is_own = found.st_uid == os.geteuid()
        if found.st_mode & OTHERS and is_own:  # who is only in its group cannot change it
            self.path.chmod(found.st_mode & 0o7777 & ~OTHERS)
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        if is_of_group(self.path) and os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o660)
        return descriptor

    @retried
    def _mend(self) -> None:
        """Mend what a killed run left half renamed or half marked."""
        for folder in (*RUN_FOLDERS, "days/*", "qualifications"):
            for place in list_paths(self.path, folder):
                undo_swaps(place)
        self._mend_marks()

    def is_forgetting(self) -> bool:
        """Tell whether a command that forgets users has not come to its end."""
        return (self.path / FORGETTING).is_file()

    def begin_forgetting(self) -> None:
        """Remember that users are being forgotten, until `end_forgetting`."""
        (self.path / FORGETTING).touch()
        sync_folder(self.path)

    def end_forgetting(self) -> None:
        """Remember that all are forgotten."""
        (self.path / FORGETTING).unlink(missing_ok=True)
        sync_folder(self.path)

    def _mend_marks(self) -> None:
        with contextlib.suppress(BadInput):  # whoever needs ROOT says what is wrong with it
            self.mark_published()

    @retried
    def _lock(self, descriptor: int) -> None:
        """Take the lock; whoever only looks whether a run is going on has it for a moment."""
        end = time.monotonic() + LOOK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise SiteBusy(f"another run holds {self.path}; wait for it or stop it") from None
            time.sleep(0.05)

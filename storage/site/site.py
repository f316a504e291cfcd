"""Know the folders of a site, name its runs, and publish a night with one write of ROOT."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ammrank_dask.storage.errors import REBUILD_COMMAND, BadInput, DamagedStore, SiteBusy, StoreFailed, name_night
from ammrank_dask.storage.objects.account import close_folder
from ammrank_dask.storage.objects.atomic import TEMPORARY, digest_tree, swap_folder, write_text
from ammrank_dask.storage.objects.folders import (
    identity_of,
    is_file,
    is_folder,
    is_there,
    list_paths,
    make_folder,
    read_file,
    remove,
    remove_if_empty,
)
from ammrank_dask.storage.objects.posix import PosixObjects
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.lease import Holder, find_holder, hold
from ammrank_dask.storage.site.root import (
    KEPT_ROOTS,
    Root,
    move_root,
    read_root,
    without_generation,
)
from ammrank_dask.storage.store.runs import LATEST, MANIFEST, SUCCESS, is_finished, remove_run

CONFIG_NAME = "ammrank.yaml"
RUN_FOLDERS = ("days", "users", "state", "features", "windows", "models", "chances", "gates")
LISTS = "qualifications"
LISTS_IN_WORK = f"{LISTS}/runs"
"""Where lists are until they have the name that readers know, and what a rebuild replaced until the next night."""
PROMISED = ("state", "users", "features", "models", "chances", "qualifications")
"""Folders whose published bytes are the same for the same input, config and seed."""
OPTIONAL_ROLES = frozenset({"users", "lag", "chances"})
"""What a night may do without: no users table, not yet a whole label window, or too few held-out users."""
_DIGEST = r"[0-9a-f]+(-g\d+)?"
_DATE = r"\d{4}-\d{2}-\d{2}"
_OWN_NAMES = {
    **dict.fromkeys(RUN_FOLDERS, re.compile(f"date={_DATE}-{_DIGEST}")),
    "users": re.compile(_DIGEST),
    LISTS_IN_WORK: re.compile(f"{_DATE}-({_DIGEST}|removed(-g\\d+)?)"),
}
"""The names of runs by folder: nothing else is ever removed there. Days have a folder each, with digests in it."""
_FOLDERS = (LISTS, "days/date=*", "reports", "reports/date=*", "roots", "runs", "runs/date=*", "quarantine")
"""The other folders of a site in which files are written under temporary names."""


@dataclass(frozen=True)
class Published:
    """What is published: the newest date, by role the paths of its runs below the site, and all nights with lists."""

    date: dt.date
    runs: Mapping[str, str]
    nights: tuple[dt.date, ...]


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
        return self._place(f"days/date={date}/{digest}")

    def run(self, folder: str, date: dt.date, digest: str) -> Path:
        """Return the folder of a run of a dated stage."""
        return self._place(f"{folder}/date={date}-{digest}")

    def users_run(self, digest: str) -> Path:
        """Return the folder of the demographics read from one state of users.parquet."""
        return self._place(f"users/{digest}")

    def lists_in_work(self, date: dt.date, digest: str) -> Path:
        """Return the folder in which the qualifications of a night are written before they have their name."""
        return self._place(f"{LISTS_IN_WORK}/{date}-{digest}")

    def _place(self, key: str) -> Path:
        return self.path / self.root().place(key)

    def report_folder(self, date: dt.date) -> Path:
        """Return the folder of a night's reports."""
        return self.path / "reports" / f"date={date}"

    def qualifications_folder(self, date: dt.date) -> Path:
        """Return the folder of a night's qualifications."""
        return self.path / "qualifications" / f"date={date}"

    def run_folder(self, date: dt.date) -> Path:
        """Return the folder of the log and the record of a night."""
        return self.path / "runs" / f"date={date}"

    def finished_runs(self, folder: str) -> list[Path]:
        """Return the finished runs of one folder, oldest date first."""
        root = self.root()
        kept = [key for key in root.kept if key.startswith(f"{folder}/")]
        begun = [key for key in root.building if key.startswith(f"{folder}/") and not root.renews(key)]
        return [run for run in (self.path / key for key in sorted({*kept, *begun})) if is_finished(run)]

    def run_of_date(self, folder: str, date: Any) -> Path:
        """Return the one whole run of a date in a folder."""
        try:
            day = dt.date.fromisoformat(str(date))
        except ValueError:
            raise BadInput(f"date must be a day as in 2026-05-06, got {date!r}") from None
        runs = self.scored_nights() if folder == LISTS else self.finished_runs(folder)
        of_day = [run for run in runs if run.name.removeprefix("date=").startswith(str(day))]
        if len(of_day) == 1:
            return of_day[0]
        if of_day:
            names = ", ".join(run.name for run in of_day)
            raise BadInput(f"{self.path / folder} must have one run of {day}, found {names}; open one by its path")
        days = sorted({run.name.removeprefix("date=")[:10] for run in runs})
        has = f"it has {days[0]} to {days[-1]}" if days else "it has none"
        raise BadInput(f"{self.path / folder} has no run of {day}; {has}")

    def kept_runs(self) -> list[Path]:
        """Return all finished runs of the site."""
        runs = [run for folder in RUN_FOLDERS for run in self.finished_runs(folder)]
        return [*runs, *self.scored_nights()]

    def scored_nights(self) -> list[Path]:
        """Return the folders of all qualifications that are whole, the oldest date first."""
        return [run for run in self.finished_runs(LISTS) if run.parent.name == LISTS]

    def relative(self, path: Path) -> str:
        """Return a path as ROOT names it."""
        return path.relative_to(self.path).as_posix()

    def published_key(self, run: Path) -> str:
        """Return how ROOT names a run that is published: lists have the name that readers know."""
        key = self.relative(run)
        return f"{LISTS}/date={run.name[:10]}" if key.startswith(LISTS_IN_WORK) else key

    @property
    def objects(self) -> PosixObjects:
        """The objects of the site by key."""
        return PosixObjects(self.path)

    def root(self) -> Root:
        """Return what the site has."""
        return read_root(self.objects)[0] or Root()

    def current(self) -> Published | None:
        """Return what is published, None before the first time."""
        root = self.root()
        return None if root.date is None else Published(root.date, root.runs, root.nights)

    def begin(self, runs: Iterable[Path]) -> None:
        """Name runs in ROOT before they are written: what it does not name is removed."""
        keys = [self.relative(run) for run in runs]
        self.move(lambda root: root.begin(keys))

    def discard(self, runs: Iterable[Path], nights: Collection[dt.date] = (), date: dt.date | None = None) -> None:
        """Take runs out of ROOT, with one write, and then remove them; `nights` are no longer published.

        With the `date` of a night, lists go, too, that a rebuild of another one replaced.
        """
        gone = list(runs)

        def without(root: Root) -> Root:
            late = [key for key, (_, until) in root.trash.items() if until and date is not None and until != str(date)]
            root = root.discard([*late, *(self.relative(run) for run in gone if run.parent.name != LISTS)])
            for run in (run for run in gone if run.parent.name == LISTS):
                # A later run may have the name that readers know: what is removed gets one that nobody takes again.
                key = root.next_place(f"{LISTS_IN_WORK}/{run.name.removeprefix('date=')}-removed")
                root = root.rename(self.relative(run), key, identity_of(run))
            left = (night for night in root.nights if is_folder(self.qualifications_folder(night)))
            return replace(root, nights=tuple(night for night in left if night not in nights))

        self.move(without)

    def begin_command(self, name: str, value: Any) -> None:
        """Remember that a command has begun that spans several writes."""
        self.move(lambda root: replace(root, unfinished={**root.unfinished, name: value}))

    def unfinished(self, name: str) -> Any:
        """Return what is remembered of a command that has begun and not ended, None when there is none."""
        return self.root().unfinished.get(name)

    def listed(self) -> Iterator[Path]:
        """Yield the folders that have the name of a run, whether ROOT names them or not: to sweep and to verify."""
        for folder, name in _OWN_NAMES.items():
            for path in list_paths(self.path / folder, "date=*/*" if folder == "days" else "*"):
                own = f"{path.parent.name}-{path.name}" if folder == "days" else path.name
                if name.fullmatch(own) and is_folder(path):
                    yield path

    def unnamed(self) -> list[Path]:
        """Return the runs that ROOT does not name: what a task left that went on after its run was given up."""
        listed, root = list(self.listed()), self.root()
        named = {*root.kept, *root.building, *(key for key, (_, until) in root.trash.items() if until)}
        return [path for path in listed if self.relative(path) not in named]

    def publish(self, date: dt.date, runs: Mapping[str, Path]) -> bool:
        """Make these runs the current ones with one write of ROOT; return whether they are.

        ROOT never goes back in time and never loses a stage: a stage that was run alone moves it only when
        what it has replaces all that is published. A night that was scored is remembered as published, an earlier one
        too: it was whole, only later than others.
        """
        before = self.current()
        is_late = before is not None and date < before.date
        if not is_late:
            if before is not None and not set(runs) >= set(before.runs) - OPTIONAL_ROLES:
                return False
            for role, path in runs.items():
                if not is_folder(path):
                    raise BadInput(f"cannot publish {role}: {path} does not exist")
        lists = runs.get(LISTS)
        final = self.qualifications_folder(date)
        named = {role: self.published_key(path) for role, path in runs.items()}

        def published(root: Root) -> Root:
            whole = (key for key in root.building if not root.renews(key) and not key.startswith(LISTS))
            root = root.keep(key for key in whole if is_finished(self.path / key))
            root = root.keep(key for key in named.values() if key.split("/")[0] in RUN_FOLDERS)
            if lists is not None:
                root = replace(root, nights=tuple(sorted({*root.nights, date})))
                root = self._named(root, lists, date) if lists != final else root.keep([self.relative(final)])
            return root if is_late else replace(root, date=date, runs=named)

        self.move(published)
        return not is_late

    def name_lists(self, lists: Path, date: dt.date) -> Path:
        """Give lists that are whole the name that readers know, in place of others that were not published."""
        self.move(lambda root: self._named(root, lists, date))
        return self.qualifications_folder(date)

    def _named(self, root: Root, lists: Path, date: dt.date) -> Root:
        until = str(date) if date in root.nights else ""
        final = self.relative(self.qualifications_folder(date))
        return root.name(self.relative(lists), final, identity_of(lists), until)

    def move(self, change: Callable[[Root], Root]) -> None:
        """Write ROOT, unless it says the same already, and do what follows from it."""
        before, tag = read_root(self.objects)
        root = change(before or Root())
        if root != (before or Root()):
            move_root(self.objects, self._without_done(root), tag)
        # The site has moved: what follows is left to the next command where this one has lost it, or the store is away.
        with contextlib.suppress(SiteBusy, StoreFailed):
            self._settle()

    def _without_done(self, root: Root) -> Root:
        exchanges = {
            name: (key, checksum) for name, (key, checksum) in root.exchanges.items() if self._is_there(key, checksum)
        }
        trash = {
            key: (number, until)
            for key, (number, until) in root.trash.items()
            if until or number > root.number - KEPT_ROOTS or is_folder(self.path / key)
        }
        return replace(root, exchanges=exchanges, trash=trash)

    def _is_there(self, key: str, identity: int) -> bool:
        return is_folder(self.path / key) and identity_of(self.path / key) == identity

    def _settle(self) -> None:
        """Do what follows from ROOT; what a crash left out is made up for by the next command."""
        root = self.root()
        for name, (key, identity) in root.exchanges.items():
            if self._is_there(key, identity):
                make_folder((self.path / name).parent)  # a site of an earlier version has none for lists in work
                swap_folder(self.path / key, self.path / name)
        for key in [key for key, (_, until) in root.trash.items() if not until]:
            self._remove(self.path / key)
        self.mark_published()

    def _remove(self, run: Path) -> None:
        """Remove a run that ROOT does not name, and the folder of its day if it was the last in it."""
        if is_folder(run):
            remove_run(run)
            if run.parent.name.startswith("date="):
                remove_if_empty(run.parent)

    def sweep(self) -> None:
        """Remove the runs that ROOT does not name, and what a crash left under temporary names."""
        if read_root(self.objects)[0] is None:
            return
        for run in self.unnamed():
            self._remove(run)
        for pattern in (*_OWN_NAMES, *_FOLDERS):
            for path in list_paths(self.path, f"{pattern}/{TEMPORARY}*"):
                remove(path)

    @retried
    def mark_published(self) -> None:
        """Mark for readers of qualifications what is published: `_SUCCESS` in the folder of a night, and `LATEST`.

        Both follow from ROOT: what a crash left out is made up for by the next run.
        """
        nights = self.published_nights()
        for night in nights:
            folder = self.qualifications_folder(night)
            if is_file(folder / MANIFEST) and not is_file(folder / SUCCESS):
                write_text(folder / SUCCESS, "")
        if nights and is_folder(self.qualifications_folder(nights[-1])):
            latest = self.path / LISTS / LATEST
            text = f"{self.qualifications_folder(nights[-1]).name}\n"
            if not is_file(latest) or read_file(latest) != text.encode():
                write_text(latest, text)

    def published_nights(self) -> list[dt.date]:
        """Return the dates whose qualifications were published and are kept, oldest first."""
        return list(self.root().nights)

    def is_published(self, date: dt.date) -> bool:
        """Return whether the qualifications of a date were published."""
        return date in self.published_nights()

    def digest(self) -> str:
        """Return one hash over the promised bytes of what is published."""
        current = self.current()
        if current is None:
            raise BadInput(f"{self.path} has nothing published yet; run `ammrank nightly` or `ammrank ingest` first")
        names = {name for name in current.runs.values() if name.split("/")[0] in PROMISED}
        if "report" in current.runs:
            names |= {f"{current.runs['report']}/{name}" for name in ("exposure.csv", "summary.json")}
        missing = sorted(name for name in names if not is_there(self.path / name))
        if missing:
            sentence = f"{self.path / missing[0]} is published and missing; make it again with {REBUILD_COMMAND}"
            raise DamagedStore(name_night(sentence, self.path, current.date))
        lists = current.runs.get(LISTS)
        marks = [] if lists is None else [self.path / lists / SUCCESS]
        return digest_tree(self.path, names, marks, without_generation)

    def holder(self) -> Holder | None:
        """Return the run that is going on, as far as the caller may look; None where there is none."""
        return find_holder(self.objects)

    def is_held(self) -> bool:
        """Return whether a run is going on, as far as the caller may look."""
        return self.holder() is not None

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the site against other runs, and do what follows from ROOT and a killed one left out.

        The lock goes with the process, whatever ends it.

        The folder is closed to everybody who is neither its owner nor in its group. Whoever is neither, as root may
        be, is refused: the owner could not go on with their files.
        """
        close_folder(self.path)
        with hold(self.objects):
            with contextlib.suppress(BadInput):  # whoever needs ROOT says what is wrong with it
                self._settle()
                self.sweep()
            yield

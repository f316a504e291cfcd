"""Remove users from the runs of a site, and prove that they are gone.

Only the partitions of the users are touched, which the hash of their ids tells, and of the files by category those of
what they held. Where the ids are not known, because a command was interrupted, everything is looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ammrank_dask.runtime.thread_tasks import Item, Progress, batches, read_ahead, run_in_threads, silent
from ammrank_dask.storage.errors import AmmrankError
from ammrank_dask.storage.lake.paths import map_at_once
from ammrank_dask.storage.site.forgotten import (
    NamedUsers,
    UsersToForget,
    count_in_table,
    drop_rows,
    drop_users,
    find_in_table,
    load_forgotten,
    write_without,
)
from ammrank_dask.storage.site.renewals import share_tree
from ammrank_dask.storage.store.category_files import partitions_of
from ammrank_dask.storage.store.ids import ID_ARRAYS, UserIds, ids_from_arrays, ids_from_values, union
from ammrank_dask.storage.store.manifests import QualificationsManifest
from ammrank_dask.storage.store.parts import CheckedReader, PartFacts, check_part, write_part
from ammrank_dask.storage.store.qualification_files import category_folder, write_table
from ammrank_dask.storage.store.qualifications import BY_CATEGORY, BY_USER
from ammrank_dask.storage.store.qualifications import KIND as QUALIFICATIONS
from ammrank_dask.storage.store.registry import FEATURES, PART_SCHEMAS
from ammrank_dask.storage.store.runs import MANIFEST, SUCCESS, Run, open_run, rewrite_manifest
from ammrank_dask.storage.vocabulary import CATEGORY, USER_ID
from ammrank_dask.user_hash import partition_of

if TYPE_CHECKING:  # Dask takes a second to import, and threads need none of it
    from distributed import Client

LARGE_FILE = 1 << 20
"""Bytes of files that are worth a thread which reads the next while one is worked on."""
BYTES_OF_TASK = 64 << 20
TASKS_AT_LEAST = 16


@dataclass(frozen=True)
class Removed:
    """What was found of the users: files looked at, of these those with one of them, and rows in these."""

    files: int = 0
    with_users: int = 0
    rows: int = 0

    def __add__(self, other: Removed) -> Removed:
        """Return both together."""
        return Removed(self.files + other.files, self.with_users + other.with_users, self.rows + other.rows)


@dataclass(frozen=True)
class Held:
    """What was held by the users who were removed from a table by user."""

    categories: frozenset[str]
    users: UserIds


@dataclass(frozen=True)
class NewTable:
    """A table that was written again: size and checksum, rows that went, and if it is one by user who held what."""

    run: Path
    name: str
    entry: list[int]
    n_rows: int
    held: Held | None


@dataclass(frozen=True)
class Renewed:
    """What a command wrote again: counts, the new path by that of each run, and by new path the tables in it."""

    removed: Removed
    runs: Mapping[Path, Path]
    tables: Mapping[Path, set[str]]


@dataclass(frozen=True)
class Reach:
    """Tells which parts and tables can hold one of some users; all of them when the ids are not known (None)."""

    users: UserIds | None

    def parts(self, run: Run) -> list[str]:
        """Return the numbers of the partitions of a run that can hold one of the users."""
        schema = PART_SCHEMAS.get(run.kind)
        if schema is None or not schema.has_users or not run.n_parts:
            return []
        return [str(partition) for partition in self._partitions(run.n_parts)]

    def tables(self, run: Run) -> list[str]:
        """Return the tables of qualifications that have a partition of one of the users."""
        wanted = set(self._partitions(QualificationsManifest.of(run).n_partitions))
        names = [name for name in run.files if name.endswith(".parquet")]
        return [name for name in names if wanted & set(partitions_of(name))]

    def count_bytes(self, run: Run) -> int:
        """Return about how many bytes of a run there are to read; of the tables by category the users hold a share."""
        if run.kind != QUALIFICATIONS:
            return sum(_bytes_of_piece((run, name)) for name in self.parts(run))
        manifest = QualificationsManifest.of(run)
        n_held = manifest.k * (len(manifest.categories) if self.users is None else len(self.users))
        share = min(1.0, n_held / len(manifest.categories))
        names = self.tables(run)
        return sum(int(run.files[name][0] * (share if name.startswith(BY_CATEGORY) else 1)) for name in names)

    def _partitions(self, n_partitions: int) -> list[int]:
        if self.users is None:
            return list(range(n_partitions))
        return sorted(set(partition_of(self.users, n_partitions).tolist()))


@dataclass(frozen=True)
class Forgetting:
    """One command: the site, and the users by their ids, or None for everybody on the list of the site.

    `tell` gets the users whose qualifications are about to be removed, before any is. Without a `client` threads of
    this process do the work.
    """

    client: Client | None
    site: Path
    users: UserIds | None
    tell: Callable[[UserIds], None]
    progress: Progress = silent

    @property
    def reach(self) -> Reach:
        """What can hold one of the users."""
        return Reach(self.users)

    def forget(self, renewals: Mapping[Path, Path], tables: Sequence[Path]) -> Renewed:
        """Write each run that holds one of the users again without them, at the path that is given for it."""
        runs = [open_run(path) for path in renewals]
        lists = [run for run in runs if run.kind == QUALIFICATIONS]
        of_parts, parts = self._forget_in_parts([run for run in runs if run not in lists], renewals)
        of_lists, tables_of = self._forget_in_lists(lists, renewals)
        changed = [run for run in runs if run.path in parts or run.path in tables_of]
        map_at_once(
            lambda run: _complete(run, renewals[run.path], parts.get(run.path, {}), tables_of.get(run.path, {})),
            changed,
        )
        emptied = self._run("forget-tables", forget_table, [(table,) for table in tables])
        return Renewed(
            sum(emptied, start=of_parts + of_lists),
            {run.path: renewals[run.path] for run in changed},
            {renewals[path]: set(new) for path, new in tables_of.items()},
        )

    def scan(self, runs: Sequence[Path], tables: Sequence[Path], touched: Mapping[Path, set[str]]) -> Removed:
        """Search everything that can have one of the users, and of the files by category those `touched`."""
        pieces: list[tuple[Run, str]] = []
        for run in map(open_run, runs):
            if run.kind == QUALIFICATIONS:
                named = touched.get(run.path, set())
                names = [name for name in self.reach.tables(run) if not name.startswith(BY_CATEGORY) or name in named]
                pieces += [(run, name) for name in names]
            else:
                pieces += [(run, name) for name in self.reach.parts(run)]
        tasks = [([(run.path, name) for run, name in batch],) for batch in by_size(pieces, _bytes_of_piece)]
        alone = [([(table.parent, table.name) for table in tables],)] if tables else []
        return sum(self._run("forget-scan", scan_pieces, [*tasks, *alone]), start=Removed())

    def _forget_in_parts(
        self, runs: Sequence[Run], renewals: Mapping[Path, Path]
    ) -> tuple[Removed, dict[Path, dict[int, PartFacts]]]:
        """Write partitions again that have one of the users; return counts, and by run what is known of them now."""
        pieces = [(run, name) for run in runs for name in self.reach.parts(run)]
        tasks = [
            ([(run.path, renewals[run.path], name) for run, name in batch],)
            for batch in by_size(pieces, _bytes_of_piece)
        ]
        done = [found for of_task in self._run("forget", forget_parts, tasks) for found in of_task]
        changed: dict[Path, dict[int, PartFacts]] = {}
        for (run, name), (_, facts) in zip(pieces, done, strict=True):
            if facts is not None:
                changed.setdefault(run.path, {})[int(name)] = facts
        return sum((counts for counts, _ in done), start=Removed()), changed

    def _forget_in_lists(
        self, runs: Sequence[Run], renewals: Mapping[Path, Path]
    ) -> tuple[Removed, dict[Path, dict[str, list[int]]]]:
        """Write tables again that have one of the users: by user and delta first, which tell what the users held.

        Returns counts, and by run the new tables with their sizes and checksums.
        """
        first = [(run, [n for n in self.reach.tables(run) if not n.startswith(BY_CATEGORY)]) for run in runs]
        new = self._write_tables(first, renewals)
        held_in: dict[Path, dict[str, set[int]]] = {run.path: {} for run in runs}
        for table in new:
            for category in () if table.held is None else table.held.categories:
                held_in[table.run].setdefault(category_folder(category), set()).update(partitions_of(table.name))
        second = []
        for run in runs:
            names = [name for name in self.reach.tables(run) if name.startswith(BY_CATEGORY)]
            if self.users is not None:
                held = held_in[run.path]
                names = [n for n in names if held.get(n.split("/")[1], set()) & set(partitions_of(n))]
            second.append((run, names))
        new += self._write_tables(second, renewals)
        gone = [table.held.users for table in new if table.held is not None]
        if gone:
            self.tell(union(gone))
        entries: dict[Path, dict[str, list[int]]] = {}
        for table in new:
            entries.setdefault(table.run, {})[table.name] = table.entry
        n_files = sum(len(names) for _, names in (*first, *second))
        return Removed(n_files, len(new), sum(table.n_rows for table in new)), entries

    def _write_tables(
        self, names_of: Sequence[tuple[Run, Sequence[str]]], renewals: Mapping[Path, Path]
    ) -> list[NewTable]:
        """Return the tables that had to be written again."""
        pieces = [(run, name) for run, names in names_of for name in names]
        tasks = [
            ([(run.path, renewals[run.path], name) for run, name in batch],)
            for batch in by_size(pieces, _bytes_of_piece)
        ]
        return [table for tables in self._run("forget-lists", forget_in_tables, tasks) for table in tables]

    def _run(self, stage: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        arguments = [(self.site, self.users, *task) for task in tasks]
        if self.client is None:
            return run_in_threads(stage, function, arguments, progress=self.progress)
        from ammrank_dask.runtime.tasks import run_tasks

        return run_tasks(self.client, stage, function, arguments, progress=self.progress)


def forget_parts(
    site: Path, users: UserIds | None, pieces: Sequence[tuple[Path, Path, str]]
) -> list[tuple[Removed, PartFacts | None]]:
    """Write partitions of runs again, in the folder given beside each run, where they have one of the users.

    Raises DamagedStore when one is not what was written: with new checksums nobody could find that any more.
    """
    who, run_of = _named(site, users), functools.cache(open_run)
    return [_forget_part(run_of(run), int(name), building, who) for run, building, name in pieces]


def _forget_part(run: Run, partition: int, building: Path, who: UsersToForget) -> tuple[Removed, PartFacts | None]:
    part, facts = run.part(partition), None
    schema = PART_SCHEMAS[run.kind]
    dropped = who.is_on(ids_from_arrays(part.read(schema, ID_ARRAYS)))
    if dropped.any():
        check_part(run.path / run.parts[partition].name, part.checksum)  # also what is not in an array
        left = drop_users(schema, part.read(schema), dropped)
        attributes = {}
        if schema is FEATURES:
            of_matrix = part.open().attributes("X")
            attributes["X"] = {**of_matrix, "shape": [int((~dropped).sum()), of_matrix["shape"][1]]}
        facts = write_part(building, partition, schema, left, group_attributes=attributes)
    return Removed(1, int(dropped.any()), int(dropped.sum())), facts


def forget_in_tables(site: Path, users: UserIds | None, pieces: Sequence[tuple[Path, Path, str]]) -> list[NewTable]:
    """Write tables of qualifications, in the folder given beside each run, where they have one of the users."""
    who, new = _named(site, users), []
    reader_of = functools.cache(lambda run: CheckedReader(run, open_run(run).files))
    is_large = sum(reader_of(run).listing[name][0] for run, _, name in pieces) > LARGE_FILE * len(pieces)
    files = (read_ahead if is_large else map)(lambda piece: reader_of(piece[0])(piece[2]), pieces)
    for (run, building, name), data in zip(pieces, files, strict=True):
        table, dropped = find_in_table(data, who)
        if table is None:
            continue
        entry = write_table(building / name, drop_rows(table, dropped))
        held = _describe_held(table.filter(dropped)) if name.startswith(BY_USER) else None
        new.append(NewTable(run, name, entry, int(dropped.sum()), held))
    return new


def _describe_held(gone: pa.Table) -> Held:
    return Held(frozenset(gone[CATEGORY].unique().to_pylist()), ids_from_values(gone[USER_ID].unique()))


def forget_table(site: Path, users: UserIds | None, table: Path) -> Removed:
    """Write a table that stands alone again when it has one of the users."""
    rows, dropped = find_in_table(table, _named(site, users))
    if rows is not None:
        write_without(table, rows, dropped)
    return Removed(1, int(dropped.any()), int(dropped.sum()))


def scan_pieces(site: Path, users: UserIds | None, pieces: Sequence[tuple[Path, str]]) -> Removed:
    """Count the rows of the users in partitions or tables."""
    who, total, run_of = _named(site, users), Removed(), functools.cache(open_run)
    for folder, name in pieces:
        if name.endswith(".parquet"):
            n_rows = count_in_table(folder / name, who)
        else:
            run = run_of(folder)
            arrays = run.part(int(name)).read(PART_SCHEMAS[run.kind], ID_ARRAYS)
            n_rows = int(who.is_on(ids_from_arrays(arrays)).sum())
        total += Removed(1, int(n_rows > 0), n_rows)
    return total


def _bytes_of_piece(piece: tuple[Run, str]) -> int:
    run, name = piece
    return run.files[name][0] if name in run.files else run.parts[int(name)].bytes


def by_size(pieces: Sequence[Item], size_of: Callable[[Item], int]) -> list[list[Item]]:
    """Return pieces in batches of `BYTES_OF_TASK` at most, or in `TASKS_AT_LEAST` smaller ones, so that many share it.

    Examples
    --------
    >>> [len(batch) for batch in by_size([1] * 32, lambda piece: piece << 22)]
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    >>> by_size([3, 1, 1], lambda piece: piece << 26)
    [[3], [1], [1]]
    """
    sizes = [size_of(piece) for piece in pieces]
    most = min(BYTES_OF_TASK, max(BYTES_OF_TASK >> 4, sum(sizes) // TASKS_AT_LEAST))
    return batches(pieces, [size / most for size in sizes])


def _complete(run: Run, path: Path, parts: Mapping[int, PartFacts], tables: Mapping[str, list[int]]) -> None:
    """Complete a new run with the files of the old one that did not change, and with its manifest."""
    renewed = {MANIFEST, SUCCESS, *tables, *(part.name for part in parts.values())}
    share_tree(run.path, path, renewed)
    rewrite_manifest(run, path, parts, tables)


def _named(site: Path, users: UserIds | None) -> UsersToForget:
    if users is not None:
        return NamedUsers(users)
    listed = load_forgotten(site)
    if listed is None:
        raise AmmrankError(f"{site} has no list of users to forget; run `ammrank forget` again")
    return listed

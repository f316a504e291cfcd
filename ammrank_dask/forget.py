"""Remove users from the runs of a site, and prove that they are gone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from ammrank_dask.features.store import csr_attributes
from ammrank_dask.storage.errors import AmmrankError
from ammrank_dask.storage.site.forgotten import ForgetList, drop_users, find_in_table, load_forgotten, write_without
from ammrank_dask.storage.store.atomic import swap_folder, temporary_beside
from ammrank_dask.storage.store.ids import ids_from_arrays
from ammrank_dask.storage.store.parts import CheckedReader, check_part, part_names, write_part
from ammrank_dask.storage.store.qualifications import KIND as QUALIFICATIONS
from ammrank_dask.storage.store.registry import FEATURES, PART_SCHEMAS
from ammrank_dask.storage.store.runs import MANIFEST, Run, open_run, remove_run, rewrite_manifest
from ammrank_dask.tasks import Progress, run_tasks, silent

_ID_ARRAYS = ("user_id", "user_id_offsets", "user_id_bytes")


@dataclass(frozen=True)
class Removed:
    """What was found of the users: files looked at, of these those with one of them, and rows in these."""

    files: int = 0
    with_users: int = 0
    rows: int = 0

    def __add__(self, other: Removed) -> Removed:
        """Return both together."""
        return Removed(self.files + other.files, self.with_users + other.with_users, self.rows + other.rows)


def forget_in_runs(
    client: Client, site: Path, runs: Sequence[Path], tables: Sequence[Path], *, progress: Progress = silent
) -> Removed:
    """Write runs and tables again without the users on the list of the site; each changes with one rename.

    Parameters
    ----------
    site
        The folder with the list.
    runs
        Finished runs: partials, states, users, features and qualifications.
    tables
        Parquet files with a column `user_id` of text.
    """
    opened = [open_run(path) for path in runs]
    buildings = [temporary_beside(run.path) for run in opened]
    tasks: list[tuple[Any, ...]] = []
    for run, building in zip(opened, buildings, strict=True):
        tasks += [(site, run.path, building, name) for name in _pieces(run)]
    found = run_tasks(client, "forget", forget_piece, tasks, progress=progress)
    by_run: dict[Path, list[tuple[str, Removed]]] = {}
    for (_, path, _, name), removed in zip(tasks, found, strict=True):
        by_run.setdefault(path, []).append((name, removed))
    for run, building in zip(opened, buildings, strict=True):
        changed = {name for name, removed in by_run.get(run.path, []) if removed.with_users}
        if changed:
            _exchange(run, building, changed)
    emptied = run_tasks(client, "forget-tables", forget_table, [(site, table) for table in tables], progress=progress)
    return sum([*found, *emptied], start=Removed())


def scan_runs(
    client: Client, site: Path, runs: Sequence[Path], tables: Sequence[Path], *, progress: Progress = silent
) -> Removed:
    """Look for the users on the list in everything that can hold one."""
    tasks: list[tuple[Any, ...]] = [(site, run.path, name) for run in map(open_run, runs) for name in _pieces(run)]
    tasks += [(site, table.parent, table.name) for table in tables]
    return sum(run_tasks(client, "forget-scan", scan_piece, tasks, progress=progress), start=Removed())


def forget_piece(site: Path, run: Path, building: Path, name: str) -> Removed:
    """Write one partition or table of a run again, beside the run, when it has one of the users.

    Raises DamagedStore when it is not what was written: with new checksums nobody could find that any more.
    """
    forgotten = _load(site)
    opened = open_run(run)
    if name.endswith(".parquet"):
        table, dropped = find_in_table(CheckedReader(run, opened.files)(name), forgotten)
        if dropped.any():
            write_without(building / name, table, dropped)
        return Removed(1, int(dropped.any()), int(dropped.sum()))
    part = opened.part(int(name))
    schema = PART_SCHEMAS[opened.kind]
    arrays = part.read(schema)
    dropped = forgotten.is_on(ids_from_arrays(arrays))
    if dropped.any():
        check_part(run, part.partition, part.checksum)  # also what is not in an array
        left = drop_users(schema, arrays, dropped)
        attributes = {}
        if schema is FEATURES:
            columns = part.attributes(FEATURES, "X")["shape"][1]
            attributes = csr_attributes(int((~dropped).sum()), columns)
        building.mkdir(parents=True, exist_ok=True)
        write_part(building, part.partition, schema, left, group_attributes=attributes)
    return Removed(1, int(dropped.any()), int(dropped.sum()))


def forget_table(site: Path, table: Path) -> Removed:
    """Write a table that stands alone again when it has one of the users."""
    found, dropped = find_in_table(table, _load(site))
    if dropped.any():
        write_without(table, found, dropped)
    return Removed(1, int(dropped.any()), int(dropped.sum()))


def scan_piece(site: Path, run: Path, name: str) -> Removed:
    """Count the rows of users on the list in one partition or table."""
    forgotten = _load(site)
    if name.endswith(".parquet"):
        dropped = find_in_table(run / name, forgotten)[1]
    else:
        opened = open_run(run)
        dropped = forgotten.is_on(ids_from_arrays(opened.part(int(name)).read(PART_SCHEMAS[opened.kind], _ID_ARRAYS)))
    return Removed(1, int(dropped.any()), int(dropped.sum()))


def _pieces(run: Run) -> Iterable[str]:
    """Return what of a run can hold users: its tables by name, or the numbers of its partitions."""
    if run.kind == QUALIFICATIONS:
        return [name for name in run.files if name.endswith(".parquet")]
    schema = PART_SCHEMAS.get(run.kind)
    return map(str, range(run.n_parts)) if schema is not None and schema.has_users else []


def _exchange(run: Run, building: Path, changed: set[str]) -> None:
    """Complete the new run with the unchanged files of the old one, give it its name, and remove the old one."""
    if run.kind == QUALIFICATIONS:
        renewed = changed
    else:
        renewed = {name for partition in changed for name in part_names(int(partition))}
    for path in sorted(path for path in run.path.rglob("*") if path.is_file()):
        name = path.relative_to(run.path).as_posix()
        if name == MANIFEST or {name, name.partition("/")[0]} & renewed:
            continue
        target = building / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
    rewrite_manifest(run, building, renewed)
    swap_folder(building, run.path)
    remove_run(building)


def _load(site: Path) -> ForgetList:
    found = load_forgotten(site)
    if found is None:
        raise AmmrankError(f"{site} has no list of users to forget; run `ammrank forget` again")
    return found

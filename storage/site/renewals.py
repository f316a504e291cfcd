"""Change what a site has other than by a night: let runs take the place of others, and repair what is damaged."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ammrank_dask.storage.errors import DamagedStore, EarlierFormat
from ammrank_dask.storage.objects.folders import identity_of, list_paths, share_file, walk
from ammrank_dask.storage.site.root import ROOT, Root, put_root_back, without_generation
from ammrank_dask.storage.site.site import LISTS, LISTS_IN_WORK, RUN_FOLDERS, Site
from ammrank_dask.storage.store.runs import MANIFEST, is_finished, open_run, verify_run


def name_renewals(site: Site, runs: Iterable[Path]) -> dict[Path, Path]:
    """Name for each of some runs the one that is to take its place, in work, and return them."""
    keys = {run: _key_of_renewal(site, run) for run in runs}
    root = site.root().keep(map(site.relative, keys))  # what is replaced is kept until then
    renewing = (key for key in root.building if root.renews(key) or key.startswith(LISTS_IN_WORK))
    begun = {without_generation(key): key for key in renewing}
    new = {run: begun.get(key) or root.next_place(key) for run, key in keys.items()}
    site.move(lambda root: root.keep(map(site.relative, keys)).begin(new.values()))
    return {run: site.path / key for run, key in new.items()}


def _key_of_renewal(site: Site, run: Path) -> str:
    if run.parent.name != LISTS:
        return without_generation(site.relative(run))
    return f"{LISTS_IN_WORK}/{run.name.removeprefix('date=')}-{open_run(run).digest}"


def replace_runs(site: Site, renewed: Mapping[Path, Path], name: str) -> None:
    """Let whole runs take the place of others with one write of ROOT, which ends a command, and remove those."""
    identities = {run: identity_of(new) for run, new in renewed.items()}

    def renew(root: Root) -> Root:
        runs = dict(root.runs)
        for run, new in renewed.items():
            key, new_key = site.relative(run), site.relative(new)
            if run.parent.name == LISTS:
                root = root.name(new_key, key, identities[run])
            else:
                root = root.discard([key]).keep([new_key])
                runs = {role: new_key if name == key else name for role, name in runs.items()}
        return replace(_without_renewals(root), runs=runs, unfinished=_without_name(root, name))

    site.move(renew)


def drop_renewals(site: Site) -> None:
    """Remove what is in work to take the place of something: what it was made from may be others by now."""
    site.move(_without_renewals)


def restore_root(site: Site) -> bool:
    """Put a whole ROOT back where it is damaged or lost; return whether it was.

    Where no content of it is whole, the runs that are whole are put together again, and nothing is published.
    """
    try:
        site.root()
        return False
    except DamagedStore:
        if not put_root_back(site.objects):
            nights = [path.parent for path in list_paths(site.path / LISTS, f"date=*/{MANIFEST}")]
            keys = [site.relative(run) for run in (*site.listed(), *nights) if is_finished(run)]
            site.move(lambda root: root.keep(keys))
        return True


def remove_damaged(site: Site) -> list[Path]:
    """Give up the runs that are not what was written, so that they can be made again, and put a whole ROOT back.

    Nights that an earlier version scored go, too: nothing can be compared with them.
    """
    lost = [site.path / ROOT] if restore_root(site) else []
    damaged: list[Path] = []
    for run in (run for folder in RUN_FOLDERS for run in site.finished_runs(folder)):
        try:
            verify_run(run)
        except DamagedStore:
            damaged.append(run)
    for night in site.scored_nights():
        with contextlib.suppress(DamagedStore):  # of another kind: who reads it says so
            try:
                open_run(night)
            except EarlierFormat:
                damaged.append(night)
    nights = [night for night in site.published_nights() if site.qualifications_folder(night) in damaged]
    site.discard(damaged, nights)
    return [*damaged, *lost]


def _without_renewals(root: Root) -> Root:
    return root.discard(key for key in root.building if root.renews(key) or key.startswith(LISTS_IN_WORK))


def _without_name(root: Root, name: str) -> dict[str, Any]:
    return {other: value for other, value in root.unfinished.items() if other != name}


def share_tree(source: Path, target: Path, leave_out: Container[str] = ()) -> None:
    """Give the files below a folder second names below another one, but for those whose first or whole name is out."""
    for root, _, names in walk(source):
        place = Path(root).relative_to(source)
        for name in sorted(names):
            relative = (place / name).as_posix()
            if relative not in leave_out and relative.partition("/")[0] not in leave_out:
                share_file(source / relative, target / relative)


def share_run(run: Path, path: Path) -> None:
    """Make a second run of the files of one that is finished; its manifest comes last."""
    share_tree(run, path, {MANIFEST})
    share_file(run / MANIFEST, path / MANIFEST)

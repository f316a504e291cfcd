"""Remove users from everything a site keeps, and keep them out of later nights."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from ammrank_dask.forget import Forgetting, Reach
from ammrank_dask.runtime.thread_tasks import silent
from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.storage.lake.paths import LakePath
from ammrank_dask.storage.lake.people import read_user_list
from ammrank_dask.storage.objects.atomic import sweep_temporary, sweep_tree
from ammrank_dask.storage.objects.folders import list_paths, remove
from ammrank_dask.storage.site.copies import renew_copies
from ammrank_dask.storage.site.day_fingerprints import read_day_rows, write_day_rows
from ammrank_dask.storage.site.forgotten import add_forgotten, add_tombstones, load_forgotten
from ammrank_dask.storage.site.renewals import drop_renewals, name_renewals, replace_runs
from ammrank_dask.storage.site.site import Published, Site
from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.storage.store.manifests import StateManifest
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.user_hash import bucket_of
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import copies_target
from ammrank_dask.workflows.stages.work_area import remove_work

if TYPE_CHECKING:  # Dask takes a second to import, and threads need none of it
    from distributed import Client

    from ammrank_dask.runtime.thread_tasks import Progress

FORGET = "forget"
"""What the command is called among those that have begun."""
SMALL = 4 << 30
"""Bytes of files that threads of the command go through in less time than a cluster takes to start and do it."""


def forget_users(
    client: Client | None, site: Site, users: LakePath, *, config: Config | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """Put users on the list, remove them from all that is kept, and look that nothing of them is left.

    The list is written first: whatever happens afterwards, later nights leave these users out, and the same command
    goes on where it stopped. Without a `client` threads of this process do the work.
    """
    head, ids = _read_users(site, users)
    add_forgotten(site.path, ids)
    # Whom an interrupted command was to forget only the list knows, and it takes a look at everything to find them.
    wanted = None if site.unfinished(FORGET) else ids
    site.begin_command(FORGET, True)
    _blank_day_rows(site, ids)
    _remove_leftovers(site)
    runs, tables = site.kept_runs(), list_paths(site.path / "quarantine", "*.parquet")
    command = Forgetting(client, site.path, wanted, lambda gone: add_tombstones(site.path, head.date, gone), progress)
    renewed = command.forget(name_renewals(site, runs), tables)
    left = command.scan([renewed.runs.get(run, run) for run in runs], tables, renewed.tables)
    if left.rows:
        raise AmmrankError(f"{left.rows:,} rows of these users are left in {left.with_users:,} files; run it again")
    replace_runs(site, renewed.runs, FORGET)
    listed = load_forgotten(site.path)
    target = None if config is None else copies_target(site, config)
    n_copies = 0 if target is None else renew_copies(site, target)
    return {
        "users": len(ids),
        "files with them": renewed.removed.with_users,
        "rows removed": renewed.removed.rows,
        "files scanned": left.files,
        "rows left": left.rows,
        **({"copies made again": n_copies} if n_copies else {}),
        "on the list": len(listed.hashes) if listed is not None else 0,
        "not changed": "trained models, which hold no user; the lake, which is yours: remove them there; and systems "
        "that took them from the qualifications: the next delta names them as forgotten",
    }


def is_small(site: Site, users: LakePath) -> bool:
    """Return whether there is so little to read and write that starting processes for it would take longer."""
    try:
        ids = _read_users(site, users)[1]
        reach = Reach(None if site.unfinished(FORGET) else ids)
        return sum(reach.count_bytes(open_run(path)) for path in site.kept_runs()) <= SMALL
    except BadInput:  # who forgets the users will say so, after they are on the list
        return True


def _read_users(site: Site, users: LakePath) -> tuple[Published, UserIds]:
    """Return what is published, and the users on a list."""
    head = site.current()
    if head is None:
        raise BadInput(f"{site.path} has nothing published; there is nobody to forget")
    return head, read_user_list(users, StateManifest.of(open_run(site.path / head.runs["head"])).id_kind)


def _blank_day_rows(site: Site, ids: UserIds) -> None:
    """Mark what the digests of days can no longer tell: nobody can take the users out of them."""
    buckets = set(bucket_of(ids).tolist())
    rows = read_day_rows(site.path)
    write_day_rows(site.path, {day: of_day.without(buckets) for day, of_day in rows.items()})


def _remove_leftovers(site: Site) -> None:
    """Remove scratch, unfinished runs, unfinished files of finished ones and replaced lists: they may hold users.

    Lists of nights that are not published go, too: those nights are to be run again, for their deltas do not name the
    users.
    """
    remove(site.scratch)
    root, current, finished = site.root(), site.current(), set(site.kept_runs())
    begun = [site.path / key for key in root.building]
    late = [] if current is None else [run for run in site.scored_nights() if run.name > f"date={current.date}"]
    # Lists that a rebuild replaced are kept for readers until the night of another date.
    site.discard([*(run for run in begun if run not in finished), *late], date=dt.date.max)
    drop_renewals(site)
    site.sweep()
    for run in finished:
        sweep_tree(run)
    sweep_temporary(site.path / "quarantine")
    for path in list_paths(site.path / "evaluations", "*/.rows-*"):  # of a comparison that was killed
        remove(path)
    remove_work(site)

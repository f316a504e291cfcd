"""Place the users of a site in another number of partitions, without the lake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ammrank_dask.repartition import repartition_run
from ammrank_dask.storage.errors import BadInput, shell_word
from ammrank_dask.storage.objects.account import is_of_group
from ammrank_dask.storage.objects.atomic import digest_of, write_private
from ammrank_dask.storage.objects.folders import read_file
from ammrank_dask.storage.site.renewals import drop_renewals, name_renewals, replace_runs
from ammrank_dask.storage.site.root import without_generation
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.config import check_config, parse_yaml
from ammrank_dask.workflows.session.session import REPARTITION, Session

FOLDERS = ("days", "users", "state", "features", "windows")
"""Runs that are placed anew. Qualifications stay as they were published: readers find their users in any number."""


def repartition(session: Session, n_partitions: int) -> dict[str, Any]:
    """Write every run with users in other partitions, then the config, and name all new runs with one write of ROOT.

    Killed in the middle, the same command goes on after the last partition that was written; until then no night runs.
    """
    site, before = session.site, session.config.partitions
    unfinished = site.unfinished(REPARTITION)
    if unfinished is not None and unfinished != n_partitions:
        raise BadInput(
            f"a change to {unfinished:,} partitions is not finished; finish it first with"
            f" `ammrank repartition {shell_word(site.path)} --partitions {unfinished}`"
        )
    changed = change_partitions(site.config_path, n_partitions)
    runs = [path for folder in FOLDERS for path in site.finished_runs(folder)]
    if not runs:
        raise BadInput(f"{site.path} has no runs yet; set partitions: {n_partitions} in {site.config_path}")
    if unfinished is None:
        drop_renewals(site)
        site.begin_command(REPARTITION, n_partitions)
    renewals = name_renewals(site, (run for run in runs if open_run(run).n_parts != n_partitions))
    client, progress, digests = session.client, session.progress, {}
    progress("repartition", 0, len(runs))
    for path in runs:
        key = without_generation(site.relative(path))
        digests[key] = repartition_run(client, open_run(path), n_partitions, renewals.get(path))
        progress("repartition", len(digests), len(runs))
    write_private(site.config_path, changed, for_group=is_of_group(site.path))
    replace_runs(site, renewals, REPARTITION)
    return {
        "partitions": n_partitions,
        "partitions before": before,
        "runs": len(runs),
        "users with events": _count_users(site),
        "digest of rows": digest_of(sorted(digests.items())),
    }


def change_partitions(path: Path, n_partitions: int) -> str:
    """Return the text of a config with another number of partitions; all else stays as it was written."""
    text = read_file(path).decode()
    pattern = re.compile(r"^partitions:[ \t]*\d+", re.MULTILINE)
    if pattern.search(text):
        changed = pattern.sub(f"partitions: {n_partitions}", text, count=1)
    else:
        changed = f"{text.rstrip()}\npartitions: {n_partitions}\n"
    try:
        found = check_config(parse_yaml(changed), str(path)).partitions
    except (yaml.YAMLError, BadInput):
        found = None
    if found != n_partitions:
        raise BadInput(f"{path} must have partitions on a line of its own, for example `partitions: 8`; write it so")
    return changed


def _count_users(site: Site) -> int:
    current = site.current()
    return 0 if current is None else open_run(site.path / current.runs["head"]).n_rows

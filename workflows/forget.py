"""`ammrank forget`: remove users from everything a site keeps, and keep them out of later nights."""

from __future__ import annotations

from pathlib import Path

import click

from ammrank_dask.runtime.malloc import keep_freed
from ammrank_dask.storage.lake.paths import LakePath
from ammrank_dask.workflows.cluster.cluster_file import is_built_in
from ammrank_dask.workflows.operations.forget import forget_users, is_small
from ammrank_dask.workflows.session.options import (
    AmmrankCommand,
    LakePathType,
    computing_options,
    show,
    site_argument,
)
from ammrank_dask.workflows.session.progress import progress_for
from ammrank_dask.workflows.session.session import open_session


@click.command("forget", cls=AmmrankCommand)
@site_argument
@click.option(
    "--users",
    required=True,
    type=LakePathType(),
    help="File or URL of user ids: parquet, or text with one id per line.",
)
@computing_options
def command(site: Path, users: LakePath, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Remove users from everything a site keeps, and leave them out of later nights.

    Partials, state, features, qualifications and quarantined rows of all kept runs are written again without them.
    """
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        if is_small(job.site, users) and is_built_in(cluster, site):
            keep_freed()
            with progress_for(quiet, as_json) as progress:
                facts = forget_users(None, job.site, users, config=job.config, progress=progress)
        else:
            facts = forget_users(job.client, job.site, users, config=job.config, progress=job.progress)
    show(facts, as_json)


if __name__ == "__main__":
    command()

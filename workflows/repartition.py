"""`ammrank repartition`: place the users of a site in another number of partitions."""

from __future__ import annotations

from pathlib import Path

import click

from ammrank_dask.workflows.operations.repartition import repartition
from ammrank_dask.workflows.session.options import AmmrankCommand, computing_options, show, site_argument
from ammrank_dask.workflows.session.session import open_session


@click.command("repartition", cls=AmmrankCommand)
@site_argument
@click.option(
    "--partitions", required=True, type=click.IntRange(1, 65536), help="The number of partitions from now on."
)
@computing_options
def command(site: Path, partitions: int, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Change the number of partitions of a site, without reading the lake.

    Days, states, users and features are written again, run by run, and compared by a digest of their rows; the config
    changes last. Interrupted, it goes on when it is called again.
    """
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        facts = repartition(job, partitions)
    show(facts, as_json)


if __name__ == "__main__":
    command()

"""`ammrank demo`: simulate a lake, make a site, run the last nights, and say where the report is."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.atomic import write_text
from ammrank_dask.workflows.lake_init.guess import choose_partitions
from ammrank_dask.workflows.session.config import Config, Lake, load_config, write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.options import AmmrankCommand, computing_options, show
from ammrank_dask.workflows.session.progress import progress_for

FIRST_DAY = dt.date(2026, 1, 5)
HISTORY_DAYS = 60


@click.command("demo", cls=AmmrankCommand)
@click.argument("site", type=click.Path(file_okay=False, path_type=Path))
@click.option("--users", type=click.IntRange(min=100), default=10_000, show_default=True, help="Simulated users.")
@click.option("--nights", type=click.IntRange(min=1), default=3, show_default=True, help="Nights to run.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the simulated world.")
@computing_options
def command(site: Path, users: int, nights: int, seed: int, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Simulate a lake, make a site, run some nights, and say where the report is.

    The lake is written into SITE/lake. Run it again to go on where it stopped.
    """
    from ammrank_dask.simulation.simulate import simulate
    from ammrank_dask.workflows.cluster.open import open_cluster
    from ammrank_dask.workflows.stages.nightly import nightly

    place = Site(site.resolve())
    lake = place.path / "lake"
    days = HISTORY_DAYS + nights - 1
    last = FIRST_DAY + dt.timedelta(days - 1)
    with place.exclusive(), open_cluster(cluster, site, quiet) as client, progress_for(quiet, as_json) as progress:
        truth = place.path / "lake-truth"
        simulate(client, lake, truth=truth, users=users, days=days, seed=seed, start=FIRST_DAY, progress=progress)
        if not place.config_path.is_file():
            places = Lake(events="lake/events", users="lake/users.parquet", taxonomy="lake/taxonomy.csv")
            config = Config(lake=places, partitions=choose_partitions(users))
            write_text(place.config_path, write_config(config))
        config = load_config(place.config_path)
        facts = {}
        for night in range(nights):
            facts = nightly(Night(client, place, config, last - dt.timedelta(nights - 1 - night), progress))
    show({"site": str(place.path), **facts}, as_json)


if __name__ == "__main__":
    command()

"""`ammrank demo`: simulate a lake, make a site, run the last nights, and say where the report is."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from ammrank_dask.storage.objects.atomic import write_private
from ammrank_dask.storage.site.account import is_of_group
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.operations.demo_site import EVENTS, HISTORY_DAYS, refuse_other_demo
from ammrank_dask.workflows.operations.lake_init.guess import choose_partitions
from ammrank_dask.workflows.session.config import Config, load_config, write_config
from ammrank_dask.workflows.session.lake_sections import Lake
from ammrank_dask.workflows.session.options import FOLDER, AmmrankCommand, computing_options, show

FIRST_DAY = dt.date(2026, 1, 5)


@click.command("demo", cls=AmmrankCommand)
@click.argument("site", type=FOLDER)
@click.option("--users", type=click.IntRange(min=100), default=10_000, show_default=True, help="Simulated users.")
@click.option("--nights", type=click.IntRange(1, 365), default=3, show_default=True, help="Nights to run.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the simulated world.")
@computing_options
def command(site: Path, users: int, nights: int, seed: int, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Simulate a lake, create a site, run some nights, and print where the report is.

    The lake is written into SITE/lake. Run it again to continue.
    """
    from ammrank_dask.simulation.simulate import SimulationParameters, find_simulation, write_simulation
    from ammrank_dask.workflows.session.session import Session, open_lazily
    from ammrank_dask.workflows.stages.metrics import keep_metrics
    from ammrank_dask.workflows.stages.nightly import run_night
    from ammrank_dask.workflows.stages.publishing import describe_outcome
    from ammrank_dask.workflows.stages.site_pages import INDEX

    place = Site(site.resolve())
    lake, truth = place.path / "lake", place.path / "lake-truth"
    refuse_other_demo(place, truth, users=users, nights=nights, seed=seed)
    days = HISTORY_DAYS + nights - 1
    last = FIRST_DAY + dt.timedelta(days - 1)
    parameters = SimulationParameters(users, days, seed, FIRST_DAY.isoformat())
    dates = [last - dt.timedelta(nights - 1 - night) for night in range(nights)]
    with (
        place.exclusive(),
        keep_metrics(place.path, dates[0]) as ended,
        open_lazily(cluster, site, as_json=as_json, quiet=quiet) as start,
    ):
        if find_simulation(lake, truth, parameters) is None:
            client, progress = start()
            write_simulation(client, lake, truth, parameters, progress=progress)
        if not place.config_path.is_file():
            names = Lake(events=EVENTS, users="lake/users.parquet", taxonomy="lake/taxonomy.csv")
            config = Config(lake=names, partitions=choose_partitions(users))
            write_private(place.config_path, write_config(config), for_group=is_of_group(place.path))
        session = Session(place, load_config(place.config_path), start)
        facts = {}
        for date in dates:
            ended["date"] = str(date)
            facts = run_night(session, date)
    outcome = facts if as_json else describe_outcome(facts)
    start_page = {"start_page" if as_json else "start page": str(place.path / INDEX)}
    show({"site": str(place.path), **outcome, **start_page}, as_json)


if __name__ == "__main__":
    command()

"""`ammrank demo`: simulate a lake, make a site, run the last nights, and say where the report is."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.atomic import write_text
from ammrank_dask.workflows.lake_init.guess import choose_partitions
from ammrank_dask.workflows.session.config import Config, load_config, write_config
from ammrank_dask.workflows.session.lake_sections import Lake
from ammrank_dask.workflows.session.options import AmmrankCommand, computing_options, show

FIRST_DAY = dt.date(2026, 1, 5)
HISTORY_DAYS = 60
EVENTS = "lake/events"
BEFORE_CONFIG = {"lake", "lake-truth", "metrics.prom", "cluster.yaml"}  # what may be there before there is a config


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
    from ammrank_dask.simulation.simulate import SimulationParameters, find_simulation, write_simulation
    from ammrank_dask.workflows.session.session import Session, open_lazily
    from ammrank_dask.workflows.stages.metrics import keep_metrics
    from ammrank_dask.workflows.stages.nightly import run_night
    from ammrank_dask.workflows.stages.publishing import describe_outcome

    place = Site(site.resolve())
    lake, truth = place.path / "lake", place.path / "lake-truth"
    _refuse_other_site(place, truth)
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
            write_text(place.config_path, write_config(config))
        session = Session(place, load_config(place.config_path), start)
        facts = {}
        for date in dates:
            ended["date"] = str(date)
            facts = run_night(session, date)
    outcome = facts if as_json else describe_outcome(facts)
    show({"site": str(place.path), **outcome}, as_json)


def _refuse_other_site(site: Site, truth: Path) -> None:
    """Refuse a folder that is somebody's: a demo would run nights that are not its own, or lie among other files."""
    if site.config_path.is_file() and not (truth.is_dir() and load_config(site.config_path).lake.events == EVENTS):
        raise BadInput(f"{site.path} is a site and not a demo; give a folder that does not exist, or that of a demo")
    others = {path.name for path in site.path.glob("[!.]*")} - BEFORE_CONFIG
    if others and not site.config_path.is_file():
        raise BadInput(f"{site.path} must be empty or a demo, found {min(others)!r}; give a folder that does not exist")


if __name__ == "__main__":
    command()

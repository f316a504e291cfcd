"""Run a demo: a lake that is simulated, a site beside it, and its last nights."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from ammrank_dask.simulation.simulate import SimulationParameters, find_simulation, write_simulation
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.write import simulation_path
from ammrank_dask.storage.objects.account import is_of_group
from ammrank_dask.storage.objects.atomic import read_json, write_private
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.operations.lake_init.guess import choose_partitions
from ammrank_dask.workflows.session.config import Config, load_config, write_config
from ammrank_dask.workflows.session.sections import Lake
from ammrank_dask.workflows.session.session import Session, open_lazily
from ammrank_dask.workflows.stages.nightly import run_night
from ammrank_dask.workflows.stages.nights import keep_metrics

FIRST_DAY = dt.date(2026, 1, 5)
HISTORY_DAYS = 120
EVENTS = "lake/events"
BEFORE_CONFIG = {"lake", "lake-truth", "metrics.prom", "cluster.yaml"}  # what may be there before there is a config


def run_demo(
    site: Site, *, users: int, nights: int, seed: int, cluster: str | None, as_json: bool, quiet: bool
) -> dict[str, Any]:
    """Simulate the lake and make the site where they are not there yet, run the nights, and return the last outcome."""
    lake, truth = site.path / "lake", site.path / "lake-truth"
    refuse_other_demo(site, truth, users=users, nights=nights, seed=seed)
    days = HISTORY_DAYS + nights - 1
    last = FIRST_DAY + dt.timedelta(days - 1)
    parameters = SimulationParameters(users, days, seed, FIRST_DAY.isoformat())
    dates = [last - dt.timedelta(nights - 1 - night) for night in range(nights)]
    with (
        site.exclusive(),
        keep_metrics(site.path, dates[0]) as ended,
        open_lazily(cluster, site.path, as_json=as_json, quiet=quiet) as start,
    ):
        if find_simulation(lake, truth, parameters) is None:
            client, progress = start()
            write_simulation(client, lake, truth, parameters, progress=progress)
        if not site.config_path.is_file():
            names = Lake(events=EVENTS, users="lake/users.parquet", taxonomy="lake/taxonomy.csv")
            config = Config(lake=names, partitions=choose_partitions(users))
            write_private(site.config_path, write_config(config), for_group=is_of_group(site.path))
        session = Session(site, load_config(site.config_path), start)
        outcome: dict[str, Any] = {}
        for date in dates:
            ended["date"] = str(date)
            outcome = run_night(session, date)
    return outcome


def refuse_other_demo(site: Site, truth: Path, **options: int) -> None:
    """Refuse a folder that is neither empty nor the demo of these options."""
    _refuse_other_site(site, truth)
    _refuse_other_options(site, truth, options)


def _refuse_other_site(site: Site, truth: Path) -> None:
    """Refuse a folder that is somebody's: a demo would run nights that are not its own, or lie among other files."""
    if site.config_path.is_file() and not (truth.is_dir() and load_config(site.config_path).lake.events == EVENTS):
        raise BadInput(f"{site.path} is a site and not a demo; give a folder that does not exist, or that of a demo")
    others = {path.name for path in site.path.glob("[!.]*")} - BEFORE_CONFIG
    if others and not site.config_path.is_file():
        raise BadInput(f"{site.path} must be empty or a demo, found {min(others)!r}; give a folder that does not exist")


def _refuse_other_options(site: Site, truth: Path, options: dict[str, int]) -> None:
    """Refuse options that a demo was not begun with: its lake is simulated for these."""
    path = simulation_path(truth)
    if not path.is_file():
        return
    before = read_json(path)["parameters"]
    begun = {"users": before["users"], "nights": before["days"] - HISTORY_DAYS + 1, "seed": before["seed"]}
    for name, value in options.items():
        if value != begun[name]:
            raise BadInput(
                f"{site.path} is a demo with --{name} {begun[name]}, found --{name} {value}; give another folder, or"
                f" --{name} {begun[name]} to go on with this one"
            )

"""Nights of a small simulated world: its days, its config, and a site beside its lake.

world = simulate_world(client, tmp_path / "world")       # a lake, and an empty site beside it
nightly(Night(client, world, config_of(), day(5)))
copy = copy_world(world, tmp_path / "copy")              # what a test may change
"""

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

from distributed import Client

from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import Config, check_config

FIRST = dt.date(2026, 1, 5)
N_DAYS = 9
LAKE = {"events": "../lake/events", "users": "../lake/users.parquet", "taxonomy": "../lake/taxonomy.csv"}
CONFIG: dict[str, Any] = {
    "lake": LAKE,
    "label": {"days": 3, "min_categories": 1},
    "features": {"min_days": 1},
    "train": {"epochs": 1, "every_nights": 2},
    "gate": {"forward": False},
    "partitions": 2,
}


def day(number: int) -> dt.date:
    """Return the date of a day, counted from FIRST."""
    return FIRST + dt.timedelta(number)


def config_of(**changes: Any) -> Config:
    """Return the config of the small world; `changes` replaces whole sections."""
    return check_config({**CONFIG, **changes}, "test")


def simulate_world(client: Client, folder: Path, *, users: int = 300, days: int = N_DAYS) -> Site:
    """Simulate a lake, and return an empty site beside it."""
    simulate(folder / "lake", client=client, truth=folder / "truth", users=users, days=days, seed=3, start=FIRST)
    (folder / "site").mkdir()
    return Site(folder / "site")


def copy_world(world: Site, folder: Path) -> Site:
    """Copy a site and the lake beside it."""
    shutil.copytree(world.path.parent / "lake", folder / "lake")
    shutil.copytree(world.path, folder / "site")
    return Site(folder / "site")

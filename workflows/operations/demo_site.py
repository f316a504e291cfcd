"""The folder of a demo: what may be there before, and the options that it was begun with."""

from __future__ import annotations

from pathlib import Path

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.write import simulation_path
from ammrank_dask.storage.objects.atomic import read_json
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import load_config

HISTORY_DAYS = 120
EVENTS = "lake/events"
BEFORE_CONFIG = {"lake", "lake-truth", "metrics.prom", "cluster.yaml"}  # what may be there before there is a config


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

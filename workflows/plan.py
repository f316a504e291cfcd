"""`ammrank plan`: what nights of a size take."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

import click

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import Config, load_config
from ammrank_dask.workflows.session.options import AmmrankCommand, computing_options, show


@click.command("plan", cls=AmmrankCommand)
@click.argument("site", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--users", type=int, help="Users.  [default: those of the site]")
@click.option("--events-per-day", type=float, help="Events a day.  [default: those of the site]")
@click.option("--categories", type=int, help="Ranked categories.  [default: those of the site, or 50]")
@click.option("--days", type=int, help="Days of history in the first night.  [default: those of the site, or 60]")
@click.option("--workers", type=click.IntRange(min=1), help="Workers to plan for.  [default: those of the cluster]")
@click.option("--deadline", type=float, help="Seconds a further night may take: say how many workers that needs.")
@click.option("--work", type=click.Path(path_type=Path), help="Folder all workers see.  [default: a temporary one]")
@computing_options
def command(
    site: Path | None, users: int | None, events_per_day: float | None, categories: int | None, days: int | None,
    workers: int | None, deadline: float | None, work: Path | None, cluster: str | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Say what nights of a size take: time, memory, disk, files and tasks, and what ends growth.

    Small nights of up to 240,000 users are run and measured on the cluster first, which takes three minutes.
    """
    from ammrank_dask.workflows.cluster.open import open_cluster
    from ammrank_dask.workflows.session.session import open_lazily
    from ammrank_dask.workflows.stages import plan

    place = None if site is None else Site(site)
    config = Config() if place is None else load_config(place.config_path)
    load = plan.choose_load(
        place, config, users=users, events=events_per_day, categories=categories, days=days
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="ammrank-plan-", dir=work))
    try:
        with open_lazily(cluster, site, as_json=as_json, quiet=quiet) as start:
            client, progress = start()
            own = None if client.cluster is None else functools.partial(open_cluster, cluster, site, True)
            calibration = plan.calibrate(client, folder, load, config, progress, own)
            limits = [worker["memory_limit"] for worker in plan.workers_of(client) if worker["memory_limit"]]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if deadline is not None:
        workers = plan.choose_workers(calibration, load, deadline)
    found = plan.describe_plan(
        calibration, load, config, workers=workers or calibration.workers, memory_limit=min(limits, default=None),
        free=shutil.disk_usage(site or Path.cwd()).free,
    )  # fmt: skip
    show(found if as_json else plan.plan_lines(found), as_json)


if __name__ == "__main__":
    command()

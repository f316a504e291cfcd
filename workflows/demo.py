"""`ammrank demo`: simulate a lake, make a site, run the last nights, and say where the report is."""

from __future__ import annotations

from pathlib import Path

import click

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.options import FOLDER, AmmrankCommand, computing_options, show


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
    from ammrank_dask.workflows.operations.demo import run_demo
    from ammrank_dask.workflows.stages.nights import INDEX
    from ammrank_dask.workflows.stages.publishing import describe_outcome

    place = Site(site.resolve())
    outcome = run_demo(
        place, users=users, nights=nights, seed=seed, cluster=cluster, as_json=as_json, quiet=quiet
    )  # fmt: skip
    described = outcome if as_json else describe_outcome(outcome)
    start_page = {"start_page" if as_json else "start page": str(place.path / INDEX)}
    show({"site": str(place.path), **described, **start_page}, as_json)


if __name__ == "__main__":
    command()

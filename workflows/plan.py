"""`ammrank plan`: what nights of another size would take."""

from __future__ import annotations

from pathlib import Path

import click

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.options import AmmrankCommand, show, site_argument


@click.command("plan", cls=AmmrankCommand)
@site_argument
@click.option("--users", type=int, help="Number of users.  [default: those of the lake]")
@click.option("--events-per-day", type=float, help="Events per day.  [default: as many per user as in the lake]")
@click.option("--workers", type=click.IntRange(min=1), help="Worker threads.  [default: those of the last night]")
@click.option("--deadline", type=float, help="Seconds that a night may take; prints how many workers it needs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    site: Path,
    users: int | None,
    events_per_day: float | None,
    workers: int | None,
    deadline: float | None,
    as_json: bool,
) -> None:
    """Scale the recorded nights of a site to another size: time, disk, memory, workers."""
    from ammrank_dask.workflows.operations.plan import describe_plan, plan_lines

    if workers is not None and deadline is not None:
        raise click.UsageError("give --workers, or --deadline to learn how many, not both")
    place = Site(site)
    found = describe_plan(
        place, load_config(place.config_path),
        users=users, events_per_day=events_per_day, workers=workers, deadline=deadline,
    )  # fmt: skip
    show(found if as_json else plan_lines(found), as_json)


if __name__ == "__main__":
    command()

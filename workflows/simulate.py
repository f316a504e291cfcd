"""Write a lake with a known world: `ammrank simulate LAKE --users N --days D --seed S`."""

from datetime import date
from pathlib import Path

import click

from ammrank_dask.workflows.session.options import DATE, FOLDER, AmmrankCommand, computing_options, show


@click.command("simulate", cls=AmmrankCommand)
@click.argument("lake", type=FOLDER)
@click.option("--users", type=click.IntRange(min=1), default=10_000, show_default=True, help="Number of users.")
@click.option("--days", type=click.IntRange(1, 3650), default=60, show_default=True, help="Number of days.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the world.")
@click.option("--start", type=DATE, default="2026-01-05", show_default=True, help="First day; the default is a Monday.")
@click.option(
    "--truth",
    type=FOLDER,
    help="Folder of the hidden truth.  [default: LAKE-truth beside the lake]",
)
@click.option(
    "--user-ids", type=click.Choice(["int64", "string"]), default="int64", show_default=True,
    help="Type of the user ids in the lake.",
)  # fmt: skip
@click.option(
    "--activity", type=float, default=1.0, show_default=True, help="Factor on the number of events, at most 2."
)
@computing_options
def simulate_command(
    lake: Path,
    users: int,
    days: int,
    seed: int,
    start: date,
    truth: Path | None,
    user_ids: str,
    activity: float,
    cluster: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a lake of simulated events whose truth is known.

    The truth behind the events goes into a folder of its own. A rerun with the same parameters writes only
    the files that are missing.
    """
    from ammrank_dask.simulation.simulate import SimulationParameters, find_simulation, write_simulation
    from ammrank_dask.workflows.session.session import open_lazily

    lake = lake.resolve()
    truth = lake.with_name(f"{lake.name}-truth") if truth is None else truth.resolve()
    parameters = SimulationParameters(users, days, seed, start.isoformat(), user_ids, activity)
    summary = find_simulation(lake, truth, parameters)
    if summary is None:
        with open_lazily(cluster, None, as_json=as_json, quiet=quiet) as start_cluster:
            client, progress = start_cluster()
            summary = write_simulation(client, lake, truth, parameters, progress=progress)
    result = {"lake": str(lake), "truth": str(truth), "users": users, "days": days}
    show({**result, "events": sum(summary["events"].values())}, as_json)


command = simulate_command

if __name__ == "__main__":
    simulate_command()

"""`ammrank backtest`: the lists that past nights would have published, and the clicks that followed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.options import (
    DATE,
    FOLDER,
    AmmrankCommand,
    computing_options,
    show,
    show_sentence,
    show_table,
    site_argument,
)
from ammrank_dask.workflows.session.session import open_lazily


@click.command("backtest", cls=AmmrankCommand)
@site_argument
@click.option("--from", "first", type=DATE, required=True, help="The first night.")
@click.option("--to", "last", type=DATE, required=True, help="The last night; its label window must be in the lake.")
@click.option("--every", type=click.IntRange(min=1), default=7, show_default=True, help="Days from night to night.")
@click.option(
    "--out", type=FOLDER,
    help="Folder of the results.  [default: SITE/backtests/from=…-to=…-every=…]",
)  # fmt: skip
@computing_options
def command(
    site: Path,
    first: dt.date,
    last: dt.date,
    every: int,
    out: Path | None,
    cluster: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare the lists of past nights with the clicks that followed: table, curves, JSON, HTML.

    Nights run in a work area of the site; what is published stays. Run it again to go on where it stopped.
    """
    from ammrank_dask.evaluation.page import BACKTEST_PAGE, describe_gain, write_backtest
    from ammrank_dask.workflows.operations.backtest import backtest_tables, list_nights, run_backtest
    from ammrank_dask.workflows.stages.work_area import FOLDER

    if last < first:
        raise click.UsageError(f"the last night must not be before the first, got {first} to {last}")
    place = Site(site.resolve())
    config = load_config(place.config_path)
    dates = list_nights(place, config, first, last, every)
    out = out or site / FOLDER / f"from={first}-to={last}-every={every}"
    with open_lazily(cluster, site, as_json=as_json, quiet=quiet) as start:
        backtest = run_backtest(place, config, dates, every, start)
    write_backtest(out, backtest)
    if as_json:
        show({"page": str(out / BACKTEST_PAGE), **backtest}, as_json)
        return
    show_sentence(describe_gain(backtest)[1])
    for head, rows in backtest_tables(backtest):
        click.echo("")
        show_table(head, rows)
    click.echo("")
    show({night["date"]: night["reason"] for night in backtest["nights"] if night["reason"]}, as_json)
    show({"page": str(out / BACKTEST_PAGE)}, as_json)


if __name__ == "__main__":
    command()

"""`ammrank evaluate`: compare AMM-rank with what one runs today, on one's own data."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import click

from ammrank_dask.evaluation.page import PAGE, describe_choice, write_evaluation
from ammrank_dask.methods.registry import METHODS, resolve_methods
from ammrank_dask.storage.lake.rank_tables import read_rank_table
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.operations.evaluate import describe_evaluation, evaluate_site, evaluate_table, scratch_rows
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.options import FOLDER, AmmrankCommand, computing_options, date_option, show
from ammrank_dask.workflows.session.session import open_lazily


@click.command("evaluate", cls=AmmrankCommand)
@click.argument("site", required=False, type=FOLDER)
@date_option
@click.option("--table", type=click.Path(path_type=Path), help="A CSV table instead of a site: ranks in L1, L2, …")
@click.option("--variant", "variants", multiple=True, help="adv, no-adv, …; repeatable.")
@click.option(
    "--methods", multiple=True, metavar="NAME[,NAME…]",
    help=f"Of {', '.join(METHODS)}; or FILE.py with a method of your own.  [default: all]",
)  # fmt: skip
@click.option("--folds", "n_folds", type=click.IntRange(min=2), default=5, show_default=True, help="Folds over users.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything random.")
@click.option("--truth", type=click.Path(path_type=Path), help="Truth of a simulated lake.  [default: LAKE-truth]")
@click.option(
    "--out", type=FOLDER,
    help="Folder of the results.  [default: SITE/evaluations/date=…, or TABLE-evaluation]",
)  # fmt: skip
@computing_options
def command(
    site: Path | None,
    date: dt.date,
    table: Path | None,
    variants: tuple[str, ...],
    methods: tuple[str, ...],
    n_folds: int,
    seed: int,
    truth: Path | None,
    out: Path | None,
    cluster: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare AMM-rank with other methods on your own data: table, curves, JSON, HTML."""
    if (site is None) == (table is None):
        raise click.UsageError("give a SITE or --table FILE.csv, one of them")
    chosen = resolve_methods([name.strip() for given in methods for name in given.split(",") if name.strip()])
    config = None if site is None else load_config(Site(site).config_path)
    if out is None:
        out = site / "evaluations" / f"date={date}" if site is not None else Path(f"{table.stem}-evaluation")  # type: ignore[union-attr]
    if table is not None:
        read_rank_table(table)  # a table that cannot be read costs no cluster
    options: dict[str, Any] = {"methods": chosen, "n_folds": n_folds, "seed": seed}
    with scratch_rows(out) as scratch, open_lazily(cluster, site, as_json=as_json, quiet=quiet) as start:
        client, progress = start()
        if site is not None and config is not None:
            night = Night(client, Site(site), config, date, progress)
            evaluation = evaluate_site(night, variants=variants, truth=truth, scratch=scratch, **options)
        else:
            assert table is not None
            evaluation = evaluate_table(client, table, scratch=scratch, progress=progress, **options)
    write_evaluation(out, evaluation)
    if as_json:
        show({"page": str(out / PAGE), **evaluation}, as_json)
        return
    click.echo("\n".join(describe_evaluation(evaluation)))
    show({"verdict": (describe_choice(evaluation) or [None])[-1], "page": str(out / PAGE)}, as_json)


if __name__ == "__main__":
    command()

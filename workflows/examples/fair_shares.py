"""Give every user their categories and every category its share, on a Dask cluster of your own.

`python -m ammrank_dask.workflows.examples.fair_shares` prints the lists of both policies. In place of `make_log` read
your own events into a frame with the same four columns.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import pandas as pd
from distributed import Client

from ammrank_dask import (
    click_rankings,
    exposure_report,
    interest_features,
    learn_chances,
    score,
    train,
    write_features,
)
from ammrank_dask.workflows.examples.own_cluster import CATEGORIES, LABEL_DAYS, NOW, make_log


def share_fairly(client: Client, folder: Path, n_users: int = 2_000) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the balanced qualifications with their chances, and users by category under both rules.

    Hats are given to at least a quarter of the slots, and the first user never gets them.
    """
    log = make_log(n_users)
    flat = dict.fromkeys(CATEGORIES, "")
    then = NOW - pd.Timedelta(days=LABEL_DAYS)

    X, user_ids, columns = interest_features(log, at=then, taxonomy=flat, level=1)
    rankings, categories = click_rankings(log, then, NOW, user_ids, flat, level=1)
    past = write_features(folder / "past", X, user_ids, columns, rankings=rankings, categories=categories)
    model = train(past, client=client, shards=2, epochs=3)
    chances = learn_chances(model, past, client=client)  # from users who did not train, also those who clicked nothing

    X, user_ids, columns = interest_features(log, at=NOW, taxonomy=flat, level=1)
    today = write_features(folder / "today", X, user_ids, columns, categories=categories)
    usual = score(model, today, folder / "user_top_k", client=client, k=2, chances=chances)
    fair = score(
        model, today, folder / "balanced", client=client, k=2, policy="balanced", chances=chances, floor=0.5,
        floors={"Hats": 0.25}, opt_out=[(user_ids[0], "Hats")],
    )  # fmt: skip
    tables = {
        quals.policy: exposure_report(quals, client=client).set_index("category")["exposure"] for quals in (usual, fair)
    }
    return fair.to_pandas(), pd.DataFrame(tables)


@click.command()
def command() -> None:
    """Give every user their categories and every category its share."""
    with (
        Client(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as client,
        tempfile.TemporaryDirectory(prefix="fair-shares-") as folder,
    ):
        qualifications, exposure = share_fairly(client, Path(folder))
    click.echo(qualifications.head(6).to_string(index=False))
    click.echo(f"\nexpected clicks {qualifications['chance'].sum():,.1f}\n")
    click.echo(exposure.to_string())


if __name__ == "__main__":
    command()

"""Rank categories on a Dask cluster of your own: pandas in, pandas out, no site and no config.

`python -m ammrank_dask.workflows.examples.own_cluster` starts two workers here; `--address tcp://…` joins a scheduler
that is running. In place of `make_log` read your own events into a frame with the same four columns.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import numpy as np
import pandas as pd
from distributed import Client

from ammrank_dask import click_rankings, exposure_report, interest_features, score, train, write_features
from ammrank_dask.monitor.plugin import page_address, watch_cluster

CATEGORIES = ("Boots", "Flights", "Hats", "Hotels", "Shoes", "Trains")
NOW = pd.Timestamp("2026-03-01", tz="UTC")
LABEL_DAYS = 30


def make_log(n_users: int, seed: int = 0) -> pd.DataFrame:
    """Return page views (pv) and ad clicks (adc) of sixty days, of users with two favourite categories each."""
    rng = np.random.default_rng(seed)
    n_events = 40 * n_users
    user = rng.integers(0, n_users, n_events)
    favourite = np.argsort(rng.random((n_users, len(CATEGORIES))), axis=1)[:, :2]
    is_favourite = rng.random(n_events) < 0.7
    code = np.where(
        is_favourite, favourite[user, rng.integers(0, 2, n_events)], rng.integers(0, len(CATEGORIES), n_events)
    )
    return pd.DataFrame(
        {
            "user_id": user,
            "group": rng.choice(["pv", "adc"], n_events, p=[0.8, 0.2]),
            "category": np.array(CATEGORIES)[code],
            "timestamp": NOW - pd.to_timedelta(rng.uniform(0, 60, n_events), unit="D"),
        }
    )


def run_example(client: Client, folder: Path, n_users: int = 2_000) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train on the clicks of the last month, score everybody now, and return qualifications and exposure."""
    log = make_log(n_users)
    flat = dict.fromkeys(CATEGORIES, "")
    then = NOW - pd.Timedelta(days=LABEL_DAYS)

    X, user_ids, columns = interest_features(log, at=then, taxonomy=flat, level=1)
    rankings, categories = click_rankings(log, then, NOW, user_ids, flat, level=1)
    past = write_features(folder / "past", X, user_ids, columns, rankings=rankings, categories=categories)
    model = train(past, client=client, shards=2, epochs=3)

    X, user_ids, columns = interest_features(log, at=NOW, taxonomy=flat, level=1)
    today = write_features(folder / "today", X, user_ids, columns, categories=categories)
    qualifications = score(model, today, folder / "qualifications", client=client, k=2)
    return qualifications.to_pandas(), exposure_report(qualifications, client=client)


@click.command()
@click.option("--address", help="Scheduler to join; by default two workers are started here.")
def command(address: str | None) -> None:
    """Rank categories on a Dask cluster of your own: pandas in, pandas out."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with (
        Client(address) if address else Client(**options) as client,
        tempfile.TemporaryDirectory(prefix="own-cluster-") as folder,
    ):
        if watch_cluster(client):
            click.echo(f"dashboard {page_address(client)}", err=True)
        qualifications, exposure = run_example(client, Path(folder))
    click.echo(qualifications.head(6).to_string(index=False))
    click.echo()
    click.echo(exposure.to_string(index=False))


if __name__ == "__main__":
    command()

"""`ammrank features`: build the features of all users at the end of a date, or those to train on."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import click

from ammrank_dask.build import FeatureSource, build_features
from ammrank_dask.tasks import Progress, silent
from storage.errors import BadInput
from storage.files import digest_of
from storage.runs import Run
from storage.site import Site
from storage.vocabulary import CLICK_GROUP
from workflows.config import Config
from workflows.ingest import Ingested, ingest
from workflows.mapping import feature_settings
from workflows.options import (
    AmmrankCommand,
    computing_options,
    date_option,
    show,
    site_argument,
)
from workflows.retention import INPUT_FOLDERS, prune
from workflows.session import open_session


def score_features(client: Any, site: Site, config: Config, known: Ingested, *, progress: Progress = silent) -> Run:
    """Build the features of every user to be scored, at the end of the ingested date."""
    source = FeatureSource(known.date, known.head, (), known.users, config.score.users == "all", id_kind=known.id_kind)
    inputs = {"state": known.head.digest, "users": known.users.digest if known.users else None}
    return _build(client, site, config, known, source, inputs, progress)


def training_features(client: Any, site: Site, config: Config, known: Ingested, *, progress: Progress = silent) -> Run:
    """Build the features at the end of the lag date of the users who clicked in the label window after it."""
    if known.lag is None:
        raise BadInput(
            f"the site knows {len(known.history)} days, a label window takes {config.label.days} and features some"
            " before it; ingest more days or set label.days"
        )
    lag_date = known.date - dt.timedelta(config.label.days)
    window = [(day, digest) for day, digest in known.history if day > lag_date]
    source = FeatureSource(
        lag_date,
        known.lag,
        (),
        known.users,
        False,
        label_days=tuple((day, known.days[day]) for day, _ in window),
        min_categories=config.label.min_categories,
        id_kind=known.id_kind,
    )
    inputs = {
        "state": known.lag.digest,
        "users": known.users.digest if known.users else None,
        "label_days": [[str(day), digest] for day, digest in window],
    }
    return _build(client, site, config, known, source, inputs, progress)


def _build(
    client: Any,
    site: Site,
    config: Config,
    known: Ingested,
    source: FeatureSource,
    inputs: dict[str, Any],
    progress: Progress,
) -> Run:
    settings = feature_settings(config, known.taxonomy)
    digest = digest_of(
        [inputs, settings.columns.to_json(), settings.alpha, settings.intensity, settings.normalize,
         source.all_users, source.min_categories, config.partitions]
    )  # fmt: skip
    return build_features(
        client,
        source,
        settings,
        site.run("features", source.date, digest),
        digest,
        click_group=CLICK_GROUP,
        n_partitions=config.partitions,
        inputs=inputs,
        progress=progress,
    )


@click.command("features", cls=AmmrankCommand)
@site_argument
@date_option
@click.option(
    "--labels", is_flag=True, help="The training features: at DATE less label.days, with rankings up to DATE."
)
@click.option("--rebuild", is_flag=True, help="Make damaged runs again, and the state from the lake.")
@computing_options
def command(
    site: Path, date: dt.date, labels: bool, rebuild: bool, cluster: str | None, as_json: bool, quiet: bool
) -> None:
    """Build the features of every user at the end of a date."""
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        # A day before the published one needs no lag state: nobody trains on it.
        current = None if rebuild else job.site.current()
        with_lag = labels or current is None or date >= current.date
        known = ingest(
            job.client, job.site, job.config, date, rebuild=rebuild, with_lag=with_lag, progress=job.progress
        )
        build = training_features if labels else score_features
        run = build(job.client, job.site, job.config, known, progress=job.progress)
        roles = {**known.roles, "features": run.path}
        published = not labels and job.site.publish(date, roles)
        prune(job.site, job.config, date, roles.values(), (*INPUT_FOLDERS, "features"))
    facts = {"users": run.n_rows, "values": run.nnz, "partitions": run.n_parts, "features": str(run.path)}
    show({"date": str(date), **facts, "published": published}, as_json)


if __name__ == "__main__":
    command()

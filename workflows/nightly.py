"""`ammrank nightly`: ingest, build features, train when due, score, report, publish."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import click

from ammrank_dask.tasks import Progress, silent
from storage.reports import PAGE
from storage.runs import open_run
from storage.site import Site
from workflows.config import Config, load_config
from workflows.features import score_features
from workflows.ingest import ingest
from workflows.options import (
    AmmrankCommand,
    computing_options,
    date_option,
    progress_for,
    show,
    site_argument,
)
from workflows.report import write_night_report
from workflows.retention import prune
from workflows.score import score_users
from workflows.train import MODEL_KIND, is_due, too_little_history, train_model


def nightly(
    client: Any,
    site: Site,
    config: Config,
    date: dt.date,
    *,
    rebuild: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Run one night and return where its results are; CURRENT moves last, with one rename."""
    known = ingest(client, site, config, date, rebuild=rebuild, progress=progress)
    features = score_features(client, site, config, known, progress=progress)
    roles = {**known.roles, "features": features.path}
    facts: dict[str, Any] = {"date": str(date), "users": features.n_rows}

    reason = too_little_history(config, known)
    current = site.current()
    if reason is None and is_due(site, config, date):
        model = train_model(client, site, config, known, progress=progress)
        facts["model"] = f"trained on {model.manifest['facts']['users']:,} users"
    elif current is not None and "model" in current.runs:
        model = open_run(site.path / current.runs["model"], MODEL_KIND)
        facts["model"] = f"of {model.manifest['config']['date']}"
    else:
        site.publish(date, roles)
        prune(site, config, date, keep=roles.values())
        return {**facts, "model": f"none: {reason}", "features": str(features.path)}

    qualifications = score_users(client, site, config, date, features, model, progress=progress)
    report = write_night_report(site, config, date, qualifications)
    roles |= {"model": model.path, "qualifications": qualifications.path, "report": report}
    published = site.publish(date, roles)
    prune(site, config, date, keep=roles.values())
    return {
        **facts,
        "qualifications": str(qualifications.path),
        "report": str(report / PAGE),
        "published": published,
    }


@click.command("nightly", cls=AmmrankCommand)
@site_argument
@date_option
@click.option("--rebuild", is_flag=True, help="Fold everything again from the lake.")
@computing_options
def command(site: Path, date: dt.date, rebuild: bool, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Run one night: ingest, features, training when due, scoring, report, publish."""
    from workflows.cluster import open_cluster

    place = Site(site)
    config = load_config(place.config_path)
    with (
        place.exclusive(),
        open_cluster(cluster, site, quiet) as client,
        progress_for(quiet, as_json) as progress,
    ):
        facts = nightly(client, place, config, date, rebuild=rebuild, progress=progress)
    show(facts, as_json)


if __name__ == "__main__":
    command()

"""`ammrank score`: write for every user the categories they qualify for."""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ammrank_dask.features.store import open_features
from ammrank_dask.scoring.qualifications import Qualifications, open_qualifications
from ammrank_dask.scoring.score import finish_qualifications, write_qualifications
from ammrank_dask.scoring.settings import ScoreSettings
from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.atomic import digest_of, swap_folder
from ammrank_dask.storage.store.qualifications import KIND
from ammrank_dask.storage.store.runs import MANIFEST, Run, is_finished, open_run, remove_run, verify_run
from ammrank_dask.tasks import Progress, silent
from ammrank_dask.workflows.features import score_features
from ammrank_dask.workflows.ingest import Ingested, ingest
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.options import (
    AmmrankCommand,
    computing_options,
    date_option,
    show,
    site_argument,
)
from ammrank_dask.workflows.session.session import open_session
from ammrank_dask.workflows.stages.models import has_same_values, load_site_model, model_date
from ammrank_dask.workflows.train import find_model

logger = logging.getLogger(__name__)

QUALIFICATIONS_KIND = KIND


def score_settings(config: Config) -> ScoreSettings:
    """Return what decides who gets which categories."""
    wanted = config.score
    return ScoreSettings(
        k=wanted.k,
        policy=wanted.policy,
        also=tuple(config.report.policies),
        n=wanted.n,
        min_score=wanted.min_score,
        exclude=tuple(wanted.exclude),
        exclude_by_group={group: tuple(names) for group, names in wanted.exclude_by_group.items()},
    )


def check_k(config: Config, known: Ingested) -> None:
    """Refuse settings of `score` that do not fit the categories, before anything is computed for them."""
    n_categories = len(known.taxonomy.categories)
    if config.score.k > n_categories:
        raise BadInput(f"score.k must be between 1 and the number of categories ({n_categories}), got {config.score.k}")
    try:
        score_settings(config).check(known.taxonomy.categories)
    except BadInput as error:
        raise BadInput(f"score.{error}") from None


def score_users(
    client: Any,
    site: Site,
    config: Config,
    known: Ingested,
    features: Run,
    model: Run,
    *,
    rebuild: bool = False,
    progress: Progress = silent,
) -> Run:
    """Write the qualifications of a night under a hidden name and give them their date when they are whole."""
    check_k(config, known)
    if not has_same_values(model, config, known.taxonomy):
        raise BadInput(
            f"the model of {model_date(model)} was trained with another alpha, features.intensity or"
            f" features.normalize; run `ammrank train {site.path} --date {known.date}` first"
        )
    settings = score_settings(config)
    previous = find_previous(site, known.date)
    inputs = {
        "features": features.digest,
        "model": model.digest,
        "previous": None if previous is None else previous.run.digest,
    }
    final = site.qualifications_folder(known.date)
    published = _published_run(site, known.date, inputs, settings, rebuild)
    if published is not None:
        return published
    digest = _digest(inputs, settings)
    building = final.with_name(f".building-{final.name}-{digest}")
    window = _count_label_window(config, known)
    opened = open_features(features.path)
    if not is_finished(building):
        counts = write_qualifications(
            client,
            load_site_model(model),
            opened,
            building,
            settings,
            previous=previous,
            clicks=window["clicks"],
            starved_below=config.report.thresholds.starved_ratio,
            progress=progress,
        )
        finish_qualifications(
            building, digest, opened, settings, counts, inputs=inputs, config={"date": str(known.date)}, facts=window
        )
    swap_folder(building, final)
    if building.is_dir():
        remove_run(building)
    return open_run(final, QUALIFICATIONS_KIND)


def find_previous(site: Site, date: dt.date) -> Qualifications | None:
    """Return the qualifications of the last night before a date that was published, None when there are none."""
    nights = [site.qualifications_folder(night) for night in site.published_nights() if night < date]
    kept = [path for path in nights if is_finished(path)]
    return open_qualifications(kept[-1]) if kept else None


def models_in_use(site: Site) -> list[Path]:
    """Return the models that the kept qualifications were scored with; all models when that cannot be told."""
    models = site.finished_runs("models")
    try:
        used = {
            open_run(path.parent, QUALIFICATIONS_KIND).manifest["inputs"]["model"]
            for path in (site.path / "qualifications").glob(f"date=*/{MANIFEST}")
        }
        return [path for path in models if open_run(path).digest in used]
    except DamagedStore as error:
        logger.warning("all models are kept: %s", error)
        return models


def _published_run(
    site: Site, date: dt.date, inputs: Mapping[str, Any], settings: ScoreSettings, rebuild: bool
) -> Run | None:
    """Return the qualifications of a date if they are from the same input; refuse other published ones.

    With `rebuild`, and as long as the night is not published, others are written again.
    """
    final = site.qualifications_folder(date)
    if not is_finished(final):
        return None
    if rebuild or not site.is_published(date):
        try:
            verify_run(final)
            found = open_run(final, QUALIFICATIONS_KIND)
        except DamagedStore:
            return None
        return found if found.digest == _digest(inputs, settings) else None
    found = open_run(final, QUALIFICATIONS_KIND)
    # What was the night before when they were written stays so: neither a back-fill nor retention changes the past.
    if found.digest != _digest({**inputs, "previous": found.manifest["inputs"]["previous"]}, settings):
        raise BadInput(
            f"the qualifications of {date} were written from other input;"
            f" write them again with `ammrank nightly {site.path} --date {date} --rebuild`"
        )
    return found


def _digest(inputs: Mapping[str, Any], settings: ScoreSettings) -> str:
    return digest_of([dict(inputs), settings.to_json()])


def _count_label_window(config: Config, known: Ingested) -> dict[str, Any]:
    """Return clicks by category code, and events by what became of them, of the days of the label window."""
    first = known.date - dt.timedelta(config.label.days - 1)
    clicks = [0] * len(known.taxonomy.categories)
    events: Counter[str] = Counter()
    for day, run in known.days.items():
        if run is not None and day >= first:
            for code, count in run.manifest["facts"]["clicks"]:
                clicks[code] += count
            events.update(run.manifest["facts"]["counts"])
    return {"clicks": clicks, "events_of_label_window": dict(sorted(events.items()))}


@click.command("score", cls=AmmrankCommand)
@site_argument
@date_option
@click.option("--rebuild", is_flag=True, help="Write them again if they are damaged or from other input.")
@computing_options
def command(site: Path, date: dt.date, rebuild: bool, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Write for every user the categories they qualify for at the end of a date."""
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        model = find_model(job.site, date)
        if model is None:
            raise BadInput(f"{site} has no model up to {date}; run `ammrank train {site} --date {date}` first")
        known = ingest(job.client, job.site, job.config, date, progress=job.progress)
        features = score_features(job.client, job.site, job.config, known, progress=job.progress)
        run = score_users(
            job.client, job.site, job.config, known, features, model, rebuild=rebuild, progress=job.progress
        )
    facts = run.manifest["facts"]
    shown = {"users": facts["users"], "cold users": facts["cold_users"], "qualifications": str(run.path)}
    show({"date": str(date), **shown}, as_json)


if __name__ == "__main__":
    command()

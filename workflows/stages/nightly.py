"""Run a night: ingest, build features, train when due, score, report, publish."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ammrank_dask.storage.site.reports import PAGE
from ammrank_dask.storage.site.site import Site
from ammrank_dask.tasks import Progress, silent
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.record import record_night
from ammrank_dask.workflows.stages.features import score_features
from ammrank_dask.workflows.stages.gate import choose_model, is_due
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.models import model_date
from ammrank_dask.workflows.stages.published import find_champion, find_published_model, models_in_use
from ammrank_dask.workflows.stages.report import write_night_report
from ammrank_dask.workflows.stages.retention import INPUT_FOLDERS, prune, prune_nights, rejected_to_keep
from ammrank_dask.workflows.stages.score import check_k, score_users
from ammrank_dask.workflows.stages.train import too_little_history, train_if_possible


def nightly(
    client: Any, site: Site, config: Config, date: dt.date, *, rebuild: bool = False, progress: Progress = silent
) -> dict[str, Any]:
    """Run one night and return where its results are; CURRENT moves last, with one rename."""
    with record_night(client, site, date) as night:
        with night.stage("ingest"):
            known = ingest(client, site, config, date, rebuild=rebuild, progress=progress)
            check_k(config, known)
        with night.stage("features"):
            features = score_features(client, site, config, known, progress=progress)
        roles = {**known.roles, "features": features.path}
        facts: dict[str, Any] = {"date": str(date), "users": features.n_rows, **known.bridged}

        reason = too_little_history(config, known)
        published = None if rebuild else find_published_model(site, date)
        model = find_champion(site, date) if published is None else published
        trained = None
        if published is None and reason is None and is_due(site, model, config, known):
            with night.stage("train"):
                trained, reason = train_if_possible(client, site, config, known, model, progress=progress)
        if trained is not None:
            facts["training"] = f"{trained.manifest['facts']['users']:,} users"
            with night.stage("gate"):
                model, facts["gate"] = choose_model(client, site, config, known, model, trained, progress=progress)
        elif published is None and reason is not None:
            facts["training"] = f"none: {reason}"

        if model is not None:
            with night.stage("score"):
                scored = score_users(client, site, config, known, features, model, rebuild=rebuild, progress=progress)
            with night.stage("report"):
                report = write_night_report(client, site, config, known, scored, rebuild=rebuild, progress=progress)
            roles |= {"model": model.path, "qualifications": scored.path, "report": report}
            facts["model"] = f"of {model_date(model)}"
            facts |= {"qualifications": str(scored.path), "report": str(report / PAGE)}
        with night.stage("publish"):
            facts["published"] = site.publish(date, roles)
            prune_nights(site, config, date)
            keep = [*roles.values(), *models_in_use(site), *rejected_to_keep(site, config, date)]
            prune(site, config, date, keep, (*INPUT_FOLDERS, "features", "models"))
        night.finish(facts, roles)
    return facts

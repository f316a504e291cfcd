"""Run a night: ingest, build features, train when due, score, report, publish."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

from ammrank_dask.report.checks import name_warnings
from ammrank_dask.storage.errors import TooFewUsers
from ammrank_dask.storage.site.reports import PAGE, read_summary
from ammrank_dask.storage.store.manifests import DayManifest, ModelManifest
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.workflows.session.night import Night, NightRecord, record_night
from ammrank_dask.workflows.session.session import Session
from ammrank_dask.workflows.session.settings import lake_days
from ammrank_dask.workflows.stages.chances import chances_of_night, require_chances
from ammrank_dask.workflows.stages.features import score_features, training_features, write_windows
from ammrank_dask.workflows.stages.gate import choose_model, is_due
from ammrank_dask.workflows.stages.ingest import Ingested, ingest
from ammrank_dask.workflows.stages.models import (
    bring_to_night,
    describe_new_categories,
    find_champion,
    find_published_model,
    model_date,
)
from ammrank_dask.workflows.stages.nights import try_site_pages
from ammrank_dask.workflows.stages.publishing import hold_back, publish_night
from ammrank_dask.workflows.stages.report import write_night_report
from ammrank_dask.workflows.stages.rerun_check import digest_inputs, find_unchanged
from ammrank_dask.workflows.stages.score import (
    check_score,
    describe_exploration,
    describe_opt_outs,
    read_night_opt_outs,
    score_users,
)
from ammrank_dask.workflows.stages.train import too_little_history, train_model

logger = logging.getLogger(__name__)

TRAINING_STAGES = ("training_features", "train", "gate")
NOTES = {"gate": "gate, ε_dis on gate users"}
"""What the dashboard calls what a night tells, where that is not its name."""


def run_night(session: Session, date: dt.date, *, rebuild: bool = False) -> dict[str, Any]:
    """Run one night as `nightly` does, unless it is published and nothing changed since: that takes no cluster."""
    unchanged = None if rebuild else find_unchanged(session.site, session.config, date)
    outcome = nightly(session.night(date), rebuild=rebuild) if unchanged is None else unchanged
    try_site_pages(session.site)
    return outcome


def nightly(night: Night, *, rebuild: bool = False) -> dict[str, Any]:
    """Run one night and return where its results are; ROOT is written last.

    Raises HeldBack when a check of `publish.hold` warns: ROOT stays as it is.
    """
    site, config, date = night.site, night.config, night.date
    with record_night(night.client, site, date, night.progress) as record:
        with record.stage("ingest") as stage:
            in_lake = lake_days(site, config)
            inputs = digest_inputs(site, config, date, in_lake)
            ingested = ingest(night, rebuild=rebuild, in_lake=in_lake)
            check_score(night, ingested)
            read_night_opt_outs(night, ingested)  # a file that cannot be read is told before anything is computed
            stage.text = f"{len(ingested.history):,} days of history, {ingested.head.n_rows:,} users with events"
        record.note("input", tell_input(ingested))
        with record.stage("features") as stage:
            features = score_features(night, ingested)
            write_windows(night, ingested)
            stage.text = f"{features.n_rows:,} users"
        roles = {**ingested.roles, "features": features.path}
        facts: dict[str, Any] = {"date": str(date), "users": features.n_rows, **ingested.notes}

        model = None if rebuild else find_published_model(site, date)
        if model is None:
            model, training = _train_when_due(night, ingested, record)
            facts |= training
            for name, sentence in training.items():
                record.note(NOTES.get(name, name), sentence)
        else:
            record.skip(*TRAINING_STAGES)
        if model is None:
            record.skip("chances", "score", "report")
        else:
            with record.stage("chances") as stage:
                renew = "gate" in facts  # a training was judged tonight
                chances, facts["chances"] = chances_of_night(
                    night, ingested, features, model, renew=renew, rebuild=rebuild
                )
                require_chances(night, chances, facts["chances"])
                stage.text = facts["chances"]
            with record.stage("score") as stage:
                scored = score_users(night, ingested, features, model, chances, rebuild=rebuild)
                stage.text = f"{features.n_rows:,} users"
            with record.stage("report") as stage:
                report = write_night_report(night, ingested, scored, rebuild=rebuild)
                facts["checks"] = read_summary(report)["checks"]
                stage.text = f"checks: {name_warnings(facts['checks'])}"
            record.note("checks", stage.text.removeprefix("checks: "))
            roles |= {"model": model.path, "qualifications": scored.path, "report": report}
            roles |= {} if chances is None else {"chances": chances.path}
            facts |= {"model": f"of {model_date(model)}", **describe_opt_outs(scored), **describe_exploration(scored)}
            facts |= describe_new_categories(model)
            lists = site.qualifications_folder(date)
            facts |= {"qualifications": str(lists), "report": str(report / PAGE)}
            record.note("report", str((report / PAGE).absolute()))
        with record.stage("publish") as stage:
            record.keep(facts, roles, inputs._asdict())
            hold_back(site, config, date, facts)
            facts["published"] = publish_night(site, config, date, roles)
            stage.text = "published" if facts["published"] else "kept; a later night is published"
        record.finish(facts)
    return facts


def tell_input(ingested: Ingested) -> str:
    """Return as a sentence what became of the events of the date, and which days are not as in the lake."""
    day = ingested.days.get(ingested.date)
    if day is None:
        sentence = f"no events of {ingested.date}"
    else:
        manifest = DayManifest.of(day)
        shares = [
            f"{name.replace('_', ' ')} {number:,} ({number / max(1, manifest.n_events):.1%})"
            for name, number in manifest.events_by_outcome.items()
            if number
        ]
        sentence = f"{manifest.n_events:,} events of {ingested.date}: {', '.join(shares) or 'none'}"
    return "; ".join([sentence, *(f"{name}: {days}" for name, days in ingested.notes.items())])


def _train_when_due(night: Night, ingested: Ingested, record: NightRecord) -> tuple[Run | None, dict[str, str]]:
    """Return the model that scores the night, None before the first, and what is to tell about a training."""
    champion = find_champion(night.site, night.date)
    if champion is not None:
        champion = bring_to_night(night, champion, ingested.taxonomy)
    reason = too_little_history(night.config, len(ingested.history))
    if reason is None:
        if not is_due(night, champion, ingested):
            record.skip(*TRAINING_STAGES)
            return champion, {}
        with record.stage("training_features") as stage:
            features = training_features(night, ingested)
            stage.text = f"{features.n_rows:,} users with clicks"
        with record.stage("train") as stage:
            try:
                trained = train_model(night, ingested, features, start=champion)
                stage.text = f"{ModelManifest.of(trained).n_users:,} users"
            except TooFewUsers as error:
                logger.warning("nothing is trained: %s", error)
                trained, reason = None, str(error)
                record.skip("gate")
        if trained is not None:
            with record.stage("gate") as stage:
                model, judgement = choose_model(night, ingested, features, champion, trained)
                stage.text = judgement.split(";")[0]
            return model, {"training": f"{ModelManifest.of(trained).n_users:,} users", "gate": judgement}
    else:
        record.skip(*TRAINING_STAGES)
    return champion, {"training": f"none: {reason}"}

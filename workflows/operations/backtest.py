"""Run nights of the past in a work area of a site, and compare them with the clicks after them.

A rerun goes on after the last night that was measured.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Client

from ammrank_dask.evaluation.backtest import (
    NightToMeasure,
    fit_logistic,
    measure_outcome,
    summarise_backtest,
)
from ammrank_dask.evaluation.page import EXPOSURE, LABELS, gain_text
from ammrank_dask.features.store import open_features
from ammrank_dask.runtime.tasks import Progress
from ammrank_dask.scoring.settings import values_of
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import missing_days
from ammrank_dask.storage.objects.atomic import read_json, write_json
from ammrank_dask.storage.site.reports import SUMMARY
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import ModelManifest, QualificationsManifest
from ammrank_dask.storage.store.qualifications import KIND, qualification_parts
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.settings import lake_days
from ammrank_dask.workflows.stages.features import training_features
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.models import find_run
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.stages.rerun_check import digest_inputs
from ammrank_dask.workflows.stages.work_area import clear_work, open_work, own_config, share_runs


def list_nights(site: Site, config: Config, first: dt.date, last: dt.date, every: int) -> list[dt.date]:
    """Return the nights of a backtest; refuse too little history, an open window, missing days."""
    days = lake_days(site, config)
    oldest, newest = min(days), max(days)
    min_days = max(1, config.features.min_days)
    earliest = oldest + dt.timedelta(config.label.days + min_days - 1)
    latest = newest - dt.timedelta(config.label.days)
    if earliest > latest:
        raise BadInput(
            f"no night of this lake can be backtested: that needs {2 * config.label.days + min_days} days of log"
            f" (label.days {config.label.days} before a night and as many after it, and before them {min_days} of"
            f" features.min_days), and it has {(newest - oldest).days + 1}, from {oldest} to {newest};"
            " add days, or set shorter ones"
        )
    if first < earliest:
        raise BadInput(
            f"a night of {first} has too little history: the lake begins with {oldest}, and label.days"
            f" {config.label.days} and features.min_days {config.features.min_days} before them are needed;"
            f" give dates from {earliest} to {latest}"
        )
    nights = [first + dt.timedelta(number) for number in range(0, (last - first).days + 1, every)]
    end = nights[-1] + dt.timedelta(config.label.days)
    if end > newest:
        raise BadInput(
            f"clicks after {nights[-1]} are not known yet: the label window ends with {end}, and the newest day"
            f" of the lake is {newest}; give dates from {earliest} to {latest}"
        )
    missing = missing_days(days, first, end)
    if missing and config.lake.missing_days == "refuse":
        raise BadInput(
            f"the lake has no events for {missing[0]}, which a night would stop at; add them, or set"
            " lake.missing_days: bridge to go on without"
        )
    return nights


def run_backtest(
    site: Site, config: Config, dates: Sequence[dt.date], every: int, start: Callable[[], tuple[Client, Progress]]
) -> dict[str, Any]:
    """Return the measures of the lists that the nights would have published, the content of `backtest.json`.

    The cluster is started when a night is not measured yet.
    """
    settings = own_config(site, config)
    with open_work(site, settings, dates[0], every) as work:
        measured = {date: _measured_before(work, settings, date) for date in dates}
        done = [date for date in dates if _outcome_path(work, date).is_file()]
        if any(measured[date] is None for date in done):
            # The past is another one: the nights after a changed one depend on it, too.
            clear_work(work)
            share_runs(site, work)
            measured = dict.fromkeys(dates)
        nights = []
        for date in dates:
            found = measured[date]
            if found is None:
                client, progress = start()
                found = _run_night(Night(client, work, settings, date, progress))
                until = dt.date.fromisoformat(found["until"])
                kept = {"inputs": digest_inputs(work, settings, until).inputs, "night": found}
                write_json(_outcome_path(work, date), kept)
            nights.append(found)
    return summarise_backtest(nights, k=config.score.k, every=every, policy=config.score.policy)


def _outcome_path(work: Site, date: dt.date) -> Path:
    return work.path / "outcomes" / f"date={date}.json"


def _measured_before(work: Site, config: Config, date: dt.date) -> dict[str, Any] | None:
    """Return what an earlier run measured of a night; None when there is nothing, or from other input."""
    path = _outcome_path(work, date)
    if not path.is_file():
        return None
    kept = read_json(path)
    until = dt.date.fromisoformat(kept["night"]["until"])
    night: dict[str, Any] = kept["night"]
    return night if kept["inputs"] == digest_inputs(work, config, until).inputs else None


def _run_night(night: Night) -> dict[str, Any]:
    """Run a night in the work area, fit its rivals, and measure both by the clicks that followed."""
    work, config = night.site, night.config
    until = night.date + dt.timedelta(config.label.days)
    # Before the night, which removes features that it does not score.
    training = training_features(night, ingest(night))
    rivals = work.path / "rivals" / f"date={night.date}-{training.digest}"
    features = open_features(training.path)
    logistic, clicks = fit_logistic(
        night.client, features, rivals, variant=config.train.variant, progress=night.progress
    )
    facts = nightly(night)
    found: dict[str, Any] = {"date": str(night.date), "until": str(until), "users": 0, "methods": None, "reason": None}
    found |= {"exposure": None, "model": None, "gate": None}
    if "qualifications" not in facts:
        return {**found, "reason": facts.get("training", "nothing was published")}
    summary = read_json(work.report_folder(night.date) / SUMMARY)
    exposure = summary["policies"][summary["policy"]]
    found |= {"exposure": {name: exposure[name] for name in EXPOSURE}, "model": summary["model"]}
    # Not from the facts: a night that was published before a crash is not judged again.
    found["gate"] = None if summary["gate"] is None else summary["gate"]["reason"]
    after = replace(night, date=until)
    outcome = open_features(training_features(after, ingest(after)).path)
    qualifications = open_run(work.qualifications_folder(night.date), KIND)
    model = find_run(work, QualificationsManifest.of(qualifications).model)
    assert model is not None  # the night has just scored with it
    past = NightToMeasure(
        model.path, ModelManifest.of(model).n_users, qualification_parts(qualifications), clicks, logistic,
        config.train.variant, config.score.k, values_of(QualificationsManifest.of(qualifications)),
    )  # fmt: skip
    sums = measure_outcome(night.client, past, outcome, progress=night.progress)
    shutil.rmtree(rivals, ignore_errors=True)
    if not sums.n_users:
        return {**found, "reason": f"nobody clicked label.min_categories categories from {night.date} to {until}"}
    return {**found, "users": sums.n_users, "methods": sums.means()}


def backtest_tables(backtest: dict[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Return head and rows of two tables: the methods over all nights, and the hits of each night."""
    methods = list(backtest["means"])
    n_nights = len(backtest["nights"])
    has_value = "value" in backtest["means"]["policy"]
    over_all = [
        [
            LABELS[name],
            _figure(found.get("disagreement"), 4),
            _figure(found.get("hits")),
            _figure(found.get("ndcg")),
            *([_figure(found.get("value"))] if has_value else []),
            gain_text(found),
        ]
        for name, found in backtest["means"].items()
    ]
    by_night = [
        [night["date"], f"{night['users']:,}"]
        + [_figure(((night["methods"] or {}).get(name) or {}).get("hits")) for name in methods]
        for night in backtest["nights"]
    ]
    head = [f"{n_nights} night{'s' if n_nights != 1 else ''}", "ε_dis", "hits", "NDCG"]
    return [
        ([*head, *(["value"] if has_value else []), "published has more"], over_all),
        (["hits by night", "users", *(LABELS[name] for name in methods)], by_night),
    ]


def _figure(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"

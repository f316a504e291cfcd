"""Report who is over-exposed and who is starved."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ammrank_dask.features.store import open_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.monitor.performance import PERFORMANCE_PAGE
from ammrank_dask.report.checks import WARN, check_interests
from ammrank_dask.report.drift import align_exposure, measure_drift
from ammrank_dask.report.fairness import MOST_CATEGORIES, n_users_to_sample, price_fairness
from ammrank_dask.report.hit_rate import PastNight, measure_realised, most_clicked
from ammrank_dask.report.outcomes import measure_past_night
from ammrank_dask.report.page import report_files
from ammrank_dask.report.summary import exposure_of, summarise
from ammrank_dask.report.thresholds import CHECK_LABELS
from ammrank_dask.runtime.tasks import Call, run_side_by_side, run_together
from ammrank_dask.scoring.chances import load_chances
from ammrank_dask.scoring.policies import PolicyCounts
from ammrank_dask.scoring.qualifications import NightPart, Qualifications, open_qualifications, parts_in
from ammrank_dask.scoring.score_partition import sample_users
from ammrank_dask.scoring.settings import ScoreSettings
from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.objects.atomic import digest_of, read_json
from ammrank_dask.storage.objects.folders import is_folder, remove
from ammrank_dask.storage.site.reports import EXPOSURE, SUMMARY, check_report, read_summary, write_report
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import ChancesManifest, ModelManifest, QualificationsManifest
from ammrank_dask.storage.store.parts import PartRef
from ammrank_dask.storage.store.qualifications import qualification_parts
from ammrank_dask.storage.store.registry import DAY
from ammrank_dask.storage.store.runs import Run, is_finished, open_run
from ammrank_dask.storage.vocabulary import CLICK_GROUP
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.chances import describe_history, find_chances
from ammrank_dask.workflows.stages.ingest import Ingested
from ammrank_dask.workflows.stages.models import (
    find_forward,
    find_previous,
    find_run,
    find_verdict,
    load_site_model,
    model_date,
)
from ammrank_dask.workflows.stages.night_input import describe_input
from ammrank_dask.workflows.stages.publishing import checks_that_hold
from ammrank_dask.workflows.stages.score import score_settings

logger = logging.getLogger(__name__)

STAGE = "past-nights"
"""The tasks that compare tonight and nights before it."""
Outcome = TypeVar("Outcome")
Measure = Generator[list[Call], list[Any], Outcome]
"""A measure yields a call for each partition, is sent what they return, and returns what it comes to."""
REPORT_FORMAT = 7
"""Version of summary.json: a report of another version is measured again."""
REALISED_NIGHTS = (1, 7, 30)
PARAMETERS = ("kappa", "pace", "epochs", "clickers_per_plane", "max_planes")
"""Those of a model that its summary tells, where it has them."""


def write_night_report(night: Night, ingested: Ingested, qualifications: Run, *, rebuild: bool = False) -> Path:
    """Write the report of a night and return its folder.

    A report that was written from these qualifications is not measured again, unless `rebuild`: the nights before it
    may be gone or others since, and a rerun must give the same bytes.
    """
    summary = None if rebuild else find_summary(night.site, night.config, qualifications)
    if summary is None:
        summary = measure_night(night, ingested, qualifications)
    return draw_report(night.site, night.config, qualifications, summary, is_published=True)


def find_summary(site: Site, config: Config, qualifications: Run) -> dict[str, Any] | None:
    """Return the summary that was written from these qualifications with these settings, None if there is none."""
    folder = site.report_folder(QualificationsManifest.of(qualifications).date)
    try:
        check_report(folder, [SUMMARY])
        summary = read_json(folder / SUMMARY)
    except DamagedStore:
        return None
    is_same = isinstance(summary, dict) and summary.get("source") == _source(config, qualifications)
    return summary if is_same else None


def measure_night(night: Night, ingested: Ingested, qualifications: Run) -> dict[str, Any]:
    """Return the content of `summary.json` of a night."""
    manifest = QualificationsManifest.of(qualifications)
    (before, drift), (outcome, earned), *realised = _run_measures(
        night,
        [
            _compare_with_before(night, ingested, qualifications),
            _came_true(night, ingested),
            *(_look_back(night, ingested, nights) for nights in REALISED_NIGHTS),
        ],
    )
    model = find_run(night.site, manifest.model)
    summary = summarise(
        {name: PolicyCounts.from_json(found) for name, found in manifest.policies.items()},
        manifest.policy,
        np.array(manifest.clicks, np.int64),
        manifest.categories,
        date=str(night.date),
        cold_users=manifest.cold_users,
        k=manifest.k,
        n_of={name: found["n"] for name, found in manifest.policies.items() if "n" in found},
        may_hold=None if manifest.may_hold is None else np.array(manifest.may_hold, np.int64),
        balanced=manifest.policies.get("balanced"),
        chances=_chance_facts(night, ingested, qualifications),
        outcome=outcome,
        intake=describe_input(night, ingested, None if model is None else model_date(model)),
        explored=manifest.explored,
        thresholds=night.config.report.limits,
        before=before,
        drift=drift,
        realised=realised,
        groups=manifest.groups,
    )
    summary["earned"] = earned
    if manifest.has_values:  # nights without values keep their bytes
        summary["value"] = {"objective": manifest.objective, "currency": manifest.currency}
    for name, found in manifest.policies.items():
        if "sampled_users" in found:
            summary["policies"][name]["sampled_users"] = found["sampled_users"]
    summary["special_days"] = ingested.special_days
    summary["changed_categories"] = ingested.changed_categories
    summary["events_of_label_window"] = manifest.events_of_label_window
    summary["source"] = _source(night.config, qualifications)
    verdict = find_verdict(night.site, night.date, manifest.model)
    summary["fairness"] = _fairness(night, qualifications)
    summary["gate"] = dict(verdict.facts) if verdict is not None else None
    summary["model"] = _describe_model(model)
    forward = find_forward(night.site, night.date, model)
    if forward is not None:  # nights without such a comparison keep their bytes
        summary["forward"] = forward
        summary["checks"] += check_interests(forward)
    return summary


def _describe_model(model: Run | None) -> dict[str, Any] | None:
    """Return when a model was trained, with which parameters, and its error beside that of popularity.

    The errors are those of the validation users; a model without planes has none.
    """
    if model is None:
        return None
    manifest = ModelManifest.of(model)
    config, training = manifest.settings, manifest.training or {}
    return {
        "date": model_date(model),
        "kind": manifest.simple or manifest.method or AMMRank.method,
        "parameters": {name: config[name] for name in PARAMETERS if name in config},
        "new_categories": manifest.new_categories,
        "validation_error": training.get("validation_error"),
        "popularity_error": training.get("popularity_error"),
    }


def _settings_of(night: Night, manifest: QualificationsManifest) -> ScoreSettings:
    """Return the settings of now with the values of the night."""
    names = ("values", "values_by_group") if manifest.has_values else ()
    own = {name: manifest.settings[name] for name in names}
    return replace(score_settings(night.config), objective=manifest.objective, **own)


def _fairness(night: Night, qualifications: Run) -> dict[str, Any] | None:
    """Return what fairness costs the users of a sample.

    None without chances, when what they came of is not kept, and for more than `MOST_CATEGORIES`.
    """
    site, manifest = night.site, QualificationsManifest.of(qualifications)
    chances, model = find_chances(site, manifest.chances), find_run(site, manifest.model)
    kept = map(open_run, site.finished_runs("features"))
    features = next((run for run in kept if run.digest == manifest.inputs["features"]), None)
    if chances is None or model is None or features is None:
        return None
    opened = open_features(features.path)
    if opened.n_categories > MOST_CATEGORIES:
        return None
    fitted = load_site_model(model)
    users = sample_users(
        night.client, fitted, opened, load_chances(chances), _settings_of(night, manifest),
        n_users_to_sample(opened.n_categories), progress=night.progress,
    )  # fmt: skip
    folder = site.scratch / f"fairness-{qualifications.digest}"
    try:
        return price_fairness(
            night.client,
            users,
            opened.categories,
            np.array(manifest.clicks, np.int64),
            fitted.panels().tie_order,
            folder,
            starved_ratio=night.config.report.limits.starved_ratio,
            values=_settings_of(night, manifest).click_values(opened.categories),
            progress=night.progress,
        )
    finally:
        remove(folder)


def _chance_facts(night: Night, ingested: Ingested, qualifications: Run) -> dict[str, Any] | None:
    """Return how the chances of a night were learnt and measured, None when it has none."""
    run = find_chances(night.site, QualificationsManifest.of(qualifications).chances)
    if run is None:
        return None
    manifest = ChancesManifest.of(run)
    return {"date": manifest.date, **manifest.counts, "history": describe_history(night, ingested, run)}


def draw_report(
    site: Site, config: Config, qualifications: Run, summary: Mapping[str, Any], *, is_published: bool
) -> Path:
    """Write the files of a report from its summary and return their folder.

    `is_published` says whether the night is published, or will be if no check holds it.
    """
    manifest = QualificationsManifest.of(qualifications)
    date = manifest.date
    folder = site.report_folder(date)
    scored = f"../../{site.relative(qualifications.path)}"
    links = {
        SUMMARY: SUMMARY,
        EXPOSURE: EXPOSURE,
        "qualifications by user": f"{scored}/by_user/",
        "their manifest": f"{scored}/manifest.json",
    }
    if is_folder(site.run_folder(date)):  # a whole night: it leaves these when it ends
        run = f"../../{site.relative(site.run_folder(date))}"
        links |= {"run.json": f"{run}/run.json", "log": f"{run}/log.jsonl", "work of the cluster": PERFORMANCE_PAGE}
    facts = {
        "qualifications": qualifications.digest,
        **{name: str(found) for name, found in manifest.inputs.items() if found is not None},
        **manifest.versions,
    }
    verdict = judge_night(site, config, date, summary, is_published=is_published)
    about: dict[str, Any] = {"links": links, "facts": facts, "verdict": verdict, "pages": _other_pages(summary)}
    about |= {"removed": manifest.removed, "too_few": manifest.too_few}
    write_report(folder, report_files(summary, exposure_of(summary), about))
    return folder


def judge_night(
    site: Site, config: Config, date: dt.date, summary: Mapping[str, Any], *, is_published: bool
) -> dict[str, str]:
    """Return `status` and `sentence` on top of a report: published, on hold, or neither, and why."""
    checks = summary["checks"]
    holding = [CHECK_LABELS[check["name"]] for check in checks_that_hold(config, checks)]
    warned = [CHECK_LABELS[check["name"]] for check in checks if check["status"] == WARN]
    holds = f"{'a check warns' if len(holding) == 1 else 'checks warn'}: {', '.join(holding)}"
    if holding and not site.is_published(date):
        command = f"ammrank publish SITE --date {date} --anyway"
        return {
            "status": "warn",
            "sentence": f"On hold: these lists are not served, because {holds}. {command} releases them.",
        }
    if holding:
        return {"status": "warn", "sentence": f"Published: a person released these lists, although {holds}."}
    if not is_published:
        return {
            "status": "off",
            "sentence": "Not published: this night was scored, and no `ammrank nightly` published it.",
        }
    if warned:
        said = f"{len(warned)} of {len(checks)} checks warn: {', '.join(warned)}"
        return {"status": "ok", "sentence": f"Published: these lists are served until a later night is. {said}."}
    return {
        "status": "ok",
        "sentence": f"Published: these lists are served until a later night is. All {len(checks)} checks are ok.",
    }


def redraw_report(site: Site, config: Config, date: dt.date) -> None:
    """Draw the page of a published night again, because it says that it is on hold; what goes wrong is only logged."""
    try:
        summary = read_summary(site.report_folder(date))
        draw_report(site, config, open_run(site.qualifications_folder(date)), summary, is_published=True)
    except (DamagedStore, OSError, LookupError, TypeError) as error:
        logger.warning("the report of %s still says that it is on hold: %s", date, type(error).__name__)


def _other_pages(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return links to all nights, to the night before, and to this night among all: later ones are not known yet."""
    pages = {"all nights": "../../index.html"}
    if summary["drift"] is not None:
        before = summary["drift"]["date"]
        pages[f"night before, {before}"] = f"../date={before}/report.html"
    return pages | {"later nights": f"../../index.html#{summary['date']}"}


def _run_measures(night: Night, measures: Sequence[Measure]) -> list[Any]:
    """Return what measures come to. Calls of one partition share a task, unless a file of one of them is damaged."""
    outcomes: list[Any] = [None] * len(measures)
    calls: dict[int, list[Call]] = {}

    def go_on(number: int, step: Callable[..., Any], *args: Any) -> None:
        try:
            calls[number] = step(*args)
        except StopIteration as end:
            outcomes[number] = end.value

    for number, measure in enumerate(measures):
        go_on(number, measure.send, None)
    try:
        found = run_side_by_side(night.client, STAGE, list(calls.values()), progress=night.progress)
    except DamagedStore:
        found = None
    for place, (number, own) in enumerate(list(calls.items())):
        try:
            counts = run_together(night.client, STAGE, own) if found is None else found[place]
        except DamagedStore as error:
            go_on(number, measures[number].throw, error)
        else:
            go_on(number, measures[number].send, counts)
    return outcomes


def _compare_with_before(
    night: Night, ingested: Ingested, qualifications: Run
) -> Measure[tuple[tuple[str, PolicyCounts | None] | None, dict[str, Any] | None]]:
    """Return date and counts of the night before and the drift since; None when the two cannot be compared.

    With another active policy there are no counts: its exposure is no measure for this one.
    """
    previous = find_previous(night.site, night.date)
    parts = qualification_parts(qualifications)
    if previous is None:
        return None, None
    manifest = QualificationsManifest.of(qualifications)
    categories, policy = manifest.categories, manifest.policy
    names_before = _names_before(ingested, categories, previous.categories)
    try:
        earlier = parts_in(qualification_parts(previous.run), len(parts))
        drift = yield from measure_drift(earlier, parts, categories, names_before=names_before)
    except DamagedStore as error:
        logger.warning("the drift since the night before is not measured: %s", error)
        return None, None
    drift["model_changed"] = previous.manifest.model != manifest.model
    date = str(previous.manifest.date)
    if previous.policy != policy:
        return (date, None), drift
    counts = previous.counts
    exposure = align_exposure(counts.exposure, previous.categories, names_before)
    return (date, PolicyCounts(exposure, counts.categories_per_user)), drift


def _names_before(ingested: Ingested, categories: Sequence[str], before: Sequence[str]) -> list[str]:
    """Return the categories of a night under the names that the night before has for them."""
    is_tonight = list(categories) == list(ingested.taxonomy.categories)
    return ingested.taxonomy.names_in(before) if is_tonight else list(categories)


def _look_back(night: Night, ingested: Ingested, nights: int) -> Measure[dict[str, Any]]:
    """Compare a past night with the clicks since. `measures` is None if the night is gone or nobody clicked since."""
    date = night.date - dt.timedelta(nights)
    looked: dict[str, Any] = {"nights": nights, "date": str(date), "policy": None, "measures": None}
    categories = ingested.taxonomy.categories
    try:
        past = _past_night(night, ingested, date)
        if past is None:
            return looked
        quals, parts, days = past
        names = ingested.taxonomy.names_in(quals.categories)
        published = PastNight(
            parts, days, most_clicked(quals.manifest.clicks, quals.categories, quals.k, names), quals.k
        )
        measures = yield from measure_realised(published, names, _click_cells(night.config, categories))
        return {**looked, "policy": quals.policy, "measures": measures}
    except DamagedStore as error:
        logger.warning("what became of the night of %s is not measured: %s", date, error)
        return looked


def _came_true(night: Night, ingested: Ingested) -> Measure[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """Return of the night one label window ago what its chances came to, and what each policy would have earned.

    None is what it has no chances for, or did not explore; both when it is not kept.
    """
    nights = night.config.label.days
    date = night.date - dt.timedelta(nights)
    try:
        past = _past_night(night, ingested, date)
        if past is None:
            return None, None
        quals, parts, days = past
        support = (quals.manifest.explored or {}).get("support", {})
        has_chances = quals.manifest.chances is not None
        if not (has_chances or support):
            return None, None
        cells = _click_cells(night.config, ingested.taxonomy.categories)
        names = ingested.taxonomy.names_in(quals.categories)
        outcome, sums = yield from measure_past_night(parts, days, names, cells, is_explored=bool(support))
    except DamagedStore as error:
        logger.warning("the clicks since the night of %s are not measured: %s", date, error)
        return None, None
    of_night = {"date": str(date), "nights": nights}
    earned = None
    if sums is not None:
        earned = {**of_night, "policy": quals.policy, "policies": sums.estimate(support, quals.policy)}
    return {**of_night, **outcome.to_json()} if has_chances else None, earned


def _past_night(
    night: Night, ingested: Ingested, date: dt.date
) -> tuple[Qualifications, list[NightPart], list[list[PartRef]]] | None:
    """Return a published night, its files, and by partition the partials since; None when something of it is gone."""
    folder, n_partitions = night.site.qualifications_folder(date), night.config.partitions
    if not night.site.is_published(date) or not is_finished(folder):
        return None
    past = open_qualifications(folder)
    days = _days_since(night.site, ingested, date)
    if days is None:
        return None
    partials = [[day.part(number) for day in days] for number in range(n_partitions)]
    return past, parts_in(qualification_parts(past.run), n_partitions), partials


def _click_cells(config: Config, categories: Sequence[str]) -> tuple[int, int]:
    """Return the first and the last (excluded) cell of clicks in partials."""
    first = config.event_groups.index(CLICK_GROUP) * len(categories)
    return first, first + len(categories)


def _days_since(site: Site, ingested: Ingested, date: dt.date) -> list[Run] | None:
    """Return the partials of the days after a date, those that are bridged left out; None when one is gone."""
    runs = []
    for day, digest in ingested.history:
        if day <= date or digest is None:
            continue
        path = site.day_run(day, digest)
        if not is_finished(path):
            return None
        runs.append(ingested.earlier.recode(open_run(path, DAY.kind)))
    return runs


def _source(config: Config, qualifications: Run) -> str:
    return digest_of([REPORT_FORMAT, qualifications.digest, config.report.model_dump()])

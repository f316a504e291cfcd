"""Write for every user the categories they qualify for."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ammrank_dask.features.eligibility import USER_GROUPS
from ammrank_dask.features.store import open_features
from ammrank_dask.scoring.chances import load_chances
from ammrank_dask.scoring.exploration import describe_draws
from ammrank_dask.scoring.exposure_bounds import parse_floor
from ammrank_dask.scoring.policies import POLICIES
from ammrank_dask.scoring.qualifications import Qualifications
from ammrank_dask.scoring.score_passes import finish_qualifications, write_qualifications
from ammrank_dask.scoring.settings import ScoreSettings
from ammrank_dask.storage.errors import BadInput, DamagedStore, shell_word
from ammrank_dask.storage.lake.paths import digest_lake_file, is_lake_file
from ammrank_dask.storage.lake.people import OptOuts, read_opt_outs
from ammrank_dask.storage.lake.taxonomy import final_names
from ammrank_dask.storage.lake.values import ValueTable, read_value_table
from ammrank_dask.storage.objects.atomic import digest_file, digest_of
from ammrank_dask.storage.objects.folders import is_file
from ammrank_dask.storage.site.forgotten import tombstones_path
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import DayManifest, QualificationsManifest
from ammrank_dask.storage.store.qualifications import KIND
from ammrank_dask.storage.store.runs import Run, is_finished, open_run, verify_run
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.settings import lake_path
from ammrank_dask.workflows.stages.features import suppressed_users
from ammrank_dask.workflows.stages.ingest import Ingested, recode_counts
from ammrank_dask.workflows.stages.models import find_previous, has_same_values, load_site_model, model_date

logger = logging.getLogger(__name__)


def score_settings(
    config: Config, date: dt.date | None = None, *, has_chances: bool = True, values: ValueTable | None = None
) -> ScoreSettings:
    """Return what decides who gets which categories; without chances no policy is shown beside it that needs them.

    Every night draws others for exploration: its `date` is part of the seed. `values` are those of its clicks.
    """
    wanted, balanced = config.score, config.score.balanced
    floors = {name: parse_floor(name, given) for name, given in balanced.floors.items()}
    shown = [name for name in config.report.policies if has_chances or not POLICIES[name].needs_chances]
    return ScoreSettings(
        k=wanted.k,
        policy=wanted.policy,
        also=tuple(shown),
        n=wanted.n,
        min_score=wanted.min_score,
        min_chance=wanted.min_chance,
        exclude=tuple(wanted.exclude),
        exclude_by_group={group: tuple(names) for group, names in wanted.exclude_by_group.items()},
        floor=config.report.limits.starved_ratio if balanced.floor is None else balanced.floor,
        cap=balanced.cap,
        floors={name: floor.given for name, floor in floors.items() if date is None or floor.holds_on(date)},
        caps=dict(balanced.caps),
        explore=wanted.explore,
        min_audience=wanted.min_audience,
        seed=config.train.seed + (0 if date is None else date.toordinal() << 32),
        objective=wanted.objective,
        values={} if values is None else values.values,
        values_by_group={} if values is None else values.by_group,
    )


def night_values(night: Night, ingested: Ingested, date: dt.date | None = None) -> ValueTable | None:
    """Return what clicks are worth on a date, by default that of the night; None where the config names no table."""
    score = night.config.score
    if score.values is None:
        if score.objective == "value":
            raise BadInput("score.objective: value needs score.values, found null; name the table of values")
        return None
    path = lake_path(night.site, score.values)
    if not is_lake_file(path):
        raise BadInput(f"score.values must name a table of category,value, found none at {path}; write it or set null")
    return read_value_table(
        path, date or ingested.date, ingested.taxonomy.categories, USER_GROUPS, final_names(night.config.categories)
    )


def check_score(night: Night, ingested: Ingested) -> None:
    """Refuse settings of `score` that do not fit the categories, before anything is computed for them."""
    config, values = night.config, night_values(night, ingested)
    n_categories = len(ingested.taxonomy.categories)
    if config.score.k > n_categories:
        raise BadInput(f"score.k must be between 1 and the number of categories ({n_categories}), got {config.score.k}")
    try:
        score_settings(config, values=values).check(ingested.taxonomy.categories)
    except BadInput as error:
        is_bound = str(error).startswith(("floor", "cap", "the floor"))
        raise BadInput(f"score.balanced: {error}" if is_bound else f"score.{error}") from None


def score_users(
    night: Night, ingested: Ingested, features: Run, model: Run, chances: Run | None = None, *, rebuild: bool = False
) -> Run:
    """Write the qualifications of a night, and give them the name that readers know when they are whole.

    Those of a published night get it when they are published.
    """
    site, config = night.site, night.config
    check_score(night, ingested)
    if not has_same_values(model, config, ingested.taxonomy):
        raise BadInput(
            f"the model of {model_date(model)} was trained with another alpha, features.intensity or"
            f" features.normalize; run `ammrank train {shell_word(site.path)} --date {ingested.date}` first"
        )
    values = night_values(night, ingested)
    settings = score_settings(config, ingested.date, has_chances=chances is not None, values=values)
    previous = find_previous(site, ingested.date)
    inputs = {
        "features": features.digest,
        "model": model.digest,
        "previous": None if previous is None else previous.run.digest,
        **({} if chances is None else {"chances": chances.digest}),
    }
    opt_outs, listed = read_night_opt_outs(night, ingested)
    tombstones = _find_tombstones(site, previous)
    inputs |= listed | ({} if tombstones is None else {"tombstones": digest_file(tombstones)})
    published = _published_run(site, ingested.date, inputs, settings, rebuild)
    if published is not None:
        return published
    digest = _digest(inputs, settings)
    building = site.lists_in_work(ingested.date, digest)
    site.begin([building])
    window = _count_label_window(config, ingested) | _count_suppressed(night, ingested)
    window |= {} if values is None else values.to_json()
    opened = open_features(features.path)
    if not is_finished(building):
        counts = write_qualifications(
            night.client,
            load_site_model(model),
            opened,
            building,
            settings,
            chances=None if chances is None else load_chances(chances),
            opt_outs=opt_outs,
            previous=previous,
            clicks=window["clicks"],
            starved_below=config.report.limits.starved_ratio,
            tombstones=tombstones,
            progress=night.progress,
        )
        finish_qualifications(
            building,
            digest,
            opened,
            settings,
            counts,
            inputs=inputs,
            config={"date": str(ingested.date)},
            window=window,
        )
    if not site.is_published(ingested.date):
        building = site.name_lists(building, ingested.date)
    return open_run(building, KIND)


def _count_suppressed(night: Night, ingested: Ingested) -> dict[str, int]:
    """Return how many users `score.suppress` leaves out; nothing without such a file."""
    suppressed, _ = suppressed_users(night, ingested)
    return {"suppressed_users": sum(map(len, suppressed.values()))} if suppressed else {}


def _find_tombstones(site: Site, previous: Qualifications | None) -> Path | None:
    """Return the list of users who were forgotten while the previous night was active, None when there is none."""
    path = None if previous is None else tombstones_path(site.path, previous.manifest.date)
    return path if path is not None and is_file(path) else None


def read_night_opt_outs(night: Night, ingested: Ingested) -> tuple[OptOuts | None, dict[str, str]]:
    """Return the pairs that are never qualified, and what identifies them among the inputs of a run."""
    if night.config.score.opt_out is None:
        return None, {}
    path = lake_path(night.site, night.config.score.opt_out)
    if not is_lake_file(path):
        raise BadInput(f"score.opt_out must name a file of pairs, found none at {path}; write it or set null")
    names_now = final_names(night.config.categories)  # whoever keeps the file may have the former ones
    opt_outs = read_opt_outs(path, ingested.id_kind, ingested.taxonomy.categories, names_now)
    return opt_outs, {"opt_out": digest_lake_file(path)}


def describe_opt_outs(scored: Run) -> dict[str, str]:
    """Return what a night tells about opt-outs of users it does not know; nothing when there are none."""
    n_unknown = QualificationsManifest.of(scored).unknown_opt_outs
    users = "1 user" if n_unknown == 1 else f"{n_unknown:,} users"
    said = f"of {users} of score.opt_out nothing is known here; the pairs count for nothing"
    return {"opt-outs": said} if n_unknown else {}


def describe_exploration(scored: Run) -> dict[str, str]:
    """Return what a night tells about drawn slots, also when there are none to draw; nothing without exploration."""
    explored = QualificationsManifest.of(scored).explored
    return {} if explored is None else {"exploration": describe_draws(explored["slots"], len(explored["targets"]))}


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
            found = open_run(final, KIND)
        except DamagedStore:
            return None
        return found if found.digest == _digest(inputs, settings) else None
    found = open_run(final, KIND)
    # What was the night before when they were written stays so: neither a back-fill nor retention changes the past.
    stones = {name: digest for name, digest in QualificationsManifest.of(found).inputs.items() if name == "tombstones"}
    before = {"previous": QualificationsManifest.of(found).previous, **stones}
    now = {name: digest for name, digest in inputs.items() if name != "tombstones"}
    if found.digest != _digest({**now, **before}, settings):
        raise BadInput(
            f"the qualifications of {date} were written {_other_settings(found, settings) or 'from other input'};"
            f" write them again with `ammrank nightly {shell_word(site.path)} --date {date} --rebuild`"
        )
    return found


def _other_settings(published: Run, settings: ScoreSettings) -> str | None:
    """Return with which settings qualifications were written that now have other values; None when all are the same."""
    before = QualificationsManifest.of(published).settings
    now = json.loads(json.dumps(settings.to_json()))
    other = [name for name, value in now.items() if name in before and before[name] != value]
    return f"with another score.{', score.'.join(sorted(other))}" if other else None


def _digest(inputs: Mapping[str, Any], settings: ScoreSettings) -> str:
    return digest_of([dict(inputs), settings.to_json()])


def _count_label_window(config: Config, ingested: Ingested) -> dict[str, Any]:
    """Return clicks by category code, and events by what became of them, of the days of the label window.

    A user who clicks a category counts once a day, so that no single one makes its share. As long as the window has
    a day of an earlier version, which counted events only, events count.
    """
    first = ingested.date - dt.timedelta(config.label.days - 1)
    runs = [run for day, run in ingested.days.items() if run is not None and day >= first]
    by_events = any(DayManifest.of(run).clickers is None for run in runs)
    clicks = [0] * len(ingested.taxonomy.categories)
    events: Counter[str] = Counter()
    for run in runs:
        day = DayManifest.of(run)
        clicked = day.clicks if by_events or day.clickers is None else day.clickers
        for code, count in recode_counts(run, clicked).items():
            clicks[code] += count
        events.update(day.events_by_outcome)
    return {"clicks": clicks, "events_of_label_window": dict(sorted(events.items()))}

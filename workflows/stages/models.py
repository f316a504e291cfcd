"""Know the models of a site and the verdicts on them: what they were trained on, which is published, what is in use."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ammrank_dask.model.saved import RankModel, load_model
from ammrank_dask.scoring.qualifications import Qualifications, open_qualifications
from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.objects.folders import remove
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import Verdict, read_verdict, rejected_models, verdict_dates
from ammrank_dask.storage.store.manifests import ModelManifest, QualificationsManifest
from ammrank_dask.storage.store.models import model_files
from ammrank_dask.storage.store.parts import check_files
from ammrank_dask.storage.store.qualifications import KIND
from ammrank_dask.storage.store.registry import MODEL
from ammrank_dask.storage.store.runs import Run, finish_run, is_finished, open_run
from ammrank_dask.training.new_categories import bring_model, kind_of_column, rename_model, score_by_siblings
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.settings import feature_settings
from ammrank_dask.workflows.stages.categories import shorten

MODEL_KIND = MODEL.kind


logger = logging.getLogger(__name__)


def load_site_model(run: Run) -> RankModel:
    """Load the model of a run, checked also against its manifest."""
    check_files(run.path, run.files)
    return load_model(run.path)


def keep_model(
    site: Site,
    path: Path,
    digest: str,
    model: RankModel,
    *,
    config: Mapping[str, Any],
    inputs: Mapping[str, Any],
    counts: Mapping[str, Any],
) -> Run:
    """Write a model as a run."""
    site.begin([path])
    remove(path)  # of an attempt that was ended
    model.save(path)
    files = model_files(path)
    return finish_run(path, MODEL_KIND, digest, [], config=config, inputs=inputs, counts=counts, files=files)


def find_run(site: Site, digest: str | None) -> Run | None:
    """Return the model with a digest, None when the site has it no longer."""
    models = [open_run(path, MODEL_KIND) for path in site.finished_runs("models")]
    return next((model for model in models if model.digest == digest), None)


def keep_simple_model(night: Night, challenger: Run, model: RankModel, name: str) -> Run:
    """Keep a model made from a challenger as a run of its own; trainings do not begin with it."""
    digest = digest_of([challenger.digest, name])
    path = night.site.run("models", night.date, digest)
    if is_finished(path):
        return open_run(path, MODEL_KIND)
    trained = ModelManifest.of(challenger)
    config = {**trained.settings, "simple": name}
    counts = {"users": trained.n_users, "planes": 0, "training": None, "tuning": None}
    return keep_model(night.site, path, digest, model, config=config, inputs=trained.inputs, counts=counts)


def bring_to_night(night: Night, model: Run, taxonomy: Taxonomy) -> Run:
    """Return a model with the categories of tonight: itself, or one made from it, kept as a run of its own.

    Columns and categories are matched by name, renamed ones by their new names. A model of other values or other kinds
    of columns, or without a category in common, is returned as it is: it cannot score.
    """
    config = night.config
    if fits(model, config, taxonomy) or not has_same_values(model, config, taxonomy):
        return model
    identity = model_identity(config, taxonomy)
    siblings = {name: taxonomy.siblings_of(name) for name in taxonomy.categories}
    digest = digest_of([model.digest, identity, sorted(taxonomy.former_names), taxonomy.parents])
    path = night.site.run("models", night.date, digest)
    if is_finished(path):
        return open_run(path, MODEL_KIND)
    fitted = load_site_model(model)
    rename_model(fitted, taxonomy.name_now)
    columns = feature_settings(config, taxonomy).columns
    chosen = [columns.names[number] for number in columns.chosen(fitted.variant_)]
    is_alike = {kind_of_column(name) for name in fitted.columns_ or ()} == {kind_of_column(name) for name in chosen}
    if not is_alike or not set(fitted.categories_ or ()) & set(taxonomy.categories):
        return model
    earlier = [taxonomy.name_now(name) for name in ModelManifest.of(model).new_categories]
    brought, new = bring_model(fitted, chosen, taxonomy.categories, siblings)
    new = [name for name in taxonomy.categories if name in {*new, *earlier}]
    brought = score_by_siblings(brought, new, siblings)
    trained = ModelManifest.of(model)
    return keep_model(
        night.site,
        path,
        digest,
        brought,
        config={**trained.settings, **identity},
        inputs={**trained.inputs, "brought_from": model.digest},
        counts={**trained.counts, "planes": int(brought.n_planes_.sum()), "new_categories": new},
    )


def find_model(site: Site, date: dt.date) -> Run | None:
    """Return the newest model that is not younger than a date, and that the gate did not turn down."""
    models = [open_run(path, MODEL_KIND) for path in site.finished_runs("models")]
    rejected = rejected_models(site)
    usable = [run for run in models if model_date(run) <= str(date) and run.digest not in rejected]
    return max(usable, key=model_date, default=None)


def model_identity(config: Config, taxonomy: Taxonomy) -> dict[str, str]:
    """Return what identifies the features of a model: their columns, and the meaning of their values."""
    settings = feature_settings(config, taxonomy)
    return {
        "columns": settings.columns.digest,
        "values": digest_of([settings.alpha, settings.intensity, settings.normalize]),
    }


def fits(run: Run, config: Config, taxonomy: Taxonomy) -> bool:
    """Return whether a model was trained on features of these columns, with the same meaning."""
    manifest, identity = ModelManifest.of(run), model_identity(config, taxonomy)
    return (manifest.columns_digest, manifest.values_digest) == (identity["columns"], identity["values"])


def has_same_values(run: Run, config: Config, taxonomy: Taxonomy) -> bool:
    """Return whether values mean the same to a model: columns and categories can be matched by name, values cannot."""
    return ModelManifest.of(run).values_digest == model_identity(config, taxonomy)["values"]


def describe_new_categories(run: Run) -> dict[str, str]:
    """Return what a night tells of categories that its model scores by others; nothing when there are none."""
    names = ModelManifest.of(run).new_categories
    return {"scored by the lowest prior beside them": shorten(names)} if names else {}


def model_date(run: Run) -> str:
    """Return the date that a model was trained for."""
    return ModelManifest.of(run).date


def find_previous(site: Site, date: dt.date) -> Qualifications | None:
    """Return the qualifications of the last night before a date that was published, None when there are none."""
    nights = [site.qualifications_folder(night) for night in site.published_nights() if night < date]
    kept = [path for path in nights if is_finished(path)]
    return open_qualifications(kept[-1]) if kept else None


def runs_in_use(site: Site, folder: str, role: str, gone: Collection[Path] = ()) -> list[Path]:
    """Return the runs of a folder that kept qualifications were written from; all runs if a manifest is damaged.

    Parameters
    ----------
    gone
        Qualifications that are about to be removed.
    folder, role
        `models` and `model`, or `chances` for both: where they are, and their name among the inputs.
    """
    runs = site.finished_runs(folder)
    try:
        nights = [path for path in site.scored_nights() if path not in gone]
        used = {QualificationsManifest.of(open_run(path, KIND)).inputs.get(role) for path in nights}
        return [path for path in runs if open_run(path).digest in used]
    except DamagedStore as error:
        logger.warning("all %s are kept: %s", folder, error)
        return runs


def find_champion(site: Site, date: dt.date) -> Run | None:
    """Return the model that scored the last published night before a date, None before the first one.

    A model that `ammrank train` made by hand is none: it scores only when `ammrank score` is told to, or when a night
    trains the same and it passes the promotion check.
    """
    before = find_previous(site, date)
    return None if before is None else _model_of(site, before.path)


def find_published_model(site: Site, date: dt.date) -> Run | None:
    """Return the model that scored the night of a date, if that is published: a rerun of it decides nothing anew."""
    folder = site.qualifications_folder(date)
    return _model_of(site, folder) if site.is_published(date) and is_finished(folder) else None


def _model_of(site: Site, qualifications: Path) -> Run | None:
    return find_run(site, QualificationsManifest.of(open_run(qualifications)).model)


def find_verdict(site: Site, date: dt.date, model: str) -> Verdict | None:
    """Return what the gate decided at a date, None when another model scored than it chose.

    Such a verdict is left from an earlier try with other input, in which there was something to compare.

    Parameters
    ----------
    model
        The digest of the model that scored.
    """
    verdict = read_verdict(site, date)
    return verdict if verdict is not None and verdict.chosen == model else None


def find_forward(site: Site, date: dt.date, model: Run | None) -> dict[str, Any] | None:
    """Return how sources of lists compared when the last verdict chose a model, and the `date` of that verdict.

    None when no verdict up to the date chose it, or when that compared no sources. Nights that do not train are scored
    by a model that an earlier verdict chose, or by one that was brought from it to new categories.
    """
    digests = _origins(site, model)
    for judged in sorted((day for day in verdict_dates(site) if day <= date), reverse=True):
        verdict = read_verdict(site, judged)
        if verdict is not None and verdict.chosen in digests:
            forward = verdict.facts.get("forward")
            return None if forward is None else {"date": str(judged), **forward}
    return None


def _origins(site: Site, model: Run | None) -> set[str]:
    """Return the digests of a model and of those that it was brought from."""
    digests = set()
    while model is not None:
        digests.add(model.digest)
        before = ModelManifest.of(model).inputs.get("brought_from")
        if before is None:
            break
        digests.add(str(before))
        model = find_run(site, str(before))
    return digests

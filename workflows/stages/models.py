"""Know the models of a site: load them checked, and tell which features they were trained on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ammrank_dask.model.saved import RankModel, load_model
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.objects.folders import remove
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import rejected_models
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.storage.store.models import model_files
from ammrank_dask.storage.store.parts import check_files
from ammrank_dask.storage.store.registry import MODEL
from ammrank_dask.storage.store.runs import Run, finish_run, is_finished, open_run
from ammrank_dask.training.new_categories import bring_model, kind_of_column, rename_model, score_by_siblings
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.session.settings import feature_settings
from ammrank_dask.workflows.stages.categories import shorten

MODEL_KIND = MODEL.kind


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

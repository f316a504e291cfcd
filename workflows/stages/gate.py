"""Let a new model score only when it beats popularity and own history and is no worse than the one in use."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from ammrank_dask.features.store import Features, open_features
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.simple import own_model, popularity_model
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import Verdict, read_verdict, verdict_dates, write_verdict
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.training.forward import SIMPLE
from ammrank_dask.training.gate import CHALLENGER, CHAMPION, POPULARITY, GateResult, compare_models, is_no_worse
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.forward import look_forward, simple_sources
from ammrank_dask.workflows.stages.ingest import Ingested
from ammrank_dask.workflows.stages.models import find_run, fits, keep_simple_model, load_site_model, model_date


def choose_model(
    night: Night, ingested: Ingested, features: Run, champion: Run | None, challenger: Run
) -> tuple[Run, str]:
    """Return the model that scores, and why as a sentence; what was measured is kept as the verdict of the date.

    The challenger must rank the gate users better than popularity does, and no worse than the champion, if there is one
    of the same categories and features. A challenger that does not beat popularity is replaced by the champion; without
    one, by its own prior and own term, or by popularity itself.
    """
    config = night.config
    rival = champion if champion is not None and fits(champion, config, ingested.taxonomy) else None
    settings = {"k": config.score.k, **config.gate.model_dump()}
    verdict = read_verdict(night.site, night.date)
    judged = (None if rival is None else rival.digest, challenger.digest, settings)
    if verdict is not None and (verdict.champion, verdict.challenger, verdict.facts["settings"]) == judged:
        chosen = find_run(night.site, verdict.chosen)
        if chosen is not None:
            return chosen, verdict.facts["reason"]
    models = {CHALLENGER: challenger} | ({} if rival is None else {CHAMPION: rival})
    opened = open_features(features.path)
    paths = {name: run.path for name, run in models.items()}
    results = compare_models(night.client, opened, paths, k=config.score.k, progress=night.progress)
    accepted, reason = _judge(config, results, champion, rival)
    chosen = challenger if accepted else rival
    if chosen is None:
        chosen, instead = _fall_back(night, opened, challenger, results[POPULARITY])
        reason += f"; {instead} instead"
    forward, trained = None, load_site_model(challenger)
    if config.gate.forward and isinstance(trained, AMMRankPlus):
        forward = look_forward(night, ingested, features, rival, trained)
        reason = f"{forward.reason}; {reason}"
        if forward.source in SIMPLE:  # with all clicks that the new model has seen
            simple = simple_sources(config, trained, ModelManifest.of(challenger).n_users)[forward.source]
            chosen = keep_simple_model(night, challenger, simple, forward.source)
        elif forward.source == CHAMPION and rival is not None:
            chosen, accepted = rival, False
    facts = {
        "accepted": accepted,
        "reason": reason,
        "settings": settings,
        "chosen": chosen.digest,
        **{name: {"date": model_date(run), **results[name].to_json()} for name, run in models.items()},
        POPULARITY: results[POPULARITY].to_json(),
        "forward": None if forward is None else forward.to_json(),
    }
    write_verdict(night.site, night.date, Verdict(challenger.digest, judged[0], accepted, facts), settings)
    return chosen, reason


def is_due(night: Night, champion: Run | None, ingested: Ingested) -> bool:
    """Return whether there is no model in use, it is of other features, or the last training is long enough ago.

    The first clicks on a new category since the last training make one due, too.
    A training whose model the gate turned down counts. Only what was known before this night decides, so that a rerun
    decides alike.
    """
    if champion is None:
        return True
    if not fits(champion, night.config, ingested.taxonomy):
        return True
    last = last_training(night.site, night.date, champion)
    if (night.date - last).days >= night.config.train.every_nights:
        return True
    first_clicks = [ingested.first_click(name) for name in ModelManifest.of(champion).new_categories]
    return any(day is not None and day > last for day in first_clicks)


def last_training(site: Site, date: dt.date, champion: Run) -> dt.date:
    """Return when a model was trained last before the night of a date, also if the gate turned it down."""
    judged = [day for day in verdict_dates(site) if day < date]
    return max([dt.date.fromisoformat(model_date(champion)), *judged])


def _judge(
    config: Config, results: Mapping[str, GateResult], champion: Run | None, rival: Run | None
) -> tuple[bool, str]:
    """Return whether the challenger scores, and why."""
    new, popularity = results[CHALLENGER], results[POPULARITY]
    users = f"{new.n_users:,} gate users"
    alone = "" if rival is not None else "no model before it: "
    if champion is not None and rival is None:
        alone = f"the model of {model_date(champion)} has other categories or features and was not compared: "
    if new.n_users < config.gate.min_users:
        return True, f"{alone}{users} are fewer than gate.min_users {config.gate.min_users}; nothing was decided"
    error = f"disagreement error {new.error:.4f}"
    if new.error >= popularity.error:
        outcome = "turned down" if rival is None else f"the model of {model_date(rival)} stays"
        return False, f"{outcome}: {error} is not below that of popularity, {popularity.error:.4f}, {users}"
    beside = f"popularity {popularity.error:.4f}"
    if rival is None:
        return True, f"{alone}{error}, {beside}, {users}"
    old = results[CHAMPION]
    accepted = is_no_worse(new, old, config.gate.tolerance)
    return accepted, (
        f"{'passed' if accepted else f'the model of {model_date(rival)} stays'}: {error} against {old.error:.4f},"
        f" {beside}, precision at {config.score.k} {new.precision:.4f} against {old.precision:.4f}, {users},"
        f" tolerance {config.gate.tolerance:.1%}"
    )


def _fall_back(night: Night, features: Features, challenger: Run, popularity: GateResult) -> tuple[Run, str]:
    """Return a model without planes that ranks no worse than popularity, and its name."""
    model = load_site_model(challenger)
    if isinstance(model, AMMRankPlus) and model.basis_.own.n_kinds:
        run = keep_simple_model(night, challenger, own_model(model), "own")
        measured = compare_models(night.client, features, {CHALLENGER: run.path}, k=night.config.score.k)
        if measured[CHALLENGER].error < popularity.error:
            return run, f"prior and own term ({measured[CHALLENGER].error:.4f}) score"
    n_users = ModelManifest.of(challenger).n_users
    return keep_simple_model(night, challenger, popularity_model(model, n_users), POPULARITY), "popularity scores"

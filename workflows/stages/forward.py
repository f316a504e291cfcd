"""Decide by the last label window whether a new model, the one in use or a user's own history makes the lists."""

from __future__ import annotations

import datetime as dt
import inspect
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ammrank_dask.features.store import open_features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.model.saved import RankModel
from ammrank_dask.model.search import CLICKERS_PER_PLANE, KAPPAS, Tuning, make_grid
from ammrank_dask.model.simple import own_history_model, own_recent_model, popularity_model
from ammrank_dask.scoring.qualifications import NightPart, open_qualifications, parts_in
from ammrank_dask.storage.errors import TooFewUsers
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.storage.store.qualifications import qualification_parts
from ammrank_dask.storage.store.runs import Run, is_finished
from ammrank_dask.training.forward import (
    CHAMPION,
    MODEL,
    OWN_HISTORY,
    OWN_RECENT,
    POPULARITY,
    ForwardResult,
    compare_forward,
)
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.ingest import Ingested
from ammrank_dask.workflows.stages.models import load_site_model
from ammrank_dask.workflows.stages.windows import MIN_USERS, earlier_windows, renames_since, users_left_out


@dataclass(frozen=True)
class Forward:
    """Which source makes the lists, why as a sentence, and what was measured; None where nothing could be.

    `drift` compares own history that forgets within weeks with own history.
    """

    source: str
    reason: str
    result: ForwardResult | None = None
    drift: ForwardResult | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a verdict keeps it."""
        measured = {} if self.result is None else self.result.to_json()
        found = {"source": self.source, "reason": self.reason, **measured}
        if self.drift is not None:
            gain, error = self.drift.gain(OWN_HISTORY)
            found["drift"] = {"hits": self.drift.mean(OWN_RECENT), "gain": gain, "standard_error": error}
        return found


def look_forward(night: Night, ingested: Ingested, features: Run, champion: Run | None) -> Forward:
    """Train as nights do, but without the last label window, and compare the lists with the clicks in it.

    All users may judge, because the clicks are later than all that was learned. The model in use stays if its lists
    have more hits than those of the new one, by more than a standard error; and whichever it is makes the lists if they
    have more hits than those of own history, by more than a standard error. The lists that were published at the
    beginning of the window are measured beside them.

    Parameters
    ----------
    features
        Those at the lag date, with the clicks since.
    champion
        The model in use, of the same features; None for none.
    """
    least = night.config.gate.min_users
    earlier = earlier_windows(night, ingested)
    if not earlier:
        return Forward(OWN_HISTORY, f"own history scores: {_why_untried(night, ingested)}")
    try:
        model = train_before(night, ingested, features, earlier)
    except TooFewUsers as too_few:
        return Forward(OWN_HISTORY, f"own history scores: {too_few}")
    n_rows = earlier[0].n_rows
    own_history = own_history_model(model, n_rows)
    if own_history is None:
        return Forward(MODEL, "the model scores: the features have no column that is a category's own")
    sources: dict[str, RankModel] = {
        MODEL: model,
        OWN_HISTORY: own_history,
        POPULARITY: popularity_model(model, n_rows),
    }
    rival = None if champion is None else champion_before(night, ingested, features, earlier, champion)
    if rival is not None:
        sources[CHAMPION] = rival
    result = measure_sources(night, features, sources, published=_lists_before(night, ingested))
    users = f"{result.n_users:,} users"
    if result.n_users < least:
        return Forward(OWN_HISTORY, f"own history scores: {users} to try a model on, gate.min_users is {least}", result)
    source, sentence = _choose_source(night, ingested, features, sources, result)
    own_recent = own_recent_model(model, n_rows, night.config.alpha)
    if own_recent is None or night.config.features.intensity != "log1p":
        return Forward(source, sentence, result)
    drift = measure_sources(night, features, {OWN_RECENT: own_recent, OWN_HISTORY: own_history})
    return Forward(source, sentence, result, drift)


def _choose_source(
    night: Night, ingested: Ingested, features: Run, sources: Mapping[str, RankModel], result: ForwardResult
) -> tuple[str, str]:
    """Return which source makes the lists, and why as a sentence."""
    best, about = MODEL, ""
    gain, error = result.gain(OWN_HISTORY)
    if CHAMPION in sources:
        ahead, by = result.gain(CHAMPION)
        about = f"; those of the one in use {result.mean(CHAMPION):.3f} (the new one {ahead:+.3f} ± {by:.3f})"
        if -ahead > by:
            best, about = CHAMPION, f"; those of the new one {result.mean(MODEL):.3f} ({ahead:+.3f} ± {by:.3f})"
            beside = measure_sources(night, features, {name: sources[name] for name in (CHAMPION, OWN_HISTORY)})
            gain, error = beside.gain(OWN_HISTORY)
    source = best if gain > error else OWN_HISTORY
    first = ingested.date - dt.timedelta(night.config.label.days - 1)
    who = {MODEL: "the model", CHAMPION: "the model in use", OWN_HISTORY: "own history"}[source]
    whose = "a model that ends before" if best == MODEL else "the model in use as it was before"
    return source, (
        f"{who} scores: of {result.k} categories users clicked"
        f" {result.mean(best):.3f} from {first} to {ingested.date} in the lists of {whose}, and"
        f" {result.mean(OWN_HISTORY):.3f} in those of own history"
        f" ({gain:+.3f} ± {error:.3f}, {result.n_users:,} users){about}"
    )


def champion_before(
    night: Night, ingested: Ingested, features: Run, earlier: list[Run], champion: Run
) -> RankModel | None:
    """Return the model in use as of the beginning of the last label window; None where that is no model of its own.

    A model of that date or older is taken as it is. A younger one has learned from clicks in the window: it is trained
    again without them, with its own parameters. Where these are those of the night, that is the new model.
    """
    from ammrank_dask.training.train import train

    manifest = ModelManifest.of(champion)
    if manifest.simple is not None:
        return None
    if dt.date.fromisoformat(manifest.date) <= ingested.date - dt.timedelta(night.config.label.days):
        return load_site_model(champion)
    now = night.config.train.parameters()
    known = inspect.signature(train).parameters
    then = {"model": AMMRank.method} | {name: value for name, value in manifest.settings.items() if name in known}
    return None if then == now else train_before(night, ingested, features, earlier, then)


def tune_forward(night: Night, ingested: Ingested, features: Run, earlier: list[Run]) -> Tuning:
    """Return what κ and the clickers that a plane needs are worth in the last label window.

    Each setting is trained as `look_forward` trains, on the windows before, and all users judge its lists. The first
    one is that of the config.
    """
    given = night.config.train.parameters()
    names = ("kappa", "clickers_per_plane")
    usual = {name: given.get(name, getattr(AMMRankPlus, name)) for name in names}
    grid = make_grid(kappa=KAPPAS, clickers_per_plane=CLICKERS_PER_PLANE)
    settings = [usual, *(setting for setting in grid if setting != usual)]
    models = {
        str(number): train_before(night, ingested, features, earlier, given | setting)
        for number, setting in enumerate(settings)
    }
    return measure_sources(night, features, models).tuning(settings)


def _lists_before(night: Night, ingested: Ingested) -> tuple[Sequence[NightPart], Sequence[str]] | None:
    """Return the lists that were published at the beginning of the last label window; None where they are not kept."""
    date = ingested.date - dt.timedelta(night.config.label.days)
    folder = night.site.qualifications_folder(date)
    if not night.site.is_published(date) or not is_finished(folder):
        return None
    past = open_qualifications(folder)
    parts = parts_in(qualification_parts(past.run), night.config.partitions)
    return parts, ingested.taxonomy.names_in(past.categories)


def _why_untried(night: Night, ingested: Ingested) -> str:
    """Return why there is no window to train a model on that ends before the last one."""
    days = night.config.label.days
    if night.config.train.n_windows == 1:
        return "a model is tried on earlier label windows, and train.windows is 1; set it to 2 or more"
    if len(ingested.history) < 4 * days:
        return f"a model is tried once there are {4 * days} days of events"
    return f"no earlier label window that the site has kept has {MIN_USERS} users who clicked"


def train_before(
    night: Night,
    ingested: Ingested,
    features: Run,
    earlier: list[Run],
    parameters: Mapping[str, Any] | None = None,
) -> RankModel:
    """Return the model that a night before the last label window would have trained, from the windows before it.

    Parameters
    ----------
    features
        Those at the lag date, that the model will score; it learns nothing from their clicks.
    earlier
        Windows that ended by then, the newest first.
    parameters
        Keywords of `train`; None for those of the night.
    """
    from ammrank_dask.training.train import train

    given = night.config.train.parameters() if parameters is None else parameters
    newest, *others = [open_features(run.path) for run in earlier]
    others = others if given["model"] == AMMRankPlus.method else []  # the paper's model learns from one window
    return train(
        newest, client=night.client, earlier=others, tonight=open_features(features.path),
        renames=renames_since(earlier, ingested), left_out=users_left_out(night, ingested),
        scratch=night.site.scratch, progress=night.progress, **given,
    )  # fmt: skip


def measure_sources(
    night: Night,
    features: Run,
    sources: Mapping[str, RankingEstimator],
    published: tuple[Sequence[NightPart], Sequence[str]] | None = None,
) -> ForwardResult:
    """Return how the lists of sources compare with the clicks after the features, all beside the first source."""
    folder = night.site.scratch / "forward"
    shutil.rmtree(folder, ignore_errors=True)
    given: dict[str, Path | RankingEstimator] = dict(sources)
    for name, source in sources.items():
        if isinstance(source, RankModel):
            given[name] = folder / name
            source.save(folder / name)
    opened = open_features(features.path)
    result = compare_forward(
        night.client, opened, given, k=night.config.score.k, published=published, progress=night.progress
    )
    shutil.rmtree(folder, ignore_errors=True)
    return result

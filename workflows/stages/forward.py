"""Decide by the last label window whether a new model, the one in use or a simple source makes the lists."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
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
from ammrank_dask.scoring.settings import ClickValues
from ammrank_dask.storage.errors import TooFewUsers
from ammrank_dask.storage.objects.folders import remove
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.storage.store.qualifications import qualification_parts
from ammrank_dask.storage.store.runs import Run, is_finished
from ammrank_dask.training.forward import (
    CHAMPION,
    ENOUGH_USERS,
    MODEL,
    NDCG,
    OWN_HISTORY,
    OWN_POPULAR,
    OWN_RECENT,
    POPULARITY,
    SIMPLE,
    ForwardResult,
    compare_forward,
)
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import MIN_USERS, earlier_windows, renames_since, users_left_out
from ammrank_dask.workflows.stages.ingest import Ingested
from ammrank_dask.workflows.stages.models import load_site_model

_NAMES = {MODEL: "the model", CHAMPION: "the model in use", **SIMPLE}


@dataclass(frozen=True)
class Forward:
    """Which source makes the lists, why as a sentence, and what was measured; None where nothing could be.

    `beside` is the simple source that a model has to be ahead of.
    """

    source: str
    reason: str
    result: ForwardResult | None = None
    beside: str = OWN_HISTORY

    def to_json(self) -> dict[str, Any]:
        """Return it as a verdict keeps it; `drift` is what own history gains if it forgets within weeks."""
        found: dict[str, Any] = {"source": self.source, "reason": self.reason}
        if self.result is None:
            return found
        found |= {"beside": self.beside, **self.result.to_json()}
        if OWN_RECENT in self.result.sums:
            gain, error = self.result.gain(OWN_POPULAR, of=OWN_RECENT)
            found["drift"] = {"hits": self.result.mean(OWN_RECENT), "gain": gain, "standard_error": error}
        return found


def look_forward(
    night: Night, ingested: Ingested, features: Run, champion: Run | None, challenger: RankModel
) -> Forward:
    """Train as nights do, but without the last label window, and compare the lists with the clicks in it.

    All users may judge, because the clicks are later than all that was learned; of large sites `ENOUGH_USERS` do.
    Another simple source replaces own history if its lists have more hits, and the model in use the new one, each by
    more than a standard error; and the model makes the lists if they have more hits than those of the simple source, by
    more than a standard error. Where no model can be tried, the simple source makes them. The lists that were published
    at the beginning of the window are measured beside them.

    Parameters
    ----------
    features
        Those at the lag date, with the clicks since.
    champion
        The model in use, of the same features; None for none.
    challenger
        The new model, which has seen the clicks: it tells columns and categories.
    """
    earlier, model = earlier_windows(night, ingested), None
    why = "" if earlier else _why_untried(night, ingested)
    try:
        model = train_before(night, ingested, features, earlier) if earlier else None
    except TooFewUsers as too_few:
        why = str(too_few)
    known = open_features(features.path).manifest.clickers
    assert known is not None  # all partitions are in these features
    n_rows, *clicks = known[0]  # of the window before: what is popular in this one was not known
    simple = simple_sources(night.config, challenger if model is None else model, n_rows, clicks)
    days = night.config.label.days
    if model is None and 2 * (len(ingested.history) - days) < days:
        # Own history knows so much more tonight than before the window that this would say little of it.
        source = next(iter(simple))
        return Forward(source, f"{_NAMES[source]} scores: {why}")
    sources = simple if model is None else {MODEL: model, **simple}
    if model is not None and champion is not None:
        rival = champion_before(night, ingested, features, earlier, champion)
        sources |= {} if rival is None else {CHAMPION: rival}
    published = _lists_before(night, ingested)
    result = measure_sources(night, features, sources, published, enough_users=ENOUGH_USERS)
    return _choose_source(night, ingested, result, why)


def simple_sources(
    config: Config, model: RankModel, n_rows: int, clicks: Sequence[int] | None = None
) -> dict[str, RankModel]:
    """Return sources that are not trained, by name in the order of `SIMPLE`; without own columns only popularity.

    Parameters
    ----------
    model
        Tells columns and categories.
    n_rows, clicks
        Popularity, as in `popularity_model`.
    """
    sources: dict[str, RankModel | None] = {
        OWN_HISTORY: own_history_model(model, n_rows, clicks),
        OWN_POPULAR: own_history_model(model, n_rows, clicks, with_popularity=True),
        OWN_RECENT: None,
        POPULARITY: popularity_model(model, n_rows, clicks),
    }
    if config.features.intensity == "log1p":  # of logarithms a constant per day is a half-life
        sources[OWN_RECENT] = own_recent_model(model, n_rows, config.alpha, clicks)
    return {name: source for name, source in sources.items() if source is not None}


def _choose_source(night: Night, ingested: Ingested, result: ForwardResult, why: str) -> Forward:
    """Return which source makes the lists; `why` no model was tried, if none was."""
    users, least = f"{result.n_users:,} users", night.config.gate.min_users
    simple = next(name for name in SIMPLE if name in result.sums)
    if result.n_users < least:
        why = why or f"{users} to try a model on, gate.min_users is {least}"
        return Forward(simple, f"{_NAMES[simple]} scores: {why}", result, simple)
    ahead = [name for name in SIMPLE if name in result.sums and result.is_ahead(name, simple)]
    if ahead:
        usual, simple = simple, max(ahead, key=result.mean)
        gain, error = result.gain(usual, of=simple)
        why += f"; of {result.k} categories users clicked {result.mean(simple):.3f} in its lists,"
        why += f" {result.mean(usual):.3f} in those of {_NAMES[usual]} ({gain:+.3f} ± {error:.3f}, {users})"
    if MODEL not in result.sums:
        return Forward(simple, f"{_NAMES[simple]} scores: {why}", result, simple)
    best, about = MODEL, ""
    if CHAMPION in result.sums:
        best = CHAMPION if result.is_ahead(CHAMPION, MODEL) else MODEL
        other = MODEL if best == CHAMPION else CHAMPION
        gain, error = result.gain(CHAMPION)
        about = f"; those of {'the new one' if best == CHAMPION else 'the one in use'} {result.mean(other):.3f}"
        about += f" ({'' if best == CHAMPION else 'the new one '}{gain:+.3f} ± {error:.3f})"
    source = best if result.is_ahead(best, simple) else simple
    first = ingested.date - dt.timedelta(night.config.label.days - 1)
    whose = "a model that ends before" if best == MODEL else "the model in use as it was before"
    gain, error = result.gain(simple, of=best)
    sentence = (
        f"{_NAMES[source]} scores: of {result.k} categories users clicked"
        f" {result.mean(best):.3f} from {first} to {ingested.date} in the lists of {whose}, and"
        f" {result.mean(simple):.3f} in those of {_NAMES[simple]} ({gain:+.3f} ± {error:.3f}, {users}){about}"
    )
    if not result.differs(best, simple):
        gain, error = result.gain(simple, NDCG, of=best)
        sentence += f"; NDCG decides: {result.mean(best, NDCG):.4f} ({gain:+.4f} ± {error:.4f})"
    return Forward(source, sentence, result, simple)


def champion_before(
    night: Night, ingested: Ingested, features: Run, earlier: list[Run], champion: Run
) -> RankModel | None:
    """Return the model in use as of the beginning of the last label window; None where that is no model of its own.

    A model of that date or older is taken as it is. A younger one has learned from clicks in the window: it is trained
    again without them, with its own parameters. Where these are those of the night, that is the new model.
    """
    from ammrank_dask.training.train import TrainSettings

    manifest = ModelManifest.of(champion)
    if manifest.simple is not None:
        return None
    if dt.date.fromisoformat(manifest.date) <= ingested.date - dt.timedelta(night.config.label.days):
        return load_site_model(champion)
    now = night.config.train.parameters()
    known = {field.name for field in fields(TrainSettings)}
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
    return measure_sources(night, features, models, enough_users=ENOUGH_USERS).tuning(settings)


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
    values: ClickValues | None = None,
    enough_users: int | None = None,
) -> ForwardResult:
    """Return how the lists of sources compare with the clicks after the features, all beside the first source."""
    folder = night.site.scratch / "forward"
    remove(folder)
    given: dict[str, Path | RankingEstimator] = dict(sources)
    for name, source in sources.items():
        if isinstance(source, RankModel):
            given[name] = folder / name
            source.save(folder / name)
    opened = open_features(features.path)
    result = compare_forward(
        night.client, opened, given, k=night.config.score.k, published=published,
        values=None if values is None else values.per_click, enough_users=enough_users, progress=night.progress,
    )  # fmt: skip
    remove(folder)
    return result

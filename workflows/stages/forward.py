"""Decide by the last label window whether a model or a user's own history makes the lists of a night."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ammrank_dask.features.store import open_features
from ammrank_dask.model.estimator import RankingEstimator
from ammrank_dask.model.saved import RankModel
from ammrank_dask.model.simple import own_history_model, own_recent_model, popularity_model
from ammrank_dask.storage.errors import TooFewUsers
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.training.forward import MODEL, OWN_HISTORY, OWN_RECENT, POPULARITY, ForwardResult, compare_forward
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.ingest import Ingested
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


def look_forward(night: Night, ingested: Ingested, features: Run) -> Forward:
    """Train as nights do, but without the last label window, and hold the lists against the clicks in it.

    All users may judge, because the clicks are later than all that was learned. The model scores if its lists have
    more hits than those of own history, by more than a standard error.
    """
    least, days = night.config.gate.min_users, night.config.label.days
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
    sources = {MODEL: model, OWN_HISTORY: own_history, POPULARITY: popularity_model(model, n_rows)}
    result = measure_sources(night, features, sources)
    users = f"{result.n_users:,} users"
    if result.n_users < least:
        return Forward(OWN_HISTORY, f"own history scores: {users} to try a model on, gate.min_users is {least}", result)
    gain, error = result.gain(OWN_HISTORY)
    source = MODEL if gain > error else OWN_HISTORY
    first = ingested.date - dt.timedelta(days - 1)
    sentence = (
        f"{'the model' if source == MODEL else 'own history'} scores: of {result.k} categories users clicked"
        f" {result.mean(MODEL):.3f} from {first} to {ingested.date} in the lists of a model that ends before, and"
        f" {result.mean(OWN_HISTORY):.3f} in those of own history ({gain:+.3f} ± {error:.3f}, {users})"
    )
    own_recent = own_recent_model(model, n_rows, night.config.alpha)
    if own_recent is None or night.config.features.intensity != "log1p":
        return Forward(source, sentence, result)
    drift = measure_sources(night, features, {OWN_RECENT: own_recent, OWN_HISTORY: own_history})
    return Forward(source, sentence, result, drift)


def _why_untried(night: Night, ingested: Ingested) -> str:
    """Return why there is no window to train a model on that ends before the last one."""
    days = night.config.label.days
    if night.config.train.n_windows == 1:
        return "a model is tried on earlier label windows, and train.windows is 1; set it to 2 or more"
    if len(ingested.history) < 4 * days:
        return f"a model is tried once there are {4 * days} days of events"
    return f"no earlier label window that the site has kept has {MIN_USERS} users who clicked"


def train_before(night: Night, ingested: Ingested, features: Run, earlier: list[Run]) -> RankModel:
    """Return the model that a night before the last label window would have trained, from the windows before it.

    Parameters
    ----------
    features
        Those at the lag date, that the model will score; it learns nothing from their clicks.
    earlier
        Windows that ended by then, the newest first.
    """
    from ammrank_dask.training.train import train

    newest, *others = [open_features(run.path) for run in earlier]
    return train(
        newest, client=night.client, earlier=others, tonight=open_features(features.path),
        renames=renames_since(earlier, ingested), left_out=users_left_out(night, ingested),
        scratch=night.site.scratch, progress=night.progress, **night.config.train.parameters(),
    )  # fmt: skip


def measure_sources(night: Night, features: Run, sources: Mapping[str, RankingEstimator]) -> ForwardResult:
    """Return how the lists of sources compare with the clicks after the features, all beside the first source."""
    folder = night.site.scratch / "forward"
    shutil.rmtree(folder, ignore_errors=True)
    given: dict[str, Path | RankingEstimator] = dict(sources)
    for name, source in sources.items():
        if isinstance(source, RankModel):
            given[name] = folder / name
            source.save(folder / name)
    opened = open_features(features.path)
    result = compare_forward(night.client, opened, given, k=night.config.score.k, progress=night.progress)
    shutil.rmtree(folder, ignore_errors=True)
    return result

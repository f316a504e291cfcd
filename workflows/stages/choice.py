"""Choose κ, the planes and the fit of AMM-rank-plus on validation users, or keep what an earlier training chose.

A choice is kept in the manifest of the model trained with it, and goes from model to model: until
`ammrank train --tune` makes another, or the gate turns a model down. What the config sets is never chosen.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from ammrank_dask.features.store import open_features
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.halving import CLICKERS_PER_PLANE, Tuning
from ammrank_dask.model.held_out_fit import FITS, MOST_ROWS, USUAL
from ammrank_dask.storage.errors import TooFewUsers
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import read_verdict, rejected_models, verdict_dates
from ammrank_dask.storage.store.atomic import digest_of, read_json, write_json
from ammrank_dask.storage.store.folders import is_file
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.storage.store.runs import Run, open_run
from ammrank_dask.training.fits import FitTrial, follow_rows, try_fits
from ammrank_dask.training.tune import tune
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.models import MODEL_KIND, model_date

logger = logging.getLogger(__name__)

BY_NIGHT, BY_HAND, BY_DEFAULT = "night", "--tune", "default"
TUNED, FIT = ("kappa", "clickers_per_plane"), "fit"
CHOSEN = (*TUNED, FIT)
"""Parameters of AMM-rank-plus that a night chooses where the config leaves them open."""
GROWTH = 2
"""A fit that is not the usual one is chosen anew when a site has more than so many times the labelled users: how many
they are decides what suits them, and what it costs."""


@dataclass(frozen=True)
class Choice:
    """Parameters of a training, when and by whom they were chosen, and what was measured then.

    `by` is the night itself, `--tune`, or `default` where there were too few users to choose. `why` is a sentence.
    `fits` has the error of every fit that was tried, and `labelled` is how many labelled users there were then.
    """

    parameters: dict[str, Any]
    date: str
    by: str
    why: str
    error: float | None = None
    popularity: float | None = None
    users: int | None = None
    fits: dict[str, float] | None = None
    labelled: int | None = None

    @classmethod
    def of_model(cls, run: Run | None) -> Self | None:
        """Return the choice that a model was trained with; None for one of an earlier version, or without any."""
        kept = None if run is None else ModelManifest.of(run).choice
        return None if kept is None else cls(**kept)

    def to_json(self) -> dict[str, Any]:
        """Return the choice as the manifest of a model keeps it."""
        return asdict(self)

    def to_text(self) -> str:
        """Return the choice for a person."""
        named = ", ".join(
            f"{name} {value if isinstance(value, str) else format(value, 'g')}"
            for name, value in self.parameters.items()
        )
        return f"{named}: {self.why}" if named else self.why

    def changes_model(self, date: dt.date) -> bool:
        """Tell whether the choice was made on a date and is not just the usual fit of what was there before."""
        return self.date == str(date) and bool(set(self.parameters.items()) - {(FIT, USUAL)})


def choose_parameters(night: Night, features: Run, champion: Run | None) -> Choice | None:
    """Return the choice to train with: that of the model in use, or one made now; None when the config leaves none.

    Only what was known before this night decides, so that a rerun chooses alike.
    """
    free = [name for name in CHOSEN if is_chosen(night.config, name)]
    if not free:
        return None
    kept, reason = find_choice(night, champion)
    choice = _choose_tuned(night, features, kept, reason, [name for name in free if name in TUNED])
    return add_fit(night, features, choice, kept) if FIT in free else choice


def _choose_tuned(night: Night, features: Run, kept: Choice | None, reason: str | None, free: list[str]) -> Choice:
    """Return the choice of κ and planes, as far as they are free: one that is kept, or one made now."""
    date = str(night.date)
    if not free:
        return Choice({}, date, BY_DEFAULT, "")
    if kept is not None and set(free) <= set(kept.parameters):
        parameters = {name: kept.parameters[name] for name in free}
        return replace(kept, parameters=parameters, why=f"as chosen on {kept.date}", fits=None, labelled=None)
    try:
        tuning = _tune_once(night, features)
    except TooFewUsers as error:
        return Choice({}, date, BY_DEFAULT, f"nothing was chosen, {error}; the defaults stay")
    return choice_of(tuning, night.date, BY_NIGHT, reason, only=free)


def add_fit(night: Night, features: Run, choice: Choice, kept: Choice | None) -> Choice:
    """Return a choice of κ and planes with the fit that goes with them: the one that is kept, or one tried now."""
    if kept is not None and _tuned(kept) == _tuned(choice) and _has_fit_for(kept, features.n_rows):
        return replace(kept, why=f"as chosen on {kept.date}")
    try:
        trial = _try_fits_once(night, features, choice)
    except TooFewUsers as error:
        return choice if choice.why else replace(choice, why=f"nothing was chosen, {error}; the usual fit stays")
    before = f"of kappa and planes {choice.why}" if choice.why and choice.by == BY_DEFAULT else choice.why
    choice = replace(
        choice,
        parameters={**choice.parameters, FIT: trial.fit},
        why="; ".join(filter(None, [before, describe_fit(trial)])),
        users=choice.users or trial.users or None,
        fits=trial.errors or None,
        labelled=features.n_rows,
    )
    is_of_before = choice.by != BY_DEFAULT and (choice.date == str(night.date) or trial.fit == USUAL)
    return choice if is_of_before else replace(choice, date=str(night.date), by=BY_NIGHT)


def _tuned(choice: Choice) -> dict[str, Any]:
    return {name: choice.parameters[name] for name in TUNED if name in choice.parameters}


def _has_fit_for(choice: Choice, n_labelled: int) -> bool:
    """Tell whether a choice has a fit that need not be tried again with so many labelled users."""
    fit = choice.parameters.get(FIT)
    return fit == USUAL or (fit is not None and n_labelled <= GROWTH * (choice.labelled or 0))


def describe_fit(trial: FitTrial) -> str:
    """Return the outcome of a trial as a sentence."""
    if not trial.errors:
        return f"rows are followed as usual, nothing else is tried with more than {MOST_ROWS:,} of them"
    errors = ", ".join(f"{fit} {trial.errors[fit]:.4f}" for fit in FITS if fit in trial.errors)
    how = "as usual" if trial.fit == USUAL else f"{trial.fit} than usual"
    return f"rows are followed {how}, on {trial.users:,} validation users: error {errors}"


def training_parameters(config: Config, choice: Choice | None) -> dict[str, Any]:
    """Return the keywords of `ammrank_dask.train`: what the config sets, what was chosen, and what the fit makes of it.

    A fit leaves κ and the epochs as they are where the config sets them.
    """
    chosen = {} if choice is None else choice.parameters
    parameters = config.train.parameters() | {name: value for name, value in chosen.items() if name != FIT}
    return follow_rows(parameters, config.train.fit or chosen.get(FIT, USUAL), fixed_parameters(config))


def fixed_parameters(config: Config) -> list[str]:
    """Return the parameters that the config sets and a fit would change."""
    return [name for name in ("kappa", "epochs") if getattr(config.train, name) is not None]


def is_chosen(config: Config, name: str) -> bool:
    """Tell whether nights choose a parameter by themselves: the config allows it and does not set the value."""
    settings = config.train
    is_open = settings.model == AMMRankPlus.method and settings.auto_tune and name in CHOSEN
    return is_open and getattr(settings, name) is None


def choice_of(
    tuning: Tuning, date: dt.date, by: str, reason: str | None = None, *, only: Iterable[str] | None = None
) -> Choice:
    """Return the choice of a tuning, with the parameters named in `only`, or all."""
    last = max(trial.rung for trial in tuning.trials)
    error = next(trial.error for trial in tuning.trials if trial.rung == last and trial.kept)
    best = {name: tuning.best[name] for name in (tuning.best if only is None else only)}
    why = (
        f"chosen{'' if reason is None else f' anew, {reason},'} on {tuning.users:,} validation users: error {error:.4f}"
    )
    if tuning.popularity is not None:
        why += f", popularity {tuning.popularity:.4f}"
    return Choice(best, str(date), by, why, error, tuning.popularity, tuning.users)


def find_choice(night: Night, champion: Run | None) -> tuple[Choice | None, str | None]:
    """Return the last choice that holds, and None with a reason when the gate has ended it.

    It is that of the model in use, or of a model that was tuned by hand since.
    """
    judged = max((date for date in verdict_dates(night.site) if date < night.date), default=None)
    verdict = None if judged is None else read_verdict(night.site, judged)
    ended = "" if verdict is None or verdict.accepted else str(judged)
    in_use = Choice.of_model(champion)
    choices = [] if in_use is None or in_use.by == BY_DEFAULT or in_use.date <= ended else [in_use]
    # One made for the date that was turned down came after it, unless it is the one that was turned down.
    rejected = rejected_models(night.site)
    by_hand = [Choice.of_model(run) for run in hand_tuned(night.site, night.date) if run.digest not in rejected]
    choices += [choice for choice in by_hand if choice is not None and choice.date >= ended]
    if not choices:
        return None, f"as the gate turned down the model of {ended}" if ended else None
    return max(choices, key=lambda choice: (choice.date, choice.by == BY_HAND)), None


def hand_tuned(site: Site, date: dt.date) -> list[Run]:
    """Return the models up to a date that `ammrank train --tune` made, not those that nights trained like them."""
    models = [open_run(path, MODEL_KIND) for path in site.finished_runs("models")]
    chosen = [(run, Choice.of_model(run)) for run in models if model_date(run) <= str(date)]
    return [
        run for run, choice in chosen if choice is not None and (choice.by, choice.date) == (BY_HAND, model_date(run))
    ]


def _tune_once(night: Night, features: Run) -> Tuning:
    """Tune on a sample; a rerun after a crash finds what came out of it."""
    settings = night.config.train
    given = settings.parameters()
    names = ("model", "block_rows", "epochs", "max_planes", "n_clusterings", "seed", "variant")
    options: dict[str, Any] = {name: given[name] for name in names if name in given}
    if settings.kappa is not None:
        options["kappas"] = [settings.kappa]
    open_limit = settings.clickers_per_plane is None
    options["clickers_per_plane"] = list(CLICKERS_PER_PLANE) if open_limit else [settings.clickers_per_plane]
    path = night.site.scratch / f"choice-{digest_of([features.digest, options])}.json"
    if is_file(path):
        return Tuning.from_json(**read_json(path))
    started = time.perf_counter()
    tuning = tune(
        night.client,
        open_features(features.path),
        quick=True,
        scratch=night.site.scratch,
        progress=night.progress,
        **options,
    )
    logger.info("chose %s in %.1f s", tuning.best, time.perf_counter() - started)
    write_json(path, describe_tuning(tuning), durable=False)
    return tuning


def _try_fits_once(night: Night, features: Run, choice: Choice) -> FitTrial:
    """Try the fits with what was chosen; a rerun after a crash finds what came out of it."""
    given = night.config.train.parameters() | _tuned(choice)
    names = ("kappa", "clickers_per_plane", "epochs", "max_planes", "n_clusterings", "seed")
    options: dict[str, Any] = {
        "parameters": {name: given[name] for name in names if name in given},
        "fixed": fixed_parameters(night.config),
        "block_rows": given["block_rows"],
        "variant": given["variant"],
    }
    path = night.site.scratch / f"fit-{digest_of([features.digest, options])}.json"
    if is_file(path):
        return FitTrial(**read_json(path))
    started = time.perf_counter()
    trial = try_fits(
        night.client,
        open_features(features.path),
        scratch=night.site.scratch,
        progress=night.progress,
        **options,
    )
    logger.info("chose fit %s in %.1f s", trial.fit, time.perf_counter() - started)
    write_json(path, trial.to_json(), durable=False)
    return trial


def describe_tuning(tuning: Tuning) -> dict[str, Any]:
    """Return a tuning as JSON that `Tuning.from_json` reads."""
    return {
        "best": tuning.best,
        "trials": tuning.to_json(),
        "popularity": tuning.popularity,
        "users": tuning.users,
    }

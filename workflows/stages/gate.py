"""Let a new model score only when it is no worse than the one in use."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ammrank_dask.features.store import open_features
from ammrank_dask.storage.site.verdicts import Verdict, read_verdict, verdict_dates, write_verdict
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.training.gate import GateResult, compare_models, is_no_worse
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.ingest import Ingested
from ammrank_dask.workflows.stages.models import fits, model_date


def choose_model(
    night: Night, ingested: Ingested, features: Run, champion: Run | None, challenger: Run
) -> tuple[Run, str]:
    """Return the model that scores, and why as a sentence; a comparison is kept as the verdict of the date.

    Without a champion, or with one of other categories or features, there is nothing to compare.
    """
    config = night.config
    if champion is None:
        return challenger, "no model before it"
    if not fits(champion, config, ingested.taxonomy):
        return challenger, f"the model of {model_date(champion)} has other categories or features and was not compared"
    settings = {"k": config.score.k, **config.gate.model_dump()}
    verdict = read_verdict(night.site, night.date)
    if verdict is None or (verdict.champion, verdict.challenger, verdict.facts["settings"]) != (
        champion.digest,
        challenger.digest,
        settings,
    ):
        old, new = compare_models(
            night.client,
            open_features(features.path),
            champion=champion.path,
            challenger=challenger.path,
            k=config.score.k,
            progress=night.progress,
        )
        verdict = _judge(config, champion, challenger, old, new, settings)
        write_verdict(night.site, night.date, verdict, settings)
    return challenger if verdict.accepted else champion, verdict.facts["reason"]


def is_due(night: Night, champion: Run | None, ingested: Ingested) -> bool:
    """Tell whether there is no model in use, it is of other features, or the last training is long enough ago.

    A training whose model the gate turned down counts. Only what was known before this night decides, so that a rerun
    decides alike.
    """
    if champion is None:
        return True
    if not fits(champion, night.config, ingested.taxonomy):
        return True
    judged = [date for date in verdict_dates(night.site) if date < night.date]
    last = max([dt.date.fromisoformat(model_date(champion)), *judged])
    return (night.date - last).days >= night.config.train.every_nights


def _judge(
    config: Config, champion: Run, challenger: Run, old: GateResult, new: GateResult, settings: dict[str, Any]
) -> Verdict:
    if new.n_users < config.gate.min_users:
        accepted = True
        reason = f"{new.n_users} gate users are fewer than gate.min_users {config.gate.min_users}; not compared"
    else:
        accepted = is_no_worse(new, old, config.gate.tolerance)
        outcome = "passed" if accepted else f"the model of {model_date(champion)} stays"
        reason = (
            f"{outcome}: disagreement error {new.error:.4f}"
            f" against {old.error:.4f}, precision at {config.score.k} {new.precision:.4f} against"
            f" {old.precision:.4f}, {new.n_users:,} gate users, tolerance {config.gate.tolerance:.1%}"
        )
    facts = {
        "accepted": accepted,
        "reason": reason,
        "settings": settings,
        "champion": {"date": model_date(champion), **old.to_json()},
        "challenger": {"date": model_date(challenger), **new.to_json()},
    }
    return Verdict(challenger.digest, champion.digest, accepted, facts)

"""Learn what the scores of a night's model are worth, on users who never train, and keep it as a run."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

from ammrank_dask.features.build import build_features
from ammrank_dask.features.store import open_features
from ammrank_dask.scoring.chances import save_chances
from ammrank_dask.scoring.exposure_bounds import parse_floor
from ammrank_dask.scoring.learn_chances import STAGE, history_share, learn_and_measure
from ammrank_dask.scoring.policies import POLICIES
from ammrank_dask.scoring.recalibrate import recalibrate, users_again
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import ChancesManifest, QualificationsManifest
from ammrank_dask.storage.store.registry import CHANCES
from ammrank_dask.storage.store.runs import Run, finish_run, is_finished, open_run
from ammrank_dask.storage.vocabulary import CLICK_GROUP
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.features import plan_chance_features
from ammrank_dask.workflows.stages.ingest import Ingested
from ammrank_dask.workflows.stages.models import find_previous, load_site_model
from ammrank_dask.workflows.stages.train import too_little_history

logger = logging.getLogger(__name__)

CHANCES_VERSION = 5
"""Version of how chances are learnt: those of another version are learnt again when they are due."""


def chances_of_night(
    night: Night, ingested: Ingested, features: Run, model: Run, *, renew: bool = False, rebuild: bool = False
) -> tuple[Run | None, str]:
    """Return the chances that go with the model of a night, None without any, and what is to tell about them.

    `features` are those that the night is scored with.

    A published night keeps what it was scored with. Otherwise they are those of the night before, as long as the same
    model scores; with `renew`, after a training, and when there are none, they are learnt.

    Only what was known before this night decides, so that a rerun decides alike.
    """
    site = night.site
    if not rebuild and site.is_published(night.date) and is_finished(site.qualifications_folder(night.date)):
        digest = QualificationsManifest.of(open_run(site.qualifications_folder(night.date))).chances
        run = find_chances(site, digest)
        return run, "none: the night was published without" if run is None else _describe(night, ingested, run)
    earlier = _chances_before(night, ingested, model)
    if earlier is not None and not renew:
        return earlier, _describe(night, ingested, earlier)
    reason = too_little_history(night.config, len(ingested.history))
    if reason is None:
        try:
            run = _learn(night, ingested, features, model)
            return run, _describe(night, ingested, run)
        except TooFewUsers as error:
            reason = str(error)
    if earlier is not None:
        return earlier, f"{_describe(night, ingested, earlier)}; not learnt again: {reason}"
    logger.info("there are no click probabilities: %s", reason)
    return None, f"none: {reason}"


def require_chances(night: Night, chances: Run | None, said: str) -> None:
    """Refuse a setting that needs chances when there are none; `said` is why."""
    score = night.config.score
    if chances is None and score.min_chance is not None:
        raise BadInput(f"score.min_chance needs click probabilities, and there are {said}; set it to null")
    if chances is None and score.objective == "value":
        raise BadInput(f"score.objective: value needs click probabilities, and there are {said}; set it to clicks")
    in_clicks = [name for name, given in score.balanced.floors.items() if parse_floor(name, given).in_clicks]
    if chances is None and POLICIES[score.policy].needs_chances and in_clicks:
        raise BadInput(
            f"score.balanced.floors: the floor of {in_clicks[0]!r} is in clicks, which needs click probabilities, and"
            f" there are {said}; set score.policy to user_top_k"
        )
    if chances is None and POLICIES[score.policy].needs_chances:
        raise BadInput(
            f"score.policy: {score.policy} needs click probabilities, and there are {said}; set it to user_top_k"
        )


def find_chances(site: Site, digest: str | None) -> Run | None:
    """Return the chances with a digest, None when the site has them no longer."""
    if digest is None:
        return None
    runs = [open_run(path, CHANCES.kind) for path in site.finished_runs("chances")]
    return next((run for run in runs if run.digest == digest), None)


def describe_history(night: Night, ingested: Ingested, chances: Run) -> dict[str, Any]:
    """Return how many days of history chances were learnt with, how many tonight has, and that share as it decays."""
    lag = ChancesManifest.of(chances).lag
    days_then, days_now = sum(day <= lag for day, _ in ingested.history), len(ingested.history)
    share = history_share(night.config.alpha, days_then, days_now)
    return {"days_then": days_then, "days_now": days_now, "share": share}


def _chances_before(night: Night, ingested: Ingested, model: Run) -> Run | None:
    """Return the chances of the last published night before, if they are of this model."""
    previous = find_previous(night.site, night.date)
    run = None if previous is None else find_chances(night.site, previous.manifest.chances)
    is_same = run is not None and ChancesManifest.of(run).model == model.digest
    return run if is_same else None


def _learn(night: Night, ingested: Ingested, tonight: Run, model: Run) -> Run:
    """Learn from the validation users, measure on the gate users, and keep both; what is there is not learnt again.

    Kept are the chances for the features of `tonight`; measured were those of the lag date.
    """
    planned = plan_chance_features(night, ingested)
    digest = digest_of([CHANCES_VERSION, planned.digest, tonight.digest, model.digest])
    path = night.site.run("chances", night.date, digest)
    if is_finished(path):
        return open_run(path, CHANCES.kind)
    night.site.begin([path, planned.path])
    built = build_features(night.client, planned, click_group=CLICK_GROUP, stage=STAGE, progress=night.progress)
    features = open_features(built.path)
    min_users = max(1, night.config.gate.min_users)
    fitted, scratch = load_site_model(model), night.site.scratch
    learnt, users = learn_and_measure(
        night.client, fitted, features, min_users=min_users, scratch=scratch, progress=night.progress,
        beside=users_again(fitted, features, open_features(tonight.path), scratch=scratch),
    )  # fmt: skip
    carried = recalibrate(learnt.chances, users)
    return finish_run(
        path,
        CHANCES.kind,
        digest,
        [save_chances(path, carried.chances)],
        config={
            "date": str(night.date),
            "lag": str(ingested.date - dt.timedelta(night.config.label.days)),
            "categories": list(features.categories),
        },
        inputs={"features": planned.digest, "tonight": tonight.digest, "model": model.digest},
        counts={**learnt.to_json(), "carried": carried.to_json()},
    )


def _describe(night: Night, ingested: Ingested, run: Run) -> str:
    manifest = ChancesManifest.of(run)
    counts, history = manifest.counts, describe_history(night, ingested, run)
    is_short = history["share"] < night.config.report.limits.short_history
    short = f"; learnt with {history['days_then']} days of history where tonight has {history['days_now']}"
    return (
        f"of {manifest.date}, {counts['users']:,} users; Brier score {counts['brier']:.4f},"
        f" base rate {counts['base_brier']:.4f}, {counts['gate_users']:,} gate users{short if is_short else ''}"
    )

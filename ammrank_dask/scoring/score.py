"""Score every user and write the categories they qualify for."""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from distributed import Client

from ammrank_dask.features.store import Features, check_features
from ammrank_dask.features.write import write_features
from ammrank_dask.model.kept_model import KeptModel, check_model
from ammrank_dask.model.plane_panels import panel_arrays
from ammrank_dask.model.saved import RankModel, load_model
from ammrank_dask.monitor.events import LiveExposure
from ammrank_dask.runtime.client import client_by_name, current_client
from ammrank_dask.runtime.collections import blocks_of, check_blocks, temporary_scratch
from ammrank_dask.runtime.tasks import Progress, silent
from ammrank_dask.scoring.barred_cells import save_opt_outs
from ammrank_dask.scoring.by_category import write_by_category
from ammrank_dask.scoring.chances import Chances
from ammrank_dask.scoring.delta import PreviousQualifications
from ammrank_dask.scoring.policy_sample import kept_share
from ammrank_dask.scoring.qualifications import Qualifications, check_qualifications, open_qualifications
from ammrank_dask.scoring.score_partition import MODEL, ScoreJob
from ammrank_dask.scoring.score_passes import ScoreCounts, ScorePasses
from ammrank_dask.scoring.settings import CLICKS, ScoreSettings, choose_settings
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.in_memory import is_collection
from ammrank_dask.storage.lake.people import OptOuts, opt_outs_by_name
from ammrank_dask.storage.numbers import list_length
from ammrank_dask.storage.objects.atomic import (
    digest_of,
    read_json,
    swap_folder,
    sweep_tree,
    temporary_beside,
    write_text,
)
from ammrank_dask.storage.objects.folders import is_file, is_folder, list_paths, local_path, remove, rename
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.qualification_files import (
    WORK,
    make_folders,
    remove_empty_folders,
    short_folders,
    written_files,
)
from ammrank_dask.storage.store.qualifications import KIND
from ammrank_dask.storage.store.runs import finish_run, is_finished, remove_run
from ammrank_dask.storage.store.scratch_arrays import save_arrays
from ammrank_dask.storage.vocabulary import CATEGORY, RANK, SCORE, USER_ID

TOO_FEW = "too-few.json"
"""In the work folder: the categories that too few users had, with their users."""

logger = logging.getLogger(__name__)


@client_by_name
def score(
    model: RankModel | str | Path,
    features: Any,
    path: str | Path | None = None,
    *,
    user_ids: Any = None,
    client: Client | None = None,
    settings: ScoreSettings | None = None,
    opt_out: Iterable[tuple[Any, str]] | None = None,
    chances: Chances | None = None,
    previous: Qualifications | None = None,
    variant: str | None = None,
    progress: Progress = silent,
    **options: Any,
) -> Any:
    """Write the categories every user qualifies for under `path`, and return them as `Qualifications`.

    A run that was interrupted goes on where it stopped; `path` changes with one rename at the end. Without a path the
    k best of each user come back as a lazy Dask DataFrame: user_id, rank, category, score.

    Parameters
    ----------
    model
        A fitted model or the folder of a saved one.
    features
        The users to score: `Features`, or a Dask array of rows as the model was trained on, with `user_ids`.
    path
        A folder that all workers see: `by_user/part-00000.parquet` and so on, `by_category/category=…/`, `delta/`.
        None for a lazy frame, which takes `k` alone: all else needs several passes over the users.
    user_ids
        With a Dask array: the users of its rows, a Dask Series with its blocks or ids in memory.
    client
        The cluster to score on, one task per partition; None for the current client.
    settings
        What decides who gets what, beside the scores: k, the policy, limits, floors and caps, exploration, values.
    opt_out
        Pairs of a user id and a category that this user never gets.
    chances
        What a score is worth (`learn_chances`): adds the column `chance`. `balanced`, `min_chance` and the objective
        `value` need it.
    previous
        Earlier qualifications that `delta` is taken against; None: everything is added.
    variant
        The columns the model was trained on; by default what the model says.
    progress
        Called after every finished task.
    **options
        Fields of `ScoreSettings`, which replace those of `settings`: `k=5`, `policy="balanced"`.
    """
    fitted = load_model(model) if isinstance(model, str | Path) else model
    check_model(fitted)
    settings = choose_settings(settings, options)
    pairs = list(opt_out or ())
    if is_collection(features) and user_ids is None:
        raise BadInput("user_ids must be given with a Dask array; pass user_ids=…, a Dask Series with its blocks")
    codes = range(fitted.n_categories_)  # refuses a model that is not fitted
    categories = fitted.categories_ or [str(code) for code in codes]
    if path is None:
        if settings != ScoreSettings(k=settings.k) or pairs or chances is not None or previous is not None:
            raise BadInput("only k can be chosen without a path: the rest needs several passes; pass path=…, a folder")
        return _rank_without_path(fitted, features, user_ids, settings.k, categories, variant)
    client, folder = current_client(client), local_path(path)
    write = functools.partial(
        _score_store, client, fitted, path=folder, settings=settings, chances=chances, pairs=pairs, previous=previous,
        variant=variant, progress=progress,
    )  # fmt: skip
    if not is_collection(features):
        return write(features)
    settings.check(categories)
    columns = fitted.columns_ or [str(column) for column in range(fitted.n_features_in_)]
    with temporary_scratch(client, folder.parent) as scratch:
        stored = write_features(
            scratch / "features", features, user_ids, columns, categories=categories, normalize=False, client=client,
            scratch=scratch,
        )  # fmt: skip
        return write(stored)


def _rank_without_path(
    model: Any, features: Any, user_ids: Any, k: int, categories: Sequence[str], variant: str | None
) -> Any:
    """Return the k best of each user as a lazy frame."""
    if not is_collection(features):
        check_features(features)
        variant = model.variant_ if variant is None else variant
        check_match(model, features, variant)
        features, user_ids, _ = features.to_dask(variant=variant, normalize=model.normalize_rows)
    return rank_lazily(model, features, user_ids, list_length(k, len(categories)), categories)


def _score_store(
    client: Client,
    model: RankModel,
    features: Features,
    *,
    path: Path,
    settings: ScoreSettings,
    chances: Chances | None,
    pairs: Sequence[tuple[Any, str]],
    previous: Qualifications | None,
    variant: str | None,
    progress: Progress,
) -> Qualifications:
    """Write qualifications of stored features, or open those that are there already."""
    _check_objects(features, previous)
    settings.check(features.categories)
    inputs = {
        "features": digest_of([features.run.digest, features.run.checksums]),
        "model": model.digest(),
        "previous": None if previous is None else previous.run.digest,
        **({} if chances is None else {"chances": chances.digest()}),
    }
    opt_outs = opt_outs_by_name(pairs, features.categories) if pairs else None
    if opt_outs is not None:
        ids = opt_outs.user_ids.to_arrow().to_pylist()
        inputs["opt_out"] = digest_of([ids, opt_outs.user.tolist(), opt_outs.code.tolist()])
    digest = digest_of([inputs, variant, settings.to_json()])
    if list_paths(path) and open_qualifications(path).run.digest == digest:
        return open_qualifications(path)
    building = path.with_name(f".building-{path.name}-{digest}")
    if not is_finished(building):
        counts = write_qualifications(
            client, model, features, building, settings, chances=chances, opt_outs=opt_outs, previous=previous,
            variant=variant, progress=progress,
        )  # fmt: skip
        finish_qualifications(building, digest, features, settings, counts, inputs=inputs)
    swap_folder(building, path)
    if is_folder(building):
        remove_run(building)
    return open_qualifications(path)


def _check_objects(features: Any, previous: Any) -> None:
    """Refuse objects of other kinds than scoring needs, and say what to pass."""
    check_features(features)
    if previous is not None:
        check_qualifications(previous, "previous")


def write_qualifications(
    client: Client,
    model: RankModel,
    features: Features,
    run: Path,
    settings: ScoreSettings,
    *,
    chances: Chances | None = None,
    opt_outs: OptOuts | None = None,
    previous: Qualifications | None = None,
    variant: str | None = None,
    clicks: Sequence[int] | None = None,
    starved_below: float | None = None,
    tombstones: Path | None = None,
    progress: Progress = silent,
) -> ScoreCounts:
    """Write all partitions of a run and return the counts; what is whole from an earlier try is not done again.

    Parameters are those of `score`; `clicks` by category code are what the dashboard compares the exposure with and
    floors and caps are multiples of (by default those the model was trained on), and
    `starved_below` is the share of its share of clicks below which it shows a category as starved. `tombstones` is the
    list of users who were forgotten since the `previous` night.

    With `min_audience` the lists are made again without the categories that too few users had, until there is none.
    """
    write = functools.partial(
        _write_lists, client, model, features, run, chances=chances, opt_outs=opt_outs, previous=previous,
        variant=variant, clicks=clicks, starved_below=starved_below, tombstones=tombstones, progress=progress,
    )  # fmt: skip
    if settings.min_audience is None:
        return write(settings)
    marker = run / WORK / TOO_FEW
    too_few: dict[str, int] = read_json(marker) if is_file(marker) else {}
    while True:
        counts = write(settings.without(too_few))
        users = counts.policies[settings.policy].exposure.sum(axis=1)
        is_small = (users > 0) & (users < settings.min_audience)
        if not is_small.any():
            return replace(counts, too_few=too_few)
        too_few |= {features.categories[code]: int(users[code]) for code in np.flatnonzero(is_small)}
        # With one rename nothing is left that was written with these categories: a crash leaves all of it or none.
        aside = temporary_beside(run)
        rename(run, aside)
        remove(aside)
        make_folders(run, features.categories)
        write_text(marker, json.dumps(too_few))


def _write_lists(
    client: Client,
    model: RankModel,
    features: Features,
    run: Path,
    settings: ScoreSettings,
    *,
    chances: Chances | None,
    opt_outs: OptOuts | None,
    previous: Qualifications | None,
    variant: str | None,
    clicks: Sequence[int] | None,
    starved_below: float | None,
    tombstones: Path | None,
    progress: Progress,
) -> ScoreCounts:
    """Write all partitions of a run with settings as they are, and return the counts."""
    started = time.perf_counter()
    if variant is None:
        variant = model.variant_
    settings.check(features.categories)
    check_match(model, features, variant)
    check_chances(chances, settings, features)
    counted = model.popularity_.tolist() if clicks is None else clicks
    if opt_outs is None:
        refuse_early(settings, features, np.array(counted))
    make_folders(run, features.categories)
    # A file reaches every worker more cheaply than an argument, and survives the death of one.
    panels = model.panels()
    save_arrays(run / WORK / MODEL, *panel_arrays(panels))
    if opt_outs is not None:
        save_opt_outs(run / WORK, opt_outs, features.n_partitions)
    job = ScoreJob(
        run, features.path, settings, variant,
        None if previous is None else PreviousQualifications.of(previous.run), features.n_partitions, chances,
        last_prices(previous, features.categories, settings.objective), tuple(counted), tombstones,
        kept_share(settings, features.n_users, len(features.categories)),
        None if chances is None else settings.click_values(features.categories),
    )  # fmt: skip
    live = LiveExposure(
        client, features.categories, users_total=features.n_users, clicks=clicks, starved_below=starved_below,
        excluded=settings.exclude,
    )  # fmt: skip
    users = [part.rows for part in features.run.parts]
    counts = ScorePasses(client, job, users, live, progress).run(features, panels.tie_order)
    write_by_category(client, run, features.categories, features.n_partitions, progress=progress)
    seconds = time.perf_counter() - started
    logger.info("scored %d users, %d of them cold, %.1f s", counts.n_users, counts.cold_users, seconds)
    return counts


def finish_qualifications(
    run: Path,
    digest: str,
    features: Features,
    settings: ScoreSettings,
    counts: ScoreCounts,
    *,
    inputs: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    window: Mapping[str, Any] | None = None,
) -> None:
    """Make a run whole whose partitions are all written; `window` has clicks and events of the label window."""
    files = written_files(run, features.n_partitions)
    shortened = short_folders(features.categories)
    # What only the work needed goes with one rename before the run is whole: a crash leaves all of it or none.
    rename(run / WORK, temporary_beside(run / WORK))
    sweep_tree(run)
    remove_empty_folders(run)
    finish_run(
        run,
        KIND,
        digest,
        [],
        config={
            **settings.to_json(),
            "categories": list(features.categories),
            "partitions": features.n_partitions,
            **({"short_folders": shortened} if shortened else {}),
            **(config or {}),
        },
        inputs=inputs,
        counts={**counts.to_json(), **(window or {})},
        files=files,
    )


def last_prices(
    previous: Qualifications | None, categories: Sequence[str], objective: str = CLICKS
) -> np.ndarray | None:
    """Return the prices of an earlier balanced run by category, 0 for new ones; None when it had none of this unit."""
    facts = {} if previous is None else previous.manifest.policies.get("balanced", {})
    if previous is None or "prices" not in facts or previous.manifest.objective != objective:
        return None
    by_name = dict(zip(previous.categories, facts["prices"], strict=True))
    return np.array([by_name.get(category, 0.0) for category in categories])


def refuse_early(settings: ScoreSettings, features: Features, clicks: np.ndarray) -> None:
    """Refuse floors and caps that cannot be kept, before any user is scored, when scores decide nothing about that.

    Where they do (limits by score, chance or group), it takes the pass over all users to tell.
    """
    is_known = settings.min_score is None and settings.min_chance is None and not settings.exclude_by_group
    if is_known and any(policy.needs_chances for policy in settings.wanted):
        eligible = np.full(len(features.categories), features.n_users, np.int64)
        eligible[[features.categories.index(name) for name in settings.exclude]] = 0
        slots = features.n_users * min(settings.k, int((eligible > 0).sum()))
        settings.bounds(features.categories, clicks, eligible, slots)


def check_chances(chances: Chances | None, settings: ScoreSettings, features: Features) -> None:
    """Refuse a policy that needs chances without them, and chances of other categories."""
    if settings.chances_needed_by is not None and chances is None:
        raise BadInput(
            f"{settings.chances_needed_by} needs chances, got none; learn them with `learn_chances` on held-out users"
        )
    if chances is not None and chances.n_categories != len(features.categories):
        raise BadInput(
            f"chances must be of the {len(features.categories)} categories of the features at {features.path}, "
            f"got {chances.n_categories}; learn them again"
        )


def check_match(model: RankModel, features: Features, variant: str | None) -> None:
    """Refuse a model that was trained on other columns or categories than the features have."""
    if model.n_categories_ != len(features.categories) or (
        model.categories_ is not None and model.categories_ != list(features.categories)
    ):
        raise BadInput(
            f"the model must rank the categories of the features at {features.path}, found other ones "
            f"({model.n_categories_} in the model, {len(features.categories)} in the features); train again"
        )
    if model.columns_ is not None and model.columns_ != features.columns_of(variant):
        raise BadInput(
            f"the model must be trained on the columns of the features at {features.path}, found other ones "
            f"(variant {model.variant_} in the model, {variant} asked for); train again or take that variant"
        )
    if model.n_features_in_ != features.n_columns(variant):
        raise BadInput(
            f"the features at {features.path} must have the model's {model.n_features_in_} columns, "
            f"found {features.n_columns(variant)}; train again"
        )


def rank_lazily(model: KeptModel, X: Any, user_ids: Any, k: int, categories: Sequence[str]) -> Any:
    """Return user_id, rank, category and score of each user's k best as a lazy Dask DataFrame with the blocks of X."""
    import dask.dataframe as dd

    check_blocks(X)
    once = dask.delayed(model, traverse=False, pure=False)
    names = dask.delayed(list(categories), traverse=False, pure=False)
    rank = dask.delayed(rank_block_of_users, pure=False)
    ids = blocks_of("user_ids", user_ids, X)
    blocks = [rank(rows, own, once, k, names) for rows, own in zip(np.ravel(X.to_delayed()), ids, strict=True)]
    known = user_ids._meta if is_collection(user_ids) else ids_from_values(user_ids)
    empty = ids_from_values(known).take(np.empty(0, np.int64))
    nothing = np.empty((0, k))
    meta = _frame(empty, nothing.astype(np.int32), nothing.astype(np.float32), list(categories))
    return dd.from_delayed(blocks, meta=meta, verify_meta=False)


def rank_block_of_users(X: Any, user_ids: Any, model: KeptModel, k: int, categories: list[str]) -> pd.DataFrame:
    """Return the lists of one block of users."""
    return _frame(user_ids, *model.predict_top_k(X, k), categories)


def _frame(user_ids: Any, codes: np.ndarray, scores: np.ndarray, categories: list[str]) -> pd.DataFrame:
    n, k = codes.shape
    ids = ids_from_values(user_ids).to_pandas()
    frame = pd.DataFrame(
        {
            USER_ID: ids.repeat(k).reset_index(drop=True),
            RANK: np.tile(np.arange(1, k + 1, dtype=np.int16), n),
            CATEGORY: pd.Categorical.from_codes(codes.ravel().tolist(), pd.Index(categories)),
            SCORE: scores.ravel(),
        }
    )
    return frame[np.isfinite(frame[SCORE])].reset_index(drop=True)

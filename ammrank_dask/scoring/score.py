"""Score every user and write the categories they qualify for."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from distributed import Client

from ammrank_dask.features.store import Features, check_features
from ammrank_dask.features.write import write_features
from ammrank_dask.model.kept_model import KeptModel, check_model
from ammrank_dask.model.saved import RankModel, load_model
from ammrank_dask.runtime.client import client_by_name, current_client
from ammrank_dask.runtime.collections import blocks_of, check_blocks, temporary_scratch
from ammrank_dask.runtime.tasks import Progress, silent
from ammrank_dask.scoring.chances import Chances
from ammrank_dask.scoring.qualifications import Qualifications, check_qualifications, open_qualifications
from ammrank_dask.scoring.score_passes import check_match, finish_qualifications, write_qualifications
from ammrank_dask.scoring.settings import ScoreSettings, choose_settings
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.in_memory import is_collection
from ammrank_dask.storage.lake.people import opt_outs_by_name
from ammrank_dask.storage.numbers import list_length
from ammrank_dask.storage.objects.atomic import (
    digest_of,
    swap_folder,
)
from ammrank_dask.storage.objects.folders import is_folder, list_paths, local_path
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.runs import is_finished, remove_run
from ammrank_dask.storage.vocabulary import CATEGORY, RANK, SCORE, USER_ID

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

"""Score every user and write the categories they qualify for."""

import logging
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy.sparse as sp
from distributed import Client

from ammrank_dask.features import Features, open_features
from ammrank_dask.monitor.events import LiveExposure
from ammrank_dask.ranker import AMMRank
from ammrank_dask.tasks import Progress, run_tasks, silent
from storage.errors import BadInput
from storage.files import write_atomic
from storage.ids import ids_from_values
from storage.vocabulary import CATEGORY, RANK, SCORE, USER_ID

logger = logging.getLogger(__name__)

BY_USER = "by_user"


@dataclass(frozen=True)
class ScoreCounts:
    """What a report needs to know about scored users, without any user in it.

    `exposure` is (L, k) int64: users who hold the category at that rank. `categories_per_user` is (L + 1,)
    int64: users who hold that many categories.
    """

    n_users: int
    cold_users: int
    exposure: np.ndarray
    categories_per_user: np.ndarray

    def __add__(self, other: Self) -> "ScoreCounts":
        """Return the counts of both sets of users together."""
        return ScoreCounts(
            self.n_users + other.n_users,
            self.cold_users + other.cold_users,
            self.exposure + other.exposure,
            self.categories_per_user + other.categories_per_user,
        )


@dataclass(frozen=True)
class Qualifications:
    """The qualifications of all users, in one parquet file per partition."""

    path: Path
    n_partitions: int
    categories: list[str]
    k: int
    counts: ScoreCounts

    @property
    def parts(self) -> list[Path]:
        """The files, in the order of the partitions."""
        return [part_path(self.path / BY_USER, i) for i in range(self.n_partitions)]

    def to_pandas(self, users: Iterable[Any] | None = None) -> pd.DataFrame:
        """Return user_id, rank, category and score, by user and rank; of the given users, or of all."""
        chosen = None if users is None else pc.field(USER_ID).isin(ids_from_values(list(users)).to_arrow())
        tables = [pq.read_table(part, filters=chosen) for part in self.parts]
        frame = pa.concat_tables(tables).unify_dictionaries().to_pandas()
        return frame.sort_values([USER_ID, RANK], ignore_index=True)


def score(
    client: Client,
    model: AMMRank | str | Path,
    features: Features,
    path: str | Path,
    *,
    k: int = 10,
    variant: str | None = None,
    clicks: Sequence[int] | None = None,
    progress: Progress = silent,
) -> Qualifications:
    """Write the k best categories of every user under `path` and count them.

    Parameters
    ----------
    client
        The cluster to score on, one task per partition.
    model
        A fitted model or the folder of a saved one.
    features
        The users to score.
    path
        A folder that all workers see; the files are `by_user/part-00000.parquet` and so on.
    k
        Categories per user.
    variant
        The columns the model was trained on; by default what the model says.
    clicks
        Clicks by category code that the dashboard compares the exposure with, while users are scored.
    progress
        Called after every finished task.
    """
    started = time.perf_counter()
    path = Path(path)
    fitted = model if isinstance(model, AMMRank) else AMMRank.load(model)
    if not 1 <= k <= fitted.n_categories_:
        raise ValueError(f"k must be between 1 and n_categories ({fitted.n_categories_}), got {k}")
    if variant is None:
        variant = fitted.variant_
    check_match(fitted, features, variant)
    by_user = path / BY_USER
    by_user.mkdir(parents=True, exist_ok=True)
    # A folder stays what the features say also when an earlier run had more partitions.
    expected = {part_path(by_user, i) for i in range(features.n_partitions)}
    for stale in set(by_user.glob("part-*.parquet")) - expected:
        stale.unlink()
    # A file reaches every worker more cheaply than an argument, and survives the death of one.
    model_path = path / ".model" if isinstance(model, AMMRank) else Path(model)
    tasks = [(str(model_path), str(features.path), i, str(by_user), k, variant) for i in range(features.n_partitions)]
    live = LiveExposure(client, features.categories, clicks=clicks)
    try:
        if isinstance(model, AMMRank):
            model.save(model_path)
        results = run_tasks(
            client,
            "score",
            score_partition,
            tasks,
            progress=progress,
            units=lambda counts: counts.n_users,
            on_result=lambda _, counts: live.add(counts.n_users, counts.exposure.sum(axis=1)),
        )
        live.flush()
    finally:
        if isinstance(model, AMMRank):
            shutil.rmtree(model_path, ignore_errors=True)
    counts = sum_counts(results, fitted.n_categories_, k)
    seconds = time.perf_counter() - started
    logger.info("scored %d users, %d of them cold, %.1f s", counts.n_users, counts.cold_users, seconds)
    return Qualifications(path, features.n_partitions, list(features.categories), k, counts)


def score_partition(
    model_path: str, features_path: str, partition: int, out_dir: str, k: int, variant: str | None
) -> ScoreCounts:
    """Write the qualifications of one partition as parquet, by user and rank, and return its counts."""
    model = AMMRank.load(model_path)
    features = open_features(features_path)
    part = features.partition(partition, variant=variant)
    codes, scores = score_block(model, part.X, k)
    table = qualification_table(part.user_ids.to_arrow(), codes, scores, list(features.categories))
    write_atomic(part_path(Path(out_dir), partition), lambda temporary: pq.write_table(table, temporary))
    n_users = len(codes)
    categories_per_user = np.zeros(len(features.categories) + 1, np.int64)
    categories_per_user[k] = n_users
    return ScoreCounts(
        n_users=n_users,
        cold_users=int((part.n_event_features == 0).sum()),
        exposure=count_exposure(codes, len(features.categories)),
        categories_per_user=categories_per_user,
    )


def score_block(model: AMMRank, X: sp.csr_matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes (n, k) int32 and scores (n, k) float32 of the k best categories of each row."""
    return model.predict_top_k(X, k)


def qualification_table(user_ids: pa.Array, codes: np.ndarray, scores: np.ndarray, categories: list[str]) -> pa.Table:
    """Return one row per user and rank, with the category as a dictionary over all `categories`."""
    n_users, k = codes.shape
    return pa.table(
        {
            USER_ID: user_ids.take(pa.array(np.repeat(np.arange(n_users), k))),
            RANK: pa.array(np.tile(np.arange(1, k + 1, dtype=np.int16), n_users)),
            CATEGORY: pa.DictionaryArray.from_arrays(pa.array(codes.ravel()), pa.array(categories, pa.string())),
            SCORE: pa.array(scores.ravel()),
        }
    )


def count_exposure(codes: np.ndarray, n_categories: int) -> np.ndarray:
    """Return how many rows hold each category at each rank, (n_categories, k) int64."""
    columns = [np.bincount(codes[:, rank], minlength=n_categories) for rank in range(codes.shape[1])]
    return np.stack(columns, axis=1).astype(np.int64)


def sum_counts(results: list[ScoreCounts], n_categories: int, k: int) -> ScoreCounts:
    """Return the counts of all partitions together; zeros when there is none."""
    nothing = ScoreCounts(0, 0, np.zeros((n_categories, k), np.int64), np.zeros(n_categories + 1, np.int64))
    return sum(results, start=nothing)


def check_match(model: AMMRank, features: Features, variant: str | None) -> None:
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


def part_path(folder: Path, partition: int) -> Path:
    """Return the file of one partition."""
    return folder / f"part-{partition:05d}.parquet"

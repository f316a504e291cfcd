"""Measure rankings block by block, and what policies would assign: sums that add up over blocks, and what follows.

`measure_block` is the chunk step, `+` combines, the properties and `interval` finalize.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.evaluation.folds import RESAMPLING_SALT, deal_users
from ammrank_dask.features.store import Features, open_features
from ammrank_dask.kernels.measures import add_resampled
from ammrank_dask.kernels.topk import top_k_rows
from ammrank_dask.model.ranking_sums import RankingSums, measure_rows
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.scoring.policies import CategoryTopN, PolicyCounts, UserTopK, share_slots
from ammrank_dask.storage.lake.write import read_truth, simulation_path, truth_path
from ammrank_dask.storage.objects.atomic import read_json
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.user_hash import hash_ids

TOP = 10
"""Precision, recall, F1 and NDCG are measured at 1 … TOP."""
REPLICATES = 400
# Where a uniform uint64 passes from one Poisson weight to the next; a weight above 11 comes once in 10⁹ draws.
_LIMITS = np.array(
    [int(math.exp(-1) * sum(1 / math.factorial(i) for i in range(n + 1)) * 2**64) for n in range(11)], np.uint64
)

TOP_K = 10


TRUTHS = ("expected_clicks", "propensity")
"""What the simulator knows: the expected click intensity of the label window, and the taste for each category."""


@dataclass(frozen=True)
class SliceSums:
    """Sums of errors and their number, by the codes of a slice."""

    error: np.ndarray
    count: np.ndarray

    def __add__(self, other: SliceSums) -> SliceSums:
        """Return the sums of both sets of users."""
        return SliceSums(self.error + other.error, self.count + other.count)


@dataclass(frozen=True)
class Measures:
    """Sums of the measures over all users and over resampled users.

    `replicates` holds REPLICATES sets of sums; `n_complete` counts users who rank every category.
    """

    sums: RankingSums
    replicates: RankingSums
    n_complete: int
    slices: Mapping[str, SliceSums]

    def __add__(self, other: Measures) -> Measures:
        """Return the measures of both sets of users together."""
        slices = {name: found + other.slices[name] for name, found in self.slices.items()}
        return Measures(
            self.sums + other.sums, self.replicates + other.replicates, self.n_complete + other.n_complete, slices
        )

    @property
    def n_users(self) -> int:
        """Users measured."""
        return self.sums.n_rows

    @property
    def disagreement(self) -> float:
        """ε_dis, the mean over users with a preferred pair; NaN without any."""
        return float(self.sums.disagreement)

    @property
    def kendall_tau(self) -> float | None:
        """Mean Kendall τ, None unless every user ranks every category; then it is 1 − 2 ε_dis."""
        return 1 - 2 * self.disagreement if self.n_users and self.n_complete == self.n_users else None

    @property
    def precision(self) -> np.ndarray:
        """Precision at 1 … TOP."""
        return self.sums.precision

    @property
    def recall(self) -> np.ndarray:
        """Recall at 1 … TOP."""
        return self.sums.recall

    @property
    def f1(self) -> np.ndarray:
        """Harmonic mean of mean precision and mean recall at 1 … TOP."""
        return self.sums.f1

    @property
    def ndcg(self) -> np.ndarray:
        """NDCG with binary relevance at 1 … TOP."""
        return self.sums.ndcg

    def interval(self, measure: str, level: float = 0.95) -> np.ndarray:
        """Return the bootstrap interval of a measure, (2,) or (2, TOP): lower and upper bound."""
        return _interval(getattr(self.replicates, measure), level)

    def standard_error(self, other: Measures | None = None) -> float:
        """Return the bootstrap standard error of ε_dis, or of its difference from that of other scores of the users."""
        errors = self.replicates.disagreement
        return float(np.nanstd(errors if other is None else errors - other.replicates.disagreement))

    def difference(self, other: Measures, measure: str = "disagreement", level: float = 0.95) -> tuple[float, ...]:
        """Return this measure minus that of other scores of the same users, with the bounds of its interval.

        Both are resampled with the same weights, so that what users have in common cancels.
        """
        change = float(getattr(self.sums, measure) - getattr(other.sums, measure))
        low, high = _interval(getattr(self.replicates, measure) - getattr(other.replicates, measure), level)
        return change, float(low), float(high)


def measure_block(
    scores: np.ndarray,
    rankings: np.ndarray,
    tied: np.ndarray,
    hashes: np.ndarray,
    slices: Mapping[str, tuple[np.ndarray, int]],
) -> Measures:
    """Measure some users.

    Parameters
    ----------
    scores
        (n, L), no NaN.
    rankings, tied
        (n, m) codes, best first, -1 after the last, every row with at least one; `tied` as `rankings_from_ranks`
        returns it, of the same shape.
    hashes
        (n,) uint64, a hash of the user: it decides the user's weights in the bootstrap.
    slices
        By name the codes (n,) of a division of the users, -1 for none, and the number of codes. The slice
        `category`, of all pairs by their preferred category, is added.
    """
    rows = measure_rows(scores, rankings, tied, TOP)
    replicates = np.zeros((REPLICATES, rows.values.shape[1]))
    with np.errstate(over="ignore"):  # plain numpy (without the compiler) warns where hashes wrap around
        add_resampled(hashes, rows.values, _LIMITS, replicates)
    by_slice = {"category": SliceSums(rows.category_wrong, rows.category_pairs)}
    for name, (codes, n_codes) in slices.items():
        inside = rows.is_ranked & (codes >= 0)
        code = codes[inside].astype(np.int64)
        by_slice[name] = SliceSums(
            np.bincount(code, rows.error[inside], minlength=n_codes),
            np.bincount(code, minlength=n_codes).astype(np.float64),
        )
    n_complete = int(((rankings >= 0).sum(axis=1) == scores.shape[1]).sum())
    return Measures(rows.sum(), RankingSums(replicates), n_complete, by_slice)


def _interval(replicates: np.ndarray, level: float) -> np.ndarray:
    """Return the percentiles that enclose `level` of the replicates; those that drew nobody are left out."""
    tail = (1 - level) / 2
    with np.errstate(invalid="ignore"):
        return np.nanquantile(replicates, [tail, 1 - tail], axis=0)


class Counter(ABC):
    """The counts of a policy: first the scores of all blocks, then what it came to.

    Parameters
    ----------
    n_users
        Users of all blocks.
    tie_order
        (L,) all category codes, the one to prefer among equal scores first.
    k
        Categories a user gets on average.
    """

    @abstractmethod
    def __init__(self, n_users: int, tie_order: np.ndarray, k: int = TOP_K) -> None: ...

    @abstractmethod
    def add(self, scores: np.ndarray) -> None:
        """Take the scores (n, L) of a block."""

    @abstractmethod
    def counts(self) -> PolicyCounts:
        """Return the counts of all blocks together."""


class UserTopKCounter(Counter):
    """Count what users get who get their k best categories each, block by block."""

    def __init__(self, n_users: int, tie_order: np.ndarray, k: int = TOP_K) -> None:
        self.n_users, self.tie_order = n_users, tie_order
        self.exposure = np.zeros((len(tie_order), min(k, len(tie_order))), np.int64)

    def add(self, scores: np.ndarray) -> None:
        """Count the users of a block."""
        n_categories, k = self.exposure.shape
        codes = np.empty((len(scores), k), np.int32)
        top_k_rows(scores, self.tie_order, codes, np.empty(codes.shape, np.float32))
        for rank in range(k):
            self.exposure[:, rank] += np.bincount(codes[:, rank], minlength=n_categories)

    def counts(self) -> PolicyCounts:
        """Return the counts: every user has k categories."""
        n_categories, k = self.exposure.shape
        per_user = np.zeros(n_categories + 1, np.int64)
        per_user[k] = self.n_users
        return PolicyCounts(self.exposure, per_user)


class CategoryTopNCounter(Counter):
    """Count what users get when every category takes its n best, as many slots in all as k a user.

    Which users those are is known only with all scores of the fold: they are kept, as float32.
    """

    def __init__(self, n_users: int, tie_order: np.ndarray, k: int = TOP_K) -> None:
        n_categories = len(tie_order)
        self.scores = np.empty((n_users, n_categories), np.float32)
        self.n_seen = 0
        self.taken = share_slots(np.full(n_categories, n_users), n_users * min(k, n_categories), tie_order)

    def add(self, scores: np.ndarray) -> None:
        """Keep the users of a block."""
        self.scores[self.n_seen : self.n_seen + len(scores)] = scores
        self.n_seen += len(scores)

    def counts(self) -> PolicyCounts:
        """Return the counts, after all blocks."""
        n_users, n_categories = self.scores.shape
        per_user = np.zeros(n_users, np.int64)
        for category in range(n_categories):
            best = np.argsort(-self.scores[:, category], kind="stable")[: self.taken[category]]
            per_user[best] += 1
        return PolicyCounts(self.taken[:, None].astype(np.int64), np.bincount(per_user, minlength=n_categories + 1))


COUNTERS: dict[str, type[Counter]] = {UserTopK.name: UserTopKCounter, CategoryTopN.name: CategoryTopNCounter}


def read_simulation(truth: Path) -> dict[str, Any] | None:
    """Return the parameters of the simulation whose truth is in a folder, None when there is none."""
    path = simulation_path(truth)
    return dict(read_json(path)) if path.is_file() else None


def measure_floor(
    client: Client,
    features: Features,
    truth: Path,
    *,
    n_folds: int,
    tuning_share: float,
    progress: Progress = silent,
) -> dict[str, Measures]:
    """Return the measures of the true propensities on the users of all folds, one task per partition."""
    tasks = [(str(features.path), i, str(truth), n_folds, tuning_share) for i in range(features.n_partitions)]
    parts = run_tasks(client, "evaluate-floor", measure_truth, tasks, progress=progress)
    found: dict[str, Measures] = {}
    for part in parts:
        for name, measures in part.items():
            found[name] = found[name] + measures if name in found else measures
    return found


def measure_truth(
    features_path: str, partition: int, truth: str, n_folds: int, tuning_share: float
) -> dict[str, Measures]:
    """Measure the truth about the users of one partition; empty when none of them is in a fold."""
    features = open_features(features_path)
    part = features.partition(partition)
    simulation = read_simulation(Path(truth))
    if part.rankings is None or simulation is None:
        return {}
    in_fold = (part.rankings >= 0).any(axis=1) & (deal_users(part.user_ids, n_folds, tuning_share) < 2 * n_folds)
    rows = np.flatnonzero(in_fold)
    scores = {name: np.full((len(rows), features.n_categories), -np.inf, np.float32) for name in TRUTHS}
    ids = part.user_ids.take(rows)
    columns = [simulation["categories"].index(category) for category in features.categories]
    is_text = simulation["parameters"]["user_ids"] == "string"
    for block in range(simulation["blocks"]):
        arrays = read_truth(truth_path(Path(truth), block))
        numbers = arrays["user_id"]
        names = [f"u{number:016x}" for number in numbers.tolist()] if is_text else numbers
        place = ids.positions_of(ids_from_values(names))
        known = place >= 0
        for name in TRUTHS:
            scores[name][place[known]] = arrays[name][known][:, columns]
    if not len(rows):
        return {}
    rankings = part.rankings[rows]
    hashes = hash_ids(ids, RESAMPLING_SALT)
    tied = np.zeros(rankings.shape, bool)
    return {name: measure_block(found, rankings, tied, hashes, {}) for name, found in scores.items()}

"""Count what a policy would assign to the test users of a fold."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from ammrank_dask.kernels.topk import top_k_rows
from ammrank_dask.scoring.policies import CategoryTopN, PolicyCounts, UserTopK, share_slots

TOP_K = 10


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

"""Count what a policy would hand out to the test users of a fold."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from ammrank_dask.kernels.topk import top_k_rows
from ammrank_dask.policies import CategoryTopN, PolicyCounts, UserTopK, share_slots

TOP_K = 10


class Counter(ABC):
    """The counts of a policy: first the scores of all blocks, then what it came to."""

    @abstractmethod
    def __init__(self, n_users: int, n_categories: int, k: int = TOP_K) -> None: ...

    @abstractmethod
    def add(self, scores: np.ndarray, tie_order: np.ndarray) -> None:
        """Take the scores (n, L) of a block; equal ones of a user stand in `tie_order`."""

    @abstractmethod
    def counts(self) -> PolicyCounts:
        """Return the counts of all blocks together."""


class UserTopKCounter(Counter):
    """Count what users get who get their k best categories each, block by block."""

    def __init__(self, n_users: int, n_categories: int, k: int = TOP_K) -> None:
        self.k = min(k, n_categories)
        self.exposure = np.zeros((n_categories, self.k), np.int64)
        self.n_users = 0

    def add(self, scores: np.ndarray, tie_order: np.ndarray) -> None:
        """Count the users of a block."""
        codes = np.empty((len(scores), self.k), np.int32)
        top_k_rows(scores, tie_order, codes, np.empty(codes.shape, np.float32))
        for rank in range(self.k):
            self.exposure[:, rank] += np.bincount(codes[:, rank], minlength=len(self.exposure))
        self.n_users += len(scores)

    def counts(self) -> PolicyCounts:
        """Return the counts of all blocks."""
        per_user = np.zeros(len(self.exposure) + 1, np.int64)
        per_user[self.k] = self.n_users
        return PolicyCounts(self.exposure, per_user)


class CategoryTopNCounter(Counter):
    """Count what users get when every category takes its n best, as many slots in all as k a user.

    Which users those are is known only with all scores of the fold: they are kept, as float32.
    """

    def __init__(self, n_users: int, n_categories: int, k: int = TOP_K) -> None:
        self.scores = np.empty((n_users, n_categories), np.float32)
        self.slots = n_users * min(k, n_categories)
        self.n_seen = 0
        self.tie_order = np.arange(n_categories)

    def add(self, scores: np.ndarray, tie_order: np.ndarray) -> None:
        """Keep the users of a block."""
        self.scores[self.n_seen : self.n_seen + len(scores)] = scores
        self.n_seen += len(scores)
        self.tie_order = tie_order

    def counts(self) -> PolicyCounts:
        """Return the counts, after all blocks."""
        n_users, n_categories = self.scores.shape
        taken = share_slots(np.full(n_categories, n_users), self.slots, self.tie_order)
        per_user = np.zeros(n_users, np.int64)
        for category in range(n_categories):
            best = np.argsort(-self.scores[:, category], kind="stable")[: taken[category]]
            per_user[best] += 1
        return PolicyCounts(taken[:, None].astype(np.int64), np.bincount(per_user, minlength=n_categories + 1))


COUNTERS: dict[str, type[Counter]] = {UserTopK.name: UserTopKCounter, CategoryTopN.name: CategoryTopNCounter}

"""The rules by which scores become qualifications.

A policy assigns categories to the users of one partition (`assign`). One that has to know the scores of all users first
asks for them (`needs_all_scores`) and makes a plan from them (`plan`). A further policy is one more class here and its
entry in POLICIES.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from distributed import Client

from ammrank_dask.kernels.balanced import Offers
from ammrank_dask.kernels.selection import assign_above, count_exposure, count_held, order_assigned
from ammrank_dask.runtime.tasks import Progress, silent
from ammrank_dask.scoring.balanced import BalancedPlan, assign_partition, balance
from ammrank_dask.scoring.category_cutoffs import ScoreCutoffs, ScoreScratch, find_cutoffs
from ammrank_dask.scoring.chance_table import ChanceTable
from ammrank_dask.scoring.exploration import PolicyLists, pad_lists
from ammrank_dask.scoring.exposure_bounds import ExposureBounds
from ammrank_dask.scoring.swaps import assign_block
from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.storage.store.qualifications import QualificationRows


@dataclass(frozen=True)
class PolicyCounts:
    """What a policy assigned: `exposure` (L, ranks) users by category and rank, `categories_per_user` (L + 1,).

    A policy whose ranks say nothing has one rank. `expected` is the sum of chances, None without chances, and
    `expected_value` that of chances times what a click is worth, None without values.
    """

    exposure: np.ndarray
    categories_per_user: np.ndarray
    expected: float | None = None
    expected_value: float | None = None

    def __add__(self, other: PolicyCounts) -> PolicyCounts:
        """Return the counts of both sets of users together."""
        return PolicyCounts(
            self.exposure + other.exposure,
            self.categories_per_user + other.categories_per_user,
            _add(self.expected, other.expected),
            _add(self.expected_value, other.expected_value),
        )

    @property
    def slots(self) -> int:
        """The number of assigned slots."""
        return int(self.exposure.sum())

    def to_json(self) -> dict[str, Any]:
        """Return the counts as they are stored."""
        return {
            "exposure": self.exposure.tolist(),
            "categories_per_user": self.categories_per_user.tolist(),
            "slots": self.slots,
            **({} if self.expected is None else {"expected_clicks": self.expected}),
            **({} if self.expected_value is None else {"expected_value": self.expected_value}),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PolicyCounts:
        """Return what `to_json` stored."""
        return cls(
            np.array(content["exposure"], np.int64),
            np.array(content["categories_per_user"], np.int64),
            content.get("expected_clicks"),
            content.get("expected_value"),
        )


def _add(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


@dataclass(frozen=True)
class ScoredUsers:
    """The users of a partition as policies see them.

    `codes` and `scores` (n, k) are the best categories of each, -1 where there are fewer; `bits` (L, n) are the bits of
    all float32 scores, or of what categories are taken by instead, or None; `partition` is their number.
    """

    user_ids: UserIds
    codes: np.ndarray
    scores: np.ndarray
    tie_order: np.ndarray
    bits: np.ndarray | None = None
    partition: int = 0


@dataclass(frozen=True)
class ChancePlan:
    """What a policy that needs chances plans with: chances of all users, bounds, k, and prices to start from.

    With `weights` and their `unit`, as `balance` takes them, the most is asked for in money.
    """

    table: ChanceTable
    bounds: ExposureBounds
    k: int
    start: np.ndarray | None = None
    weights: np.ndarray | None = None
    unit: float | None = None


@dataclass(frozen=True)
class PlanRequest:
    """What a policy that needs all scores plans from.

    `scratch` has the scores of all users. A category takes `n` users; None for as many as make `slots` in all. Among
    equal scores of a user the first of `tie_order` (L,) is preferred. `chances` is there for a policy that needs it.
    """

    client: Client
    scratch: ScoreScratch
    n: int | None
    slots: int
    tie_order: np.ndarray
    chances: ChancePlan | None = None
    progress: Progress = silent


class Policy(ABC):
    """What every policy answers."""

    name: ClassVar[str]
    needs_all_scores: ClassVar[bool] = False
    needs_chances: ClassVar[bool] = False

    @abstractmethod
    def n_ranks(self, k: int) -> int:
        """Return how many ranks are counted apart."""

    @abstractmethod
    def assign(self, users: ScoredUsers, plan: Any) -> QualificationRows:
        """Return what the users of a partition hold, best first."""

    @abstractmethod
    def lists(self, users: ScoredUsers, offers: Offers | None, plan: Any) -> PolicyLists:
        """Return what the users of a partition are given where nothing is drawn; `offers` if there are chances."""

    def plan(self, request: PlanRequest) -> Any:
        """Return what `assign` has to know of all users: nothing, unless the policy needs all scores."""
        return None

    def facts(self, plan: Any) -> dict[str, Any]:
        """Return what the manifest keeps of the plan."""
        return {}

    def count(self, rows: QualificationRows, n_categories: int, k: int) -> PolicyCounts:
        """Count the assigned slots."""
        exposure = np.zeros((n_categories, self.n_ranks(k)), np.int64)
        count_exposure(rows.indptr, rows.category, exposure)
        held = np.diff(rows.indptr)
        return PolicyCounts(
            exposure,
            np.bincount(held, minlength=n_categories + 1).astype(np.int64),
            None if rows.chance is None else float(rows.chance.sum(dtype=np.float64)),
            None if rows.value is None else float(rows.value.sum(dtype=np.float64)),
        )


class UserTopK(Policy):
    """Every user gets their k best categories."""

    name = "user_top_k"

    def n_ranks(self, k: int) -> int:
        """Return k."""
        return k

    def assign(self, users: ScoredUsers, plan: None = None) -> QualificationRows:
        """Return the k best categories of each user."""
        indptr = np.empty(len(users.codes) + 1, np.int64)
        count_held(users.codes, indptr)
        if indptr[-1] == users.codes.size:
            return QualificationRows(users.user_ids, indptr, users.codes.ravel(), users.scores.ravel())
        kept = users.codes >= 0
        return QualificationRows(users.user_ids, indptr, users.codes[kept], users.scores[kept])

    def lists(self, users: ScoredUsers, offers: Offers | None, plan: None = None) -> PolicyLists:
        """Return the k best categories of each user."""
        return PolicyLists(users.codes)


class CategoryTopN(Policy):
    """Every category takes the n users who score highest in it; equal scores by user id.

    A category without planes has no scores and takes nobody.
    """

    name = "category_top_n"
    needs_all_scores = True

    def n_ranks(self, k: int) -> int:
        """Return 1: what a category's place means differs from user to user."""
        return 1

    def plan(self, request: PlanRequest) -> ScoreCutoffs:
        """Return above which score each category takes users."""

        def wanted(scored: np.ndarray) -> np.ndarray:
            if request.n is None:
                return share_slots(scored, request.slots, request.tie_order)
            return np.minimum(scored, request.n)

        return find_cutoffs(request.client, request.scratch, wanted, progress=request.progress)

    def facts(self, plan: ScoreCutoffs) -> dict[str, Any]:
        """Return the largest number of users that a category takes."""
        return {"n": int(plan.n_taken.max(initial=0))}

    def assign(self, users: ScoredUsers, plan: ScoreCutoffs) -> QualificationRows:
        """Return the categories that took each user, by score."""
        assert users.bits is not None
        stop = plan.tie_end(users.user_ids)
        indptr = np.empty(len(users.user_ids) + 1, np.int64)
        codes, bits = np.empty(0, np.int32), np.empty(0, np.uint32)
        assign_above(users.bits, plan.key, stop, users.tie_order, indptr, codes, bits)
        if indptr[-1]:
            codes, bits = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.uint32)
            assign_above(users.bits, plan.key, stop, users.tie_order, indptr, codes, bits)
        return QualificationRows(users.user_ids, indptr, codes, bits.view(np.float32))

    def lists(self, users: ScoredUsers, offers: Offers | None, plan: ScoreCutoffs) -> PolicyLists:
        """Return the categories that take each user at the cutoffs; what is drawn comes on top."""
        return PolicyLists(pad_lists(self.assign(users, plan)), gives_way=False)


class Balanced(Policy):
    """Every user gets k categories, every category stays between floor and cap, at the most clicks or value."""

    name = "balanced"
    needs_all_scores = True
    needs_chances = True

    def n_ranks(self, k: int) -> int:
        """Return k."""
        return k

    def plan(self, request: PlanRequest) -> BalancedPlan:
        """Return the prices and swaps by which categories are shared out."""
        assert request.chances is not None
        return balance(
            request.client, request.chances.table, request.chances.bounds, request.chances.k, request.tie_order,
            weights=request.chances.weights, unit=request.chances.unit, start=request.chances.start,
            progress=request.progress,
        )  # fmt: skip

    def facts(self, plan: BalancedPlan) -> dict[str, Any]:
        """Return expected clicks, duality gap, prices and bounds."""
        return plan.to_json()

    def assign(self, users: ScoredUsers, plan: BalancedPlan) -> QualificationRows:
        """Return what the plan gives the users of a partition, by score."""
        assert users.bits is not None
        codes = assign_partition(plan, users.partition, users.tie_order)
        indptr = np.concatenate([[0], np.cumsum((codes >= 0).sum(axis=1))])
        position = np.empty(len(users.tie_order), np.int64)
        position[users.tie_order] = np.arange(len(users.tie_order))
        category, bits = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.uint32)
        order_assigned(codes, users.bits, position, indptr, category, bits)
        return QualificationRows(users.user_ids, indptr, category, bits.view(np.float32))

    def lists(self, users: ScoredUsers, offers: Offers | None, plan: BalancedPlan) -> PolicyLists:
        """Return the k best of worth − price; swaps, which move a few users, are left out."""
        assert offers is not None
        if plan.weights is not None:
            offers = offers._replace(weights=plan.weights)
        return PolicyLists(assign_block(offers, plan.prices, plan.k, np.asarray(users.tie_order, np.int32))[0])


POLICIES: dict[str, Policy] = {policy.name: policy for policy in (UserTopK(), CategoryTopN(), Balanced())}


def share_slots(scored: np.ndarray, slots: int, tie_order: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return how many users each category takes so that all together take `slots`, or all there are if that is fewer.

    All take the same number, but no more than have a score in them; what does not divide evenly goes to the first
    of `tie_order`.

    Examples
    --------
    >>> share_slots(np.array([10, 2, 10]), 9, [2, 1, 0])
    array([3, 2, 4])
    """
    low, high = 0, int(scored.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        if np.minimum(scored, middle).sum() <= slots:
            low = middle
        else:
            high = middle - 1
    taken = np.minimum(scored, low)
    more = [category for category in tie_order if scored[category] > low]
    taken[more[: max(0, slots - int(taken.sum()))]] += 1
    return taken

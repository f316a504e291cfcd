"""Give some slots by a draw, so that categories which users' own best leave out are seen, and their clicks with them.

Drawn from are the categories that the k best of all users leave below their floor, or give to nobody. Every user gets
a share of their slots by the draw on average: a whole number at random, of categories of theirs at random. A draw is a
function of its seed and the user's id, so that it is the same on any number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ammrank_dask.kernels.hashing import hash_integers
from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.storage.store.qualifications import QualificationRows
from ammrank_dask.user_hash import hash_ids

MOST = 0.5
"""The largest share of slots that may be drawn, and of a user's categories: what is certain is no draw."""
_SALTS = {"start": 0x6578706C6F726531, "order": 0x6578706C6F726532, "category": 0x6578706C6F726533}


@dataclass(frozen=True)
class Exploration:
    """A plan of draws: `targets` are the codes to draw from, `share` the slots of a user that are drawn on average.

    Users stand in a line, each as long as the slots that are expected for them, times `scale`, which makes the line a
    whole number of slots long. `ends` (partitions + 1,) is where each partition begins and ends. There is a slot at
    `start`, `start` + 1, and so on: who stands there gets it.
    """

    targets: np.ndarray
    share: float
    k: int
    seed: int
    scale: float
    start: float
    ends: np.ndarray

    @property
    def n_slots(self) -> int:
        """How many slots are drawn in all."""
        return int(self.ends[-1])

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps."""
        return {"share": self.share, "slots": self.n_slots, "targets": self.targets.tolist()}


@dataclass(frozen=True)
class Drawn:
    """What users of a partition were drawn: `codes` (n, m), -1 after the last, and the `propensity` (n,) of each.

    The propensity of a category that a user is drawn from is the same for all of them: how probable it was.
    """

    codes: np.ndarray
    propensity: np.ndarray

    @property
    def n_slots(self) -> np.ndarray:
        """How many slots each user was drawn, (n,)."""
        return (self.codes >= 0).sum(axis=1)


def find_targets(n_users: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """Return the codes of the categories that fewer users hold than their floor.

    The floor of a category that somebody may hold is one user at least.

    Examples
    --------
    >>> find_targets(np.array([5, 0, 3, 0]), np.array([2, 1, 4, 0]))
    array([1, 2])
    """
    return np.flatnonzero(n_users < floor)


def describe_draws(n_slots: int, n_targets: int) -> str:
    """Return as a phrase how many slots were drawn, or why none was.

    Examples
    --------
    >>> describe_draws(0, 0)
    'nothing drawn: no category is below its floor'
    >>> describe_draws(0, 3)
    'nothing drawn: the share of all slots is less than one slot'
    >>> describe_draws(1200, 1)
    "1,200 slots drawn from 1 category that users' own best leave below its floor"
    """
    if not n_targets:
        return "nothing drawn: no category is below its floor"
    if not n_slots:
        return "nothing drawn: the share of all slots is less than one slot"
    slots = "1 slot" if n_slots == 1 else f"{n_slots:,} slots"
    targets = "1 category" if n_targets == 1 else f"{n_targets:,} categories"
    return f"{slots} drawn from {targets} that users' own best leave below {'its' if n_targets == 1 else 'their'} floor"


def expect_draws(allowed: np.ndarray, targets: np.ndarray, k: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return how many slots are expected to be drawn for each user, and from how many categories; both (n,).

    Parameters
    ----------
    allowed
        (n, L) bool: what users may hold.

    Examples
    --------
    >>> expect_draws(np.array([[True] * 4, [True, True, False, True]]), np.array([2, 3]), 3, 0.4)
    (array([1. , 0.5]), array([2, 1]))
    """
    n_targets = allowed[:, targets].sum(axis=1)
    slots = share * np.minimum(allowed.sum(axis=1), k)
    return np.minimum(slots, MOST * n_targets), n_targets


def plan_exploration(expected: Sequence[float], targets: np.ndarray, *, share: float, k: int, seed: int) -> Exploration:
    """Return the plan from the slots that are expected in each partition, before they are made a whole number.

    Examples
    --------
    >>> plan = plan_exploration([1.5, 2.75], np.array([7]), share=0.1, k=10, seed=0)
    >>> plan.n_slots, plan.ends.round(3).tolist()
    (4, [0.0, 1.412, 4.0])
    """
    total = float(np.sum(expected))
    n_slots = int(np.floor(total + 1e-9))
    scale = n_slots / total if n_slots else 0.0
    ends = np.concatenate([[0.0], scale * np.cumsum(expected)])
    ends[-1] = n_slots
    start = float(_hash(np.zeros(1, np.uint64), _salt("start", seed))[0] / 2.0**64)
    return Exploration(targets, share, k, seed, scale, start, ends)


def draw_slots(plan: Exploration, user_ids: UserIds, allowed: np.ndarray, partition: int) -> Drawn:
    """Return what the users of a partition are drawn; `allowed` (n, L) says what they may hold."""
    expected, n_targets = expect_draws(allowed, plan.targets, plan.k, plan.share)
    expected = plan.scale * expected
    n_drawn = _stand_in_line(plan, user_ids, expected, partition)
    rows = np.flatnonzero(n_drawn)
    # Of the categories that a user is drawn from, those with the lowest keys.
    user_hash = hash_ids(user_ids.take(rows), _salt("category", plan.seed))
    keys = _hash(user_hash[:, None] ^ _hash(plan.targets.astype(np.uint64), 0), _salt("category", plan.seed))
    may_be_drawn = allowed[np.ix_(rows, plan.targets)]
    order = np.lexsort((keys, ~may_be_drawn), axis=1)
    codes = np.full((len(user_ids), int(n_drawn.max(initial=0))), -1, np.int32)
    for slot in range(codes.shape[1]):
        chosen = n_drawn[rows] > slot
        codes[rows[chosen], slot] = plan.targets[order[chosen, slot]]
    return Drawn(codes, expected / np.maximum(1, n_targets))


def _stand_in_line(plan: Exploration, user_ids: UserIds, expected: np.ndarray, partition: int) -> np.ndarray:
    """Return how many slots lie where each user stands, (n,) int64: the expected number, rounded up or down."""
    begin, end = plan.ends[partition : partition + 2]
    order = np.argsort(hash_ids(user_ids, _salt("order", plan.seed)), kind="stable")
    reached = np.minimum(begin + np.cumsum(expected[order]), end)
    # Whatever was rounded in the sum: a partition ends where the next one begins.
    standing = np.flatnonzero(expected[order] > 0)
    if len(standing):
        reached[standing[-1] :] = end
    passed = np.floor(np.concatenate([[begin], reached]) - plan.start).astype(np.int64)
    n_drawn = np.zeros(len(order), np.int64)
    n_drawn[order] = np.diff(passed)
    return n_drawn


def leave_room(codes: np.ndarray, scores: np.ndarray, drawn: Drawn, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the best categories of users without what they were drawn, and so many fewer of them.

    Parameters
    ----------
    codes, scores
        (n, k) the best categories of each user, -1 and -inf where there are fewer.

    Examples
    --------
    >>> drawn = Drawn(np.array([[7], [2], [-1]]), np.full(3, 0.1))
    >>> codes, scores = np.array([[1, 2, 3]] * 3), np.array([[9.0, 8.0, 7.0]] * 3)
    >>> leave_room(codes, scores, drawn, 3)[0].tolist()
    [[1, 2, -1], [1, 3, -1], [1, 2, 3]]
    """
    is_drawn = (codes[:, :, None] == drawn.codes[:, None, :]).any(axis=2) & (codes >= 0)
    order = np.argsort(is_drawn, axis=1, kind="stable")
    n_slots = np.minimum((codes >= 0).sum(axis=1), k) - drawn.n_slots
    kept = np.arange(codes.shape[1]) < n_slots[:, None]
    codes, scores = (np.take_along_axis(values, order, axis=1) for values in (codes, scores))
    return np.where(kept, codes, -1), np.where(kept, scores, -np.inf).astype(scores.dtype)


def order_drawn(drawn: Drawn, scores: np.ndarray, tie_order: np.ndarray) -> Drawn:
    """Return the draws of each user by score, the highest first; `scores` (L, n), equal ones in `tie_order`."""
    position = np.empty(len(tie_order), np.int64)
    position[tie_order] = np.arange(len(tie_order))
    own = _scores_of(drawn.codes, scores)
    order = np.lexsort((position[drawn.codes], -own, drawn.codes < 0), axis=1)
    return replace(drawn, codes=np.take_along_axis(drawn.codes, order, axis=1))


def append_drawn(rows: QualificationRows, drawn: Drawn, scores: np.ndarray) -> QualificationRows:
    """Return qualifications with what users were drawn at their last ranks, and with propensities: 1 for the others.

    Parameters
    ----------
    scores
        (L, n) float32.
    """
    n_drawn = drawn.n_slots
    indptr = rows.indptr + np.concatenate([[0], np.cumsum(n_drawn)])
    user, slot = np.nonzero(drawn.codes >= 0)
    at = indptr[user + 1] - n_drawn[user] + slot
    category, score = np.empty(indptr[-1], rows.category.dtype), np.empty(indptr[-1], rows.score.dtype)
    propensity = np.ones(indptr[-1], np.float32)
    others = np.ones(indptr[-1], bool)
    others[at] = False
    category[others], score[others] = rows.category, rows.score
    category[at], score[at] = drawn.codes[user, slot], scores[drawn.codes[user, slot], user]
    propensity[at] = drawn.propensity[user]
    return QualificationRows(rows.user_ids, indptr, category, score, propensity=propensity)


def _scores_of(codes: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return np.asarray(scores[np.maximum(codes, 0), np.arange(len(codes))[:, None]])


def _salt(what: str, seed: int) -> int:
    return int(_hash(np.array([_SALTS[what]], np.uint64), seed & 0xFFFFFFFFFFFFFFFF)[0])


def _hash(values: np.ndarray, salt: int) -> np.ndarray:
    flat = np.ascontiguousarray(values, np.uint64).ravel()
    hashes = np.empty(len(flat), np.uint64)
    with np.errstate(over="ignore"):
        hash_integers(flat, np.uint64(salt), hashes)
    return hashes.reshape(values.shape)

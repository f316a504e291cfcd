"""Draw some slots at random, so that categories which users' own best leave out are seen and may be clicked.

The drawn categories are those that the k best of all users leave below their floor, or give to nobody. Of every user's
slots a share is drawn on average: a random whole number of slots, for random categories that the user may have. A draw
is a function of its seed and the user's id, so it is the same on any number of workers.

In an estimate of what a policy would have earned, a click counts by one over the probability that the user has the
category, over all possible draws. A policy is represented by its lists: what it would assign had nothing been drawn, at
the prices or cutoffs of the night. The last categories of an active list give way to drawn slots, so they have a
probability below 1. Of any other policy, only pairs that are in the active lists or that could be drawn have a
probability above 0. For the rest nothing can be estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import gammaln

from ammrank_dask.kernels.hashing import hash_integers
from ammrank_dask.storage.store.ids import UserIds, ids_from_arrays
from ammrank_dask.storage.store.qualifications import QualificationRows
from ammrank_dask.storage.store.scratch_arrays import is_saved, load_array, load_arrays, load_facts, save_arrays
from ammrank_dask.storage.vocabulary import POLICY_NAMES
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


@dataclass(frozen=True)
class FirstScores:
    """The users of a partition as the first pass left them.

    `codes` and `scores` (n, k) are their best categories, `everything` (L, n) all scores, `chances` (n, L) or None,
    `allowed` (n, L) bool what they may hold, `activity` (n,) how active they are, `group` (n,) the `group_of` each.
    """

    user_ids: UserIds
    codes: np.ndarray
    scores: np.ndarray
    everything: np.ndarray
    chances: np.ndarray | None
    allowed: np.ndarray
    activity: np.ndarray
    group: np.ndarray


@dataclass(frozen=True)
class ExplorationScratch:
    """First scores and draws, a folder each a partition, for as long as a run is going on."""

    folder: Path

    def _first(self, partition: int) -> Path:
        return self.folder / f"first-{partition:05d}"

    def _drawn(self, partition: int) -> Path:
        return self.folder / f"drawn-{partition:05d}"

    def save(self, partition: int, first: FirstScores, counts: Mapping[str, Any]) -> None:
        """Keep the scores of a partition with its counts."""
        arrays = {name: getattr(first, name) for name in ("codes", "scores", "everything", "activity", "group")}
        arrays["allowed"] = np.packbits(first.allowed, axis=1)
        if first.chances is not None:
            arrays["chances"] = first.chances
        save_arrays(self._first(partition), {**arrays, **first.user_ids.to_arrays()}, counts)

    def counts(self, partition: int) -> dict[str, Any] | None:
        """Return the counts of a partition, None before it is kept."""
        folder = self._first(partition)
        return load_facts(folder) if is_saved(folder) else None

    def load(self, partition: int) -> FirstScores:
        """Return what `save` kept."""
        arrays, _ = load_arrays(self._first(partition))
        n_categories = len(arrays["everything"])
        return FirstScores(
            ids_from_arrays(arrays), arrays["codes"], arrays["scores"], arrays["everything"], arrays.get("chances"),
            np.unpackbits(arrays["allowed"], axis=1, count=n_categories).astype(bool), arrays["activity"],
            arrays["group"],
        )  # fmt: skip

    def best(self, partition: int) -> tuple[np.ndarray, np.ndarray]:
        """Return codes and scores (n, k) of the best categories alone."""
        return load_array(self._first(partition), "codes"), load_array(self._first(partition), "scores")

    def scores(self, partition: int) -> np.ndarray:
        """Return all scores (L, n) alone, mapped."""
        return load_array(self._first(partition), "everything", mapped=True)

    def save_drawn(self, partition: int, drawn: Drawn, counts: Mapping[str, Any]) -> None:
        """Keep the draws of a partition with their counts."""
        save_arrays(self._drawn(partition), {"codes": drawn.codes, "propensity": drawn.propensity}, counts)

    def drawn(self, partition: int) -> Drawn:
        """Return the draws of a partition."""
        arrays, _ = load_arrays(self._drawn(partition))
        return Drawn(arrays["codes"], arrays["propensity"])

    def drawn_counts(self, partition: int) -> dict[str, Any] | None:
        """Return the counts of the draws of a partition, None before they are kept."""
        folder = self._drawn(partition)
        return load_facts(folder) if is_saved(folder) else None


@dataclass(frozen=True)
class PolicyLists:
    """What a policy assigns when nothing is drawn: `codes` (n, m) in the order of preference, -1 after the last.

    `gives_way` tells whether the last of a list give way to drawn slots; if not, these come on top.
    """

    codes: np.ndarray
    gives_way: bool = True

    def table(self, n_categories: int) -> np.ndarray:
        """Return of every user and category whether the user is given it, (n, L) bool."""
        held = np.zeros((len(self.codes), n_categories), bool)
        user, place = np.nonzero(self.codes >= 0)
        held[user, self.codes[user, place]] = True
        return held


def pad_lists(rows: QualificationRows) -> np.ndarray:
    """Return the codes of rows as one list a user, (n, longest list) int32, -1 after the last.

    Examples
    --------
    >>> rows = QualificationRows(None, np.array([0, 2, 2, 3]), np.array([4, 1, 7]), np.zeros(3))
    >>> pad_lists(rows).tolist()
    [[4, 1], [-1, -1], [7, -1]]
    """
    held = np.diff(rows.indptr)
    codes = np.full((len(held), int(held.max(initial=0))), -1, np.int32)
    codes[np.arange(codes.shape[1]) < held[:, None]] = rows.category
    return codes


def hold_probability(lists: PolicyLists, plan: Exploration, allowed: np.ndarray) -> np.ndarray:
    """Return the probability that each user has each category under the active policy, (n, L) float64.

    Parameters
    ----------
    lists
        Those of the active policy.
    allowed
        (n, L) bool: what users may hold.

    Examples
    --------
    Half of two slots is drawn from categories 1 and 2: one slot, either of them.

    >>> plan = Exploration(np.array([1, 2]), 0.5, 2, 0, 1.0, 0.3, np.array([0.0, 1.0]))
    >>> hold_probability(PolicyLists(np.array([[0, 3]])), plan, np.ones((1, 4), bool)).tolist()
    [[1.0, 0.5, 0.5, 0.0]]
    >>> hold_probability(PolicyLists(np.array([[1, 3]])), plan, np.ones((1, 4), bool)).tolist()
    [[0.0, 1.0, 0.5, 0.5]]
    """
    expected, n_targets = expect_draws(allowed, plan.targets, plan.k, plan.share)
    expected = plan.scale * expected
    is_target = np.zeros(allowed.shape[1], bool)
    is_target[plan.targets] = True
    probability = np.where(allowed & is_target, (expected / np.maximum(1, n_targets))[:, None], 0.0)
    user, place = np.nonzero(lists.codes >= 0)
    code = lists.codes[user, place]
    if not lists.gives_way:
        probability[user, code] = 1.0
        return probability
    targeted = is_target[lists.codes] & (lists.codes >= 0)
    earlier = (np.cumsum(targeted, axis=1) - targeted)[user, place]
    n_listed = (lists.codes >= 0).sum(axis=1)[user]
    own, total = targeted[user, place], n_targets[user]
    held = np.zeros(len(user))
    fewest = np.floor(expected)
    for more, weight in ((0, 1 - (expected - fewest)), (1, expected - fewest)):
        drawn = (fewest.astype(np.int64) + more)[user]
        # So many of what stands before it in the list must be among the drawn, or else it falls off the end.
        wanted = place - n_listed + drawn + 1
        is_drawn = np.where(own, drawn / np.maximum(1, total), 0.0)
        stays = _at_least(wanted, total - own, earlier, drawn)
        held += weight[user] * (is_drawn + (1 - is_drawn) * stays)
    probability[user, code] = held
    return probability


def _at_least(wanted: np.ndarray, total: np.ndarray, marked: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return the probability that `drawn` of `total` things have `wanted` of the `marked` ones or more; all (m,).

    Examples
    --------
    >>> _at_least(np.array([0, 1, 2]), np.full(3, 4), np.full(3, 2), np.full(3, 2)).round(4).tolist()
    [1.0, 0.8333, 0.1667]
    """
    result = (wanted <= 0).astype(np.float64)
    rare = np.flatnonzero((wanted > 0) & (marked >= wanted) & (drawn >= wanted))
    total, marked, drawn = total[rare], marked[rare], drawn[rare]
    for hits in range(1, int(drawn.max(initial=0)) + 1):
        possible = (hits >= wanted[rare]) & (hits <= marked) & (hits <= drawn) & (drawn - hits <= total - marked)
        at = np.flatnonzero(possible)
        ways = (
            _log_choose(marked[at], hits)
            + _log_choose(total[at] - marked[at], drawn[at] - hits)
            - _log_choose(total[at], drawn[at])
        )
        result[rare[at]] += np.exp(ways)
    return np.minimum(result, 1.0)


def _log_choose(n: np.ndarray, k: np.ndarray | int) -> np.ndarray:
    return np.asarray(gammaln(n + 1) - gammaln(np.asarray(k) + 1) - gammaln(n - k + 1))


def add_inclusion(
    rows: QualificationRows,
    lists: Mapping[str, PolicyLists],
    in_force: str,
    plan: Exploration,
    drawn: Drawn,
    allowed: np.ndarray,
) -> tuple[QualificationRows, np.ndarray]:
    """Return what users hold with `inclusion` and `held_by`, and the probabilities of all pairs (n, L).

    What the active policy assigned beyond its lists, by a swap, is nobody's: it has no probability of its own.

    Parameters
    ----------
    rows
        What the active policy assigned, and what was drawn.
    lists
        Those of the policies to estimate, and of the active one.
    """
    probability = hold_probability(lists[in_force], plan, allowed)
    of_pair = (rows.user, rows.category)
    is_drawn = np.zeros(allowed.shape, bool)
    user, slot = np.nonzero(drawn.codes >= 0)
    is_drawn[user, drawn.codes[user, slot]] = True
    held_by = np.zeros(len(rows.category), np.uint8)
    for name, own in lists.items():
        held_by |= own.table(allowed.shape[1])[of_pair].astype(np.uint8) << POLICY_NAMES.index(name)
    held_by[~(is_drawn | lists[in_force].table(allowed.shape[1]))[of_pair]] = 0
    return replace(rows, inclusion=probability[of_pair].astype(np.float32), held_by=held_by), probability


def count_support(
    codes: np.ndarray, probability: np.ndarray, chance: np.ndarray | None, value: np.ndarray | None = None
) -> list[float]:
    """Return how many slots a policy's lists have, how many could be held, and the sums of their chances and values.

    Parameters
    ----------
    codes
        (n, m) as `PolicyLists` has them.
    probability, chance, value
        (n, L); without chances or values their sum is 0.
    """
    user, place = np.nonzero(codes >= 0)
    pairs = user, codes[user, place]
    is_possible = probability[pairs] > 0
    sums = [
        0.0 if table is None else float(table[pairs][is_possible].sum(dtype=np.float64)) for table in (chance, value)
    ]
    return [float(len(user)), float(is_possible.sum()), *sums]


def sum_support(
    counts: Sequence[Mapping[str, Sequence[float]]], has_chances: bool, has_values: bool = False
) -> dict[str, dict[str, float]]:
    """Return what `count_support` found of all partitions, by policy, as a manifest keeps it."""
    totals = {name: np.sum([found[name] for found in counts], axis=0).tolist() for name in counts[0]}
    return {
        name: {"slots": int(slots), "supported": int(supported)}
        | ({"expected_clicks": clicks} if has_chances else {})
        | ({"expected_value": value} if has_values else {})
        for name, (slots, supported, clicks, value) in totals.items()
    }

"""Say how probable it was that a user holds a category, over all that exploration could have drawn.

A click counts in an estimate of what a policy would have earned by one over this probability. A policy is taken as what
it would hand out had nothing been drawn, at the prices or cutoffs of the night: its lists. Of the policy in force the
last of a list give way to drawn slots, so even they are held with a probability; of any other policy only what is in
the lists of the policy in force, or could be drawn, has one above 0. The rest is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln

from ammrank_dask.scoring.exploration import Drawn, Exploration, expect_draws
from ammrank_dask.storage.store.qualifications import QualificationRows
from ammrank_dask.storage.vocabulary import POLICY_NAMES


@dataclass(frozen=True)
class PolicyLists:
    """What a policy hands out when nothing is drawn: `codes` (n, m) in the order of preference, -1 after the last.

    `gives_way` tells whether the last of a list give way to drawn slots; if not, these come on top.
    """

    codes: np.ndarray
    gives_way: bool = True

    def table(self, n_categories: int) -> np.ndarray:
        """Tell of every user and category whether the user is given it, (n, L) bool."""
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
    """Return how probable it is that each user holds each category under a policy in force, (n, L) float64.

    Parameters
    ----------
    lists
        Those of the policy in force.
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

    What the policy in force handed out beyond its lists, by a swap, is nobody's: it has no probability of its own.

    Parameters
    ----------
    rows
        What the policy `in_force` handed out, and what was drawn.
    lists
        Those of the policies to estimate, and of the one in force.
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


def count_support(codes: np.ndarray, probability: np.ndarray, chance: np.ndarray | None) -> list[float]:
    """Return how many slots a policy's lists have, how many of them could be held, and the sum of their chances.

    Parameters
    ----------
    codes
        (n, m) as `PolicyLists` has them.
    probability, chance
        (n, L); without chances their sum is 0.
    """
    user, place = np.nonzero(codes >= 0)
    pairs = user, codes[user, place]
    is_possible = probability[pairs] > 0
    expected = 0.0 if chance is None else float(chance[pairs][is_possible].sum(dtype=np.float64))
    return [float(len(user)), float(is_possible.sum()), expected]


def sum_support(counts: Sequence[Mapping[str, Sequence[float]]], has_chances: bool) -> dict[str, dict[str, float]]:
    """Return what `count_support` found of all partitions, by policy, as a manifest keeps it."""
    totals = {name: np.sum([found[name] for found in counts], axis=0).tolist() for name in counts[0]}
    return {
        name: {"slots": int(slots), "supported": int(supported)}
        | ({"expected_clicks": expected} if has_chances else {})
        for name, (slots, supported, expected) in totals.items()
    }

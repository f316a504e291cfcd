"""Exploration: how often the interval of what a policy would have earned has the truth in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ammrank_dask.report.outcomes import EarnedSums, weigh_clicks
from ammrank_dask.scoring.chance_table import allowed_counts
from ammrank_dask.scoring.exploration import (
    Drawn,
    Exploration,
    PolicyLists,
    add_inclusion,
    append_drawn,
    count_support,
    draw_slots,
    expect_draws,
    find_targets,
    hold_probability,
    leave_room,
    order_drawn,
    plan_exploration,
    sum_support,
)
from ammrank_dask.scoring.exposure_bounds import exposure_bounds
from ammrank_dask.scoring.prices import TEMPERATURES, find_prices
from ammrank_dask.scoring.swaps import assign_block
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.qualifications import QualificationRows
from benchmarks.balanced import make_chances
from benchmarks.command_line import Option, Users, benchmark
from benchmarks.measure import describe_machine

BAR = 184 / 200


@dataclass(frozen=True)
class ExploredWorld:
    """Users whose chances to click are known, `truth` (n, L), and what a model takes them for.

    `chances` (n, L) are off by the user, the category and the height; `scores` (L, n) order categories otherwise than
    chances do. `lists` are those of the policies.
    """

    truth: np.ndarray
    chances: np.ndarray
    scores: np.ndarray
    k: int
    prices: np.ndarray
    targets: np.ndarray
    lists: Mapping[str, PolicyLists]


def make_world(n_users: int, n_categories: int, k: int, seed: int = 0) -> ExploredWorld:
    """Return a world with a few categories that most users' own best leave out."""
    rng = np.random.default_rng(seed)
    truth, clicks = make_chances(n_users, n_categories, 1.2)
    logit = np.log(truth / (1 - truth))
    off = 0.8 * logit + 0.3 + rng.normal(0, 0.3, (1, n_categories)) + rng.normal(0, 0.5, (n_users, 1))
    chances = (1 / (1 + np.exp(-off))).astype(np.float32)
    scores = (off + rng.normal(0, 0.4, (1, n_categories))).T.astype(np.float32)
    eligible, slots = allowed_counts(chances, k)
    bounds = exposure_bounds([str(code) for code in range(n_categories)], clicks, eligible, slots, floor=0.5)
    temperatures = [float(chances.mean()) * step for step in TEMPERATURES]
    prices = find_prices(chances, bounds.floor, bounds.cap, k, temperatures=temperatures).prices
    best = np.argsort(-scores, axis=0, kind="stable")[:k].T.astype(np.int32)
    held = np.bincount(best.ravel(), minlength=n_categories)
    taken = np.zeros(scores.shape, bool)
    np.put_along_axis(taken, np.argsort(-scores, axis=1)[:, : slots // n_categories], True, axis=1)
    longest = int(taken.sum(axis=0).max())
    of_categories = np.argsort(~taken, axis=0, kind="stable")[:longest].T
    lists = {
        "user_top_k": PolicyLists(best),
        "category_top_n": PolicyLists(
            np.where(np.take_along_axis(taken.T, of_categories, axis=1), of_categories, -1), gives_way=False
        ),
        "balanced": PolicyLists(assign_block(chances, prices, k, np.arange(n_categories, dtype=np.int32))[0]),
    }
    return ExploredWorld(truth, chances, scores, k, prices, find_targets(held, bounds.floor), lists)


def explore_once(
    world: ExploredWorld, in_force: str, share: float, seed: int
) -> tuple[EarnedSums, dict[str, dict[str, float]]]:
    """Draw, let users click what they hold, and return the weighed sums with the support of every policy."""
    n_users, n_categories = world.truth.shape
    allowed = np.ones(world.truth.shape, bool)
    ids, tie_order = ids_from_values(np.arange(n_users)), np.arange(n_categories)
    expected = float(expect_draws(allowed, world.targets, world.k, share)[0].sum())
    plan = plan_exploration([expected], world.targets, share=share, k=world.k, seed=seed)
    drawn = order_drawn(draw_slots(plan, ids, allowed, 0), world.scores, tie_order)
    rows = append_drawn(hand_out(world, in_force, drawn), drawn, world.scores)
    of_rows = (rows.user, rows.category)
    rows = QualificationRows(
        rows.user_ids, rows.indptr, rows.category, rows.score, world.chances[of_rows], rows.propensity
    )
    weighed, probability = add_inclusion(rows, world.lists, in_force, plan, drawn, allowed)
    is_clicked = np.random.default_rng([seed, 1]).random(len(rows.category)) < world.truth[of_rows]
    counts = {name: count_support(own.codes, probability, world.chances) for name, own in world.lists.items()}
    return weigh_clicks(weighed, is_clicked), sum_support([counts], True)


def hand_out(world: ExploredWorld, in_force: str, drawn: Drawn) -> QualificationRows:
    """Return what the policy in force gives users beside what they were drawn."""
    n_users, n_categories = world.truth.shape
    codes = world.lists[in_force].codes
    if in_force == "user_top_k":
        codes, _ = leave_room(codes, np.take_along_axis(world.scores.T, codes, axis=1), drawn, world.k)
    elif in_force == "balanced":
        left = world.chances.copy()
        user, slot = np.nonzero(drawn.codes >= 0)
        left[user, drawn.codes[user, slot]] = -1
        codes = assign_block(left, world.prices, world.k - drawn.n_slots, np.arange(n_categories, dtype=np.int32))[0]
    else:
        codes = np.where((codes[:, :, None] == drawn.codes[:, None, :]).any(axis=2), -1, codes)
    kept = codes >= 0
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    score = np.take_along_axis(world.scores.T, np.maximum(codes, 0), axis=1)[kept]
    return QualificationRows(ids_from_values(np.arange(n_users)), indptr, codes[kept].astype(np.int32), score)


def true_clicks(world: ExploredWorld, in_force: str, share: float) -> dict[str, float]:
    """Return by policy the clicks that are expected on the slots which could be held."""
    allowed = np.ones(world.truth.shape, bool)
    expected = float(expect_draws(allowed, world.targets, world.k, share)[0].sum())
    plan: Exploration = plan_exploration([expected], world.targets, share=share, k=world.k, seed=0)
    probability = hold_probability(world.lists[in_force], plan, allowed)
    return {name: count_support(own.codes, probability, world.truth)[2] for name, own in world.lists.items()}


@benchmark("exploration")
def compare_exploration(
    *,
    users: Users = 4_000,
    draws: Annotated[int, Option("Nights that are drawn.")] = 200,
    share: Annotated[float, Option("Share of the slots that is drawn.")] = 0.05,
) -> None:
    """Print how many of the intervals of 95 % have the truth in them; clicks are drawn anew with every draw."""
    world = make_world(users, 30, 5)
    print(f"\nwhat policies would have earned, {draws} draws of {share:g} of the slots; {describe_machine()}")
    print(f"  {users:,} users × 30 categories, k 5, drawn from {len(world.targets)}")
    print(f"  {'in force':16} {'policy':16} {'known slots':>11} {'truth':>9} {'mean':>9} {'± half':>8} {'covered':>9}")
    for in_force in world.lists:
        truth = true_clicks(world, in_force, share)
        outcomes = [explore_once(world, in_force, share, seed) for seed in range(draws)]
        for name in world.lists:
            estimates = [sums.estimate(support, in_force)[name] for sums, support in outcomes]
            given = [entry for entry in estimates if entry["low"] is not None]
            covered = sum(entry["low"] <= truth[name] <= entry["high"] for entry in given)
            clicks, half = (np.mean([entry[key] for entry in estimates]) for key in ("clicks", "error"))
            share_known = estimates[0]["supported"] / estimates[0]["slots"]
            print(
                f"  {in_force:16} {name:16} {share_known:11.1%} {truth[name]:9.1f} {clicks:9.1f} {1.96 * half:8.1f}"
                f" {covered:4} of {len(given)} (bar {BAR * len(given):.0f})"
            )

"""Score partitions: the tasks of scoring, and what they read and write."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from distributed import Client

from ammrank_dask.features.partition import FeaturePartition, OpenFeaturePartition
from ammrank_dask.features.store import Features, open_features
from ammrank_dask.kernels.balanced import Offers
from ammrank_dask.kernels.scoring import Filter, Panels, pick_best
from ammrank_dask.kernels.scoring_plus import PlusPanels
from ammrank_dask.model.plane_panels import panels_from, top_categories
from ammrank_dask.model.saved import RankModel
from ammrank_dask.monitor.performance import measure, measure_each
from ammrank_dask.runtime.tasks import Call, Progress, run_together, silent
from ammrank_dask.runtime.thread_tasks import write_behind
from ammrank_dask.scoring.barred_cells import count_allowed, count_barred, load_opted_out, take_barred
from ammrank_dask.scoring.by_category import rows_by_category
from ammrank_dask.scoring.category_cutoffs import ScoreScratch
from ammrank_dask.scoring.chance_table import SAMPLE_SALT, ChanceTable, allowed_counts, sample_share
from ammrank_dask.scoring.chances import Chances
from ammrank_dask.scoring.delta import PreviousQualifications, compare_qualifications
from ammrank_dask.scoring.demographic_counts import count_by_group
from ammrank_dask.scoring.exploration import (
    Exploration,
    ExplorationScratch,
    FirstScores,
    add_inclusion,
    append_drawn,
    count_support,
    draw_slots,
    expect_draws,
    leave_room,
    order_drawn,
)
from ammrank_dask.scoring.policies import POLICIES, Policy, ScoredUsers
from ammrank_dask.scoring.policy_sample import move_to_front, sampled_rows
from ammrank_dask.scoring.prices import offers_of
from ammrank_dask.scoring.settings import ClickValues, ScoreSettings
from ammrank_dask.storage.site.forgotten import read_tombstones
from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.storage.store.qualification_files import WORK, write_partition_files, written_facts
from ammrank_dask.storage.store.qualifications import QualificationRows, by_user_table, delta_table
from ammrank_dask.storage.store.scratch_arrays import is_saved, load_arrays, load_facts
from ammrank_dask.user_hash import hash_ids

MODEL = "model"
_AT_ONCE = 512  # users whose best are picked together: what they are worth stays in the cache of a core
write_time = functools.partial(measure, "write")


@dataclass(frozen=True)
class ScoreJob:
    """One run of scoring, as its tasks know it."""

    run: Path
    features: Path
    settings: ScoreSettings
    variant: str | None
    previous: PreviousQualifications | None
    n_partitions: int
    chances: Chances | None = None
    start_prices: np.ndarray | None = None
    clicks: tuple[int, ...] = ()
    tombstones: Path | None = None
    """Where the users are listed who were forgotten since the previous night, if any was."""
    kept_share: float = 1.0
    """The share of users whose scores in all categories are kept: a sample for policies that are only shown."""
    values: ClickValues | None = None
    """What a click is worth, None where nobody says."""

    @property
    def weights(self) -> np.ndarray | None:
        """By what chances count, (groups, L), where lists are made by value; None where scores make them."""
        return None if self.values is None or not self.values.decides else self.values.weights

    def offers(self, chances: np.ndarray, group: np.ndarray) -> Offers:
        """Return chances (n, L) with what they count by."""
        return offers_of(chances) if self.weights is None else Offers(chances, self.weights, group)

    def group_of(self, scored: PartitionScores | FirstScores) -> np.ndarray | None:
        """Return the groups of users to keep: None where nothing depends on them."""
        return None if self.values is None else scored.group

    @property
    def table(self) -> ChanceTable:
        """Where all chances are kept for policies that need them."""
        return ChanceTable(self.run / WORK, self.n_partitions)

    @property
    def scratch(self) -> ScoreScratch:
        """Where all scores are kept for policies that need them."""
        return ScoreScratch(self.run, self.n_partitions)

    @property
    def first(self) -> ExplorationScratch:
        """Where scores wait for the draws of exploration."""
        return ExplorationScratch(self.run / WORK)

    @property
    def late(self) -> list[Policy]:
        """The policies that are applied after all users are scored: with exploration all of them."""
        return list(self.settings.wanted) if self.settings.explore else self.needing_all_scores

    @property
    def needing_all_scores(self) -> list[Policy]:
        """The policies that need the scores of all users."""
        return [policy for policy in self.settings.wanted if policy.needs_all_scores]

    def finished_facts(self, partition: int) -> dict[str, Any] | None:
        """Return the facts of a partition that needs no scoring any more, else None."""
        if self.settings.explore:
            return self.first.counts(partition)
        written = None
        if not POLICIES[self.settings.policy].needs_all_scores:
            written = written_facts(self.run, partition)
            if written is None or not self.needing_all_scores:
                return written
        kept = load_facts(self.scratch.folder(partition)) if is_saved(self.scratch.folder(partition)) else None
        # An earlier version kept the scores of all users.
        return None if kept is None or (self.kept_share < 1) != ("sampled_users" in kept) else kept

    def load_panels(self) -> Panels | PlusPanels:
        """Read the model as the kernel reads it."""
        return panels_from(*load_arrays(self.run / WORK / MODEL))

    def write(self, categories: Sequence[str], scored: Unwritten) -> dict[str, Any]:
        """Write what the users of a partition hold, and what changed, where that is known; return the counts."""
        partition, counts, rows = scored
        if rows is not None:
            start, by_category = rows_by_category(rows, len(categories))
            forgotten = None if self.tombstones is None else read_tombstones(self.tombstones)
            changes = compare_qualifications(rows, categories, self.previous, partition, self.n_partitions, forgotten)
            write_partition_files(
                self.run, partition, by_user=by_user_table(rows, categories), delta=delta_table(rows, changes),
                by_category=by_category, start=start, counts=counts,
            )  # fmt: skip
        return counts


def read_rows(features: Features, partition: int, panels: Panels | PlusPanels, variant: str | None) -> FeaturePartition:
    """Read the rows of a partition as the model was trained on them: AMM-rank-plus normalises rows itself."""
    return features.partition(partition, variant=variant, normalize=_normalizes(panels))


def _normalizes(panels: Panels | PlusPanels) -> bool | None:
    return False if isinstance(panels, PlusPanels) else None


class Unwritten(NamedTuple):
    """A partition that is scored, with its counts; `rows` are to be written, None where its policy cannot tell yet."""

    partition: int
    counts: dict[str, Any]
    rows: QualificationRows | None = None


def score_partitions(job: ScoreJob, partitions: Sequence[int]) -> list[dict[str, Any]]:
    """Score partitions, write those whose policy can already tell, and return the counts of each.

    While one is scored, a thread writes the one before.
    """
    features = open_features(job.features)
    with measure("read"):
        panels = job.load_panels()

    def score(partition: int) -> Unwritten:
        with measure("read"):
            part = features.open_partition(partition, variant=job.variant, normalize=_normalizes(panels))
        return score_partition(job, features, panels, partition, part)

    return write_behind(functools.partial(job.write, features.categories), map(score, partitions), wait=write_time)


def score_partition(
    job: ScoreJob, features: Features, panels: Panels | PlusPanels, partition: int, part: OpenFeaturePartition
) -> Unwritten:
    """Score one partition; keep for later passes what they need."""
    n_categories, k = len(features.categories), job.settings.k
    opted_out, n_unknown = load_opted_out(job.run / WORK, partition, part.user_ids, n_categories)
    limits = job.settings.eligibility(features.categories).filter(n_categories, part.age_bucket, part.gender)
    scored = score_part(job, part, panels, limits, opted_out)
    users = ScoredUsers(part.user_ids, scored.codes, scored.scores, panels.tie_order)
    counts: dict[str, Any] = {
        "users": len(scored.codes),
        "cold_users": int((scored.activity == 0).sum()),
        "slots": int((scored.codes >= 0).sum()),
        "may_hold": count_allowed(limits, len(part.user_ids), opted_out, n_categories).tolist(),
        "unknown_opt_outs": n_unknown,
        "barred": count_barred(limits, len(part.user_ids), len(set(job.settings.exclude)), opted_out, scored.n_low),
        "policies": {},
    }
    if job.settings.explore:
        allowed = allowed_cells(scored, panels, limits, opted_out)
        with measure("write"):
            return Unwritten(partition, keep_for_draws(job, partition, part.user_ids, scored, allowed, counts))
    assigned: dict[str, QualificationRows] = {}
    for policy in job.settings.wanted:
        if not policy.needs_all_scores:
            held = describe_rows(policy.assign(users, None), job, scored.activity, scored.group)
            assigned[policy.name] = held
            counts["policies"][policy.name] = policy.count(held, n_categories, k).to_json()
            if policy.name == job.settings.policy:
                counts["policies"][policy.name]["groups"] = count_by_group(held, scored.group, n_categories, k)
    with measure("write"):
        if any(policy.needs_chances for policy in job.needing_all_scores):
            assert scored.chances is not None
            counts["eligible"] = allowed_counts(scored.chances, k)[0].tolist()
            counts["most_clicks"] = most_clicks(job, scored.chances)
            share = sample_share(features.n_users, n_categories)
            job.table.save(partition, scored.chances, part.user_ids, share, group=job.group_of(scored))
        if job.needing_all_scores:
            keep_scores(job, partition, part.user_ids, scored, counts)
    return Unwritten(partition, counts, assigned.get(job.settings.policy))


def most_clicks(job: ScoreJob, chances: np.ndarray | None) -> list[float] | None:
    """Return the clicks that are expected if all who may hold a category do, (L,); None where no floor is in clicks."""
    if chances is None or not job.settings.has_click_floors:
        return None
    return np.maximum(chances, 0).sum(axis=0, dtype=np.float64).tolist()


def keep_scores(
    job: ScoreJob, partition: int, user_ids: UserIds, scored: PartitionScores, counts: dict[str, Any]
) -> None:
    """Keep the scores (L, n) of a partition's users, or of those in the sample, for policies that need all scores.

    The scores of a sample take the place of all.
    """
    if job.kept_share < 1:
        rows = sampled_rows(user_ids, job.kept_share)
        user_ids = user_ids.take(rows)
        scored = replace(
            scored, activity=scored.activity[rows], group=scored.group[rows],
            everything=move_to_front(scored.everything, rows),
            chances=None if scored.chances is None else scored.chances[rows],
        )  # fmt: skip
        counts["sampled_users"] = len(rows)
    save_scores(job, partition, user_ids, scored, counts)


def save_scores(
    job: ScoreJob,
    partition: int,
    user_ids: UserIds,
    scored: PartitionScores | FirstScores,
    counts: dict[str, Any],
) -> None:
    """Keep what policies that need all scores take categories by, and the scores beside it if that is worth."""
    order = order_of(job, scored)
    job.scratch.save(
        partition, order, user_ids, counts, activity=scored.activity, group=scored.group,
        own_scores=None if order is scored.everything else scored.everything,
    )  # fmt: skip


def order_of(job: ScoreJob, scored: PartitionScores | FirstScores) -> np.ndarray:
    """Return what categories are taken by (L, n) float32: scores, or worth where value counts; -inf for none."""
    if job.weights is None:
        return scored.everything
    assert scored.chances is not None
    worth = (scored.chances * job.weights[scored.group]).astype(np.float32).T
    return np.where(scored.everything > -np.inf, worth, np.float32(-np.inf))


def keep_for_draws(
    job: ScoreJob,
    partition: int,
    user_ids: UserIds,
    scored: PartitionScores,
    allowed: np.ndarray,
    counts: dict[str, Any],
) -> dict[str, Any]:
    """Keep what was scored until the draws are made, and return the counts with what decides about them."""
    n_categories = allowed.shape[1]
    counts |= {
        "held": np.bincount(scored.codes[scored.codes >= 0], minlength=n_categories).tolist(),
        "eligible": allowed.sum(axis=0).tolist(),
    }
    first = FirstScores(
        user_ids, scored.codes, scored.scores, scored.everything, scored.chances, allowed, scored.activity, scored.group
    )
    job.first.save(partition, first, counts)
    return counts


@dataclass(frozen=True)
class PartitionScores:
    """The best categories of each user, codes and scores (n, k); if asked for all scores (L, n) and chances (n, L).

    `activity` (n,) is how many values of a user's row are of events, `group` (n,) the `group_of` each.
    `n_low` are the pairs that `min_chance` alone keeps apart.
    """

    codes: np.ndarray
    scores: np.ndarray
    everything: np.ndarray
    activity: np.ndarray
    group: np.ndarray
    chances: np.ndarray | None = None
    n_low: int = 0


def score_part(
    job: ScoreJob,
    part: OpenFeaturePartition,
    panels: Panels | PlusPanels,
    limits: Filter,
    opted_out: np.ndarray | None = None,
) -> PartitionScores:
    """Score the rows of a partition, and take from users what they opted out of (n, L) or whose chance is too low."""
    min_chance = job.settings.min_chance
    keep_all = bool(job.late) or min_chance is not None or opted_out is not None or job.weights is not None
    # Where value makes lists, the best by score are nobody's.
    scored = score_pieces(part, panels, job.settings.k if job.weights is None else 0, limits, keep_all=keep_all)
    if not keep_all:
        return scored
    codes, scores, everything, activity = scored.codes, scored.scores, scored.everything, scored.activity
    chances, bare = None, bare_categories(panels)
    if job.settings.chances_needed_by is not None:
        assert job.chances is not None
        chances = job.chances.of_users(everything, activity, bare, limits)
    barred, n_low = opted_out, 0
    if min_chance is not None and chances is not None:
        is_low = (chances >= 0) & (chances < np.float32(min_chance))
        n_low = int((is_low if barred is None else is_low & ~barred).sum())
        barred = is_low if barred is None else barred | is_low
    if barred is not None:
        take_barred(barred, codes, scores, everything, tie_order=panels.tie_order, bare=bare, limits=limits)
        if chances is not None:
            chances[barred] = -1
    if job.weights is not None:
        assert chances is not None
        codes = best_by_worth(Offers(chances, job.weights, limits.group), job.settings.k, panels.tie_order)
        scores = np.where(codes >= 0, everything[codes, np.arange(len(codes))[:, None]], np.float32(-np.inf))
    return replace(scored, codes=codes, scores=scores, chances=chances, n_low=n_low)


def best_by_worth(offers: Offers, k: int, tie_order: np.ndarray) -> np.ndarray:
    """Return the k categories of each user that are worth most, (n, k) int32, best first; -1 after the last."""
    codes = np.empty((len(offers.chances), k), np.int32)
    for users in (slice(first, first + _AT_ONCE) for first in range(0, len(codes), _AT_ONCE)):
        chances = offers.chances[users]
        worth = np.where(chances >= 0, chances * offers.weights[offers.group[users]], -np.inf)
        best, position = np.empty((k, len(worth)), np.float32), np.empty((k, len(worth)), np.int32)
        pick_best(np.ascontiguousarray(worth.T[tie_order], np.float32), best, position)
        codes[users] = np.where(position >= 0, tie_order[position], -1).T
    return codes


def score_pieces(
    part: OpenFeaturePartition, panels: Panels | PlusPanels, k: int, limits: Filter, *, keep_all: bool
) -> PartitionScores:
    """Score the rows of a partition, some at a time, as `top_categories` does."""
    n, n_categories = part.n_rows, len(panels.tie_order)
    codes, scores, activity = np.empty((n, k), np.int32), np.empty((n, k), np.float32), np.empty(n, np.int32)
    everything = np.empty((n_categories, n) if keep_all else (0, 0), np.float32)
    for rows, X, n_event_features in measure_each("read", part.pieces()):
        with measure("kernel"):
            own = limits._replace(group=limits.group[rows])
            out = codes[rows], scores[rows]
            of_all = top_categories(X, panels, k, own, keep_all=keep_all, out=out)[2]
        activity[rows] = n_event_features
        if keep_all:
            everything[:, rows] = of_all
    return PartitionScores(codes, scores, everything, activity, limits.group)


def allowed_cells(
    scored: PartitionScores, panels: Panels | PlusPanels, limits: Filter, opted_out: np.ndarray | None
) -> np.ndarray:
    """Return of every user and category whether the user may have it, (n, L) bool."""
    if scored.chances is not None:
        return scored.chances >= 0
    allowed = np.isfinite(scored.everything.T)
    if limits.keep_bare:
        allowed |= bare_categories(panels)
    if len(limits.allowed):
        allowed &= limits.allowed[limits.group]
    return allowed if opted_out is None else allowed & ~opted_out


def bare_categories(panels: Panels | PlusPanels) -> np.ndarray:
    """Return of each category (L,) whether it has no planes."""
    bare = np.zeros(len(panels.tie_order), bool)
    planes = panels.planes if isinstance(panels, PlusPanels) else panels
    bare[panels.tie_order[planes.bare]] = True
    return bare


def describe_rows(rows: QualificationRows, job: ScoreJob, activity: np.ndarray, group: np.ndarray) -> QualificationRows:
    """Return rows with who is cold, and with chances and values if there are some.

    `activity` and `group` (n,) are those of the users.
    """
    rows = replace(rows, is_cold=activity == 0)
    if job.chances is None:
        return rows
    rows = replace(rows, chance=job.chances.of_lists(rows.score, rows.category, rows.indptr, activity))
    if job.values is None:
        return rows
    assert rows.chance is not None
    per_click = job.values.per_click[np.repeat(group, np.diff(rows.indptr)), rows.category]
    return replace(rows, value=(rows.chance * per_click).astype(np.float32))


def count_draws(job: ScoreJob, partition: int, targets: np.ndarray) -> float:
    """Return how many slots are expected to be drawn for the users of a partition."""
    allowed = job.first.load(partition).allowed
    return float(expect_draws(allowed, targets, job.settings.k, job.settings.explore)[0].sum())


def draw_partitions(job: ScoreJob, plan: Exploration, partitions: Sequence[int]) -> list[dict[str, Any]]:
    """Draw for the users of partitions, as `draw_partition` does, and return what was drawn in each."""
    return [draw_partition(job, partition, plan) for partition in partitions]


def draw_partition(job: ScoreJob, partition: int, plan: Exploration) -> dict[str, Any]:
    """Draw for the users of a partition, keep what policies share out after that, and return what was drawn."""
    features, first, k = open_features(job.features), job.first.load(partition), job.settings.k
    n_categories = len(features.categories)
    drawn = draw_slots(plan, first.user_ids, first.allowed, partition)
    drawn = order_drawn(drawn, order_of(job, first), job.load_panels().tie_order)
    user, slot = np.nonzero(drawn.codes >= 0)
    code = drawn.codes[user, slot]
    expected = expected_value = None
    if job.chances is not None:
        chance = job.chances.apply(first.everything[code, user], code, first.activity[user]).astype(np.float32)
        expected = float(chance.sum(dtype=np.float64))
        if job.values is not None:
            expected_value = float((chance * job.values.per_click[first.group[user], code]).sum())
    n_slots = np.minimum(first.allowed.sum(axis=1), k) - drawn.n_slots
    first.everything[code, user] = -np.inf
    save_scores(job, partition, first.user_ids, first, {})
    if first.chances is not None:
        first.chances[user, code] = -1
        share = sample_share(features.n_users, n_categories)
        job.table.save(
            partition, first.chances, first.user_ids, share, slots=n_slots, group=job.group_of(first)
        )  # fmt: skip
    n_drawn = np.bincount(code, minlength=n_categories)
    counts = {"drawn": n_drawn.tolist(), "slots": int(n_slots.sum()), "expected": expected}
    counts |= {"expected_value": expected_value, "most_clicks": most_clicks(job, first.chances)}
    job.first.save_drawn(partition, drawn, counts)
    return counts


def late_users(job: ScoreJob, partition: int) -> ScoredUsers:
    """Return the users of a partition as policies see them that are applied after all users are scored."""
    user_ids = job.scratch.user_ids(partition)
    codes = np.empty((len(user_ids), 0), np.int32)
    scores = codes.astype(np.float32)
    if job.settings.explore:
        codes, scores = leave_room(*job.first.best(partition), job.first.drawn(partition), job.settings.k)
    tie_order = job.load_panels().tie_order
    return ScoredUsers(user_ids, codes, scores, tie_order, job.scratch.bits(partition), partition)


def apply_policy(
    job: ScoreJob,
    name: str,
    plan: Any,
    explored: tuple[Exploration, Mapping[str, Any]] | None,
    partitions: Sequence[int],
) -> list[dict[str, Any]]:
    """Apply a policy that needed all scores to partitions, write them if it is the chosen one, return their counts.

    `explored` is the plan of the draws and those of all policies by name: the chosen one needs them to say how probable
    it was that users hold what they hold.
    """
    categories = open_features(job.features).categories
    applied = (_apply_to(job, name, plan, explored, len(categories), partition) for partition in partitions)
    return write_behind(functools.partial(job.write, categories), applied, wait=write_time)


def _apply_to(
    job: ScoreJob,
    name: str,
    plan: Any,
    explored: tuple[Exploration, Mapping[str, Any]] | None,
    n_categories: int,
    partition: int,
) -> Unwritten:
    policy = POLICIES[name]
    rows = policy.assign(late_users(job, partition), plan)
    if job.weights is not None:
        rows = replace(rows, score=np.asarray(job.scratch.own_scores(partition)[rows.category, rows.user]))
    if job.settings.explore:
        rows = append_drawn(rows, job.first.drawn(partition), job.first.scores(partition))
    group = job.scratch.group(partition)
    rows = describe_rows(rows, job, job.scratch.activity(partition), group)
    counts = policy.count(rows, n_categories, job.settings.k).to_json()
    if name != job.settings.policy:
        return Unwritten(partition, counts)
    counts["groups"] = count_by_group(rows, group, n_categories, job.settings.k)
    if explored is not None:
        rows, counts["support"] = weigh_rows(job, partition, rows, *explored)
    return Unwritten(partition, counts, rows)


def weigh_rows(
    job: ScoreJob, partition: int, rows: QualificationRows, exploration: Exploration, plans: Mapping[str, Any]
) -> tuple[QualificationRows, dict[str, list[float]]]:
    """Return rows with what an estimate of each policy weighs them by, and `count_support` of each policy."""
    first = job.first.load(partition)
    bits = np.ascontiguousarray(order_of(job, first), np.float32).view(np.uint32)
    tie_order = job.load_panels().tie_order
    users = ScoredUsers(first.user_ids, first.codes, first.scores, tie_order, bits, partition)
    offers = None if first.chances is None else job.offers(first.chances, first.group)
    lists = {name: POLICIES[name].lists(users, offers, plan) for name, plan in plans.items()}
    weighed, probability = add_inclusion(
        rows, lists, job.settings.policy, exploration, job.first.drawn(partition), first.allowed
    )
    chance = first.chances
    if chance is None and job.chances is not None:
        n, n_categories = first.allowed.shape
        scores, codes = first.everything.T.ravel(), np.tile(np.arange(n_categories), n)
        chance = job.chances.apply(scores, codes, np.repeat(first.activity, n_categories)).reshape(n, n_categories)
    value = None
    if job.values is not None and chance is not None:
        value = chance * job.values.per_click[first.group]
    return weighed, {name: count_support(own.codes, probability, chance, value) for name, own in lists.items()}


@dataclass(frozen=True)
class SampledUsers:
    """Users as policies see them: their best `codes` (n, k), all `scores` and all `chances` (n, L).

    A chance is below 0 where a user may not hold the category; `group` (n,) is the `group_of` each, for values.
    """

    codes: np.ndarray
    scores: np.ndarray
    chances: np.ndarray
    group: np.ndarray | None = None


def sample_users(
    client: Client,
    model: RankModel,
    features: Features,
    chances: Chances,
    settings: ScoreSettings,
    n_wanted: int,
    *,
    progress: Progress = silent,
) -> SampledUsers:
    """Score about `n_wanted` users from as few partitions as have them: each partition is a sample drawn by hash."""
    rows = [part.rows for part in features.run.parts]
    n_parts = 1 + int(np.searchsorted(np.cumsum(rows)[:-1], n_wanted))
    share = min(1.0, n_wanted / max(1, sum(rows[:n_parts])))
    panels = model.panels()
    calls: list[Call] = [
        (sample_partition, (features.path, number, panels, model.variant_, chances, settings, share))
        for number in range(n_parts)
    ]
    parts = run_together(client, "sample", calls, progress=progress)
    columns = ((part.codes, part.scores, part.chances, part.group) for part in parts)
    return SampledUsers(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def sample_partition(
    path: Path,
    partition: int,
    panels: Panels | PlusPanels,
    variant: str | None,
    chances: Chances,
    settings: ScoreSettings,
    share: float,
) -> SampledUsers:
    """Score a share of the users of one partition, chosen by hash."""
    features = open_features(path)
    part = read_rows(features, partition, panels, variant)
    rows = np.flatnonzero(hash_ids(part.user_ids, SAMPLE_SALT) / 2.0**64 < share)
    eligibility = settings.eligibility(features.categories)
    limits = eligibility.filter(len(features.categories), part.age_bucket[rows], part.gender[rows])
    codes, _, everything = top_categories(part.X[rows], panels, settings.k, limits, keep_all=True)
    table = chances.of_users(everything, part.n_event_features[rows], bare_categories(panels), limits)
    values = settings.click_values(features.categories)
    if values is not None and values.decides:
        codes = best_by_worth(Offers(table, values.weights, limits.group), settings.k, panels.tie_order)
    return SampledUsers(codes, np.ascontiguousarray(everything.T), table, limits.group)

"""Drive the passes of scoring over all partitions, and add up what they counted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.features.store import Features
from ammrank_dask.monitor.events import LiveExposure
from ammrank_dask.runtime.tasks import Call, Progress, run_batches, run_together, silent
from ammrank_dask.scoring.barred_cells import sum_barred
from ammrank_dask.scoring.demographic_counts import rank_by_group
from ammrank_dask.scoring.exploration import Exploration, find_targets, plan_exploration, sum_support
from ammrank_dask.scoring.policies import ChancePlan, PlanRequest, Policy, PolicyCounts
from ammrank_dask.scoring.policy_sample import PolicySample
from ammrank_dask.scoring.score_partition import (
    ScoreJob,
    apply_policy,
    count_draws,
    draw_partitions,
    score_partitions,
)
from ammrank_dask.storage.objects.atomic import begin_syncs
from ammrank_dask.storage.store.qualification_files import written_facts
from ammrank_dask.storage.store.qualifications import BY_USER, DELTA, table_path

USERS_OF_TASK = 50_000
"""Users that a task scores at least where there are more, and those of several partitions while there is much left."""


@dataclass(frozen=True)
class ScoreCounts:
    """What a report needs to know about scored users, without any user in it.

    `may_hold` (L,) are the users from whom a category is not kept, whatever their scores are; `unknown_opt_outs` are
    users who opted out of a category and are not scored; `explored` is what was drawn, None without exploration.
    `barred` are pairs of a user and a category by the rule that keeps them apart, and `too_few` users by category whom
    `min_audience` took it from. `groups` is what `rank_by_group` says of the active policy.
    """

    n_users: int
    cold_users: int
    may_hold: np.ndarray
    unknown_opt_outs: int
    policies: Mapping[str, PolicyCounts]
    policy_facts: Mapping[str, Mapping[str, Any]]
    explored: Mapping[str, Any] | None = None
    barred: Mapping[str, int] = field(default_factory=dict)
    too_few: Mapping[str, int] = field(default_factory=dict)
    groups: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the counts as the manifest has them."""
        return {
            "users": self.n_users,
            "cold_users": self.cold_users,
            "may_hold": self.may_hold.tolist(),
            "unknown_opt_outs": self.unknown_opt_outs,
            "policies": {
                name: {**self.policy_facts[name], **counts.to_json()} for name, counts in self.policies.items()
            },
            **({} if self.explored is None else {"explored": dict(self.explored)}),
            **({"barred": dict(self.barred)} if self.barred else {}),
            **({"too_few": dict(self.too_few)} if self.too_few else {}),
            **({"groups": list(self.groups)} if self.groups else {}),
        }


@dataclass(frozen=True)
class ExploredCounts:
    """What exploration drew: users by category (L,), the sums of their chances and values if any, and what is left.

    `slots_left` are those that policies share out. `support` says of each policy how many slots it has where nothing is
    drawn, and how many of them could be held under the active policy, as `sum_support` returns it.
    """

    plan: Exploration
    drawn: np.ndarray
    expected: float | None
    expected_value: float | None
    slots_left: int
    most_clicks: np.ndarray | None = None
    support: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def n_slots(self) -> int:
        """How many slots were drawn."""
        return int(self.drawn.sum())

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps."""
        expected = {} if self.expected is None else {"expected_clicks": self.expected}
        expected |= {} if self.expected_value is None else {"expected_value": self.expected_value}
        support = {name: dict(found) for name, found in self.support.items()}
        return {**self.plan.to_json(), "users": self.drawn.tolist(), **expected, "support": support}


@dataclass(frozen=True)
class ScorePasses:
    """The passes of one run over partitions of so many users: `live` shows what the active policy assigns."""

    client: Client
    job: ScoreJob
    users: Sequence[int]
    live: LiveExposure
    progress: Progress = silent

    def run(self, features: Features, tie_order: np.ndarray) -> ScoreCounts:
        """Score all partitions, then apply the policies that need all scores."""
        job = self.job
        scored = self._score_all()
        explored = self._explore(scored, features.categories) if job.settings.explore else None
        slots = sum(counts["slots"] for counts in scored) - (0 if explored is None else explored.n_slots)
        names = ("users", "cold_users", "unknown_opt_outs")
        users, cold, unknown = (sum(counts[name] for counts in scored) for name in names)
        sample = None
        if job.kept_share < 1:
            sample = PolicySample(sum(counts["sampled_users"] for counts in scored), users, job.settings.n, slots)
        n, slots = (job.settings.n, slots) if sample is None else (sample.n_of_sample, sample.slots_of_sample)
        policies: dict[str, PolicyCounts] = {}
        plans: dict[str, Any] = {}
        for policy in job.settings.wanted:
            chances = None
            if policy.needs_chances:
                chances = self._chance_plan(scored, features.categories, explored)
            request = PlanRequest(self.client, job.scratch, n, slots, tie_order, chances, self.progress)
            plans[policy.name] = policy.plan(request) if policy in job.late else None
        policy_facts: dict[str, Mapping[str, Any]] = {}
        for policy in job.settings.wanted:
            facts = policy.facts(plans[policy.name])
            if policy in job.late:
                listed = self._apply_all(policy, plans, explored)
            else:
                listed = [counts["policies"][policy.name] for counts in scored]
            by_partition = [PolicyCounts.from_json(content) for content in listed]
            counts = sum(by_partition[1:], start=by_partition[0])
            if sample is not None and policy in job.late:
                counts, facts = sample.scale(counts, facts)
            policies[policy.name], policy_facts[policy.name] = counts, facts
            if policy.name == job.settings.policy:
                groups = rank_by_group([found["groups"] for found in listed], features.categories)
            if explored is not None and policy.name == job.settings.policy:
                has = job.chances is not None, job.values is not None
                support = sum_support([found["support"] for found in listed], *has)
                explored = replace(explored, support=support)
        may_hold = _sum_arrays(scored, "may_hold")
        return ScoreCounts(
            users,
            cold,
            may_hold,
            unknown,
            policies,
            policy_facts,
            None if explored is None else explored.to_json(),
            sum_barred([counts["barred"] for counts in scored]),
            groups=groups,
        )

    def _explore(self, scored: Sequence[Mapping[str, Any]], categories: Sequence[str]) -> ExploredCounts:
        """Draw for all users, and return what was drawn."""
        job, settings = self.job, self.job.settings
        held, eligible = _sum_arrays(scored, "held"), _sum_arrays(scored, "eligible")
        slots = sum(counts["slots"] for counts in scored)
        targets = find_targets(held, settings.fewest(categories, np.array(job.clicks), eligible, slots))
        partitions = range(job.n_partitions)
        calls: list[Call] = [(count_draws, (job, partition, targets)) for partition in partitions]
        expected = run_together(self.client, "explore", calls, progress=self.progress)
        plan = plan_exploration(expected, targets, share=settings.explore, k=settings.k, seed=settings.seed)
        done = [job.first.drawn_counts(partition) for partition in partitions]
        draw = functools.partial(draw_partitions, job, plan)
        counts = self._complete("explore", draw, done, show=lambda _: None)
        chances, values = ([found[name] for found in counts] for name in ("expected", "expected_value"))
        return ExploredCounts(
            plan, _sum_arrays(counts, "drawn"), None if None in chances else float(np.sum(chances)),
            None if None in values else float(np.sum(values)), sum(found["slots"] for found in counts),
            _sum_floats(counts, "most_clicks"),
        )  # fmt: skip

    def _chance_plan(
        self, scored: Sequence[Mapping[str, Any]], categories: Sequence[str], explored: ExploredCounts | None
    ) -> ChancePlan:
        """Return what a policy that needs chances plans with."""
        settings = self.job.settings
        eligible, slots, n_drawn = _sum_arrays(scored, "eligible"), sum(counts["slots"] for counts in scored), 0
        if explored is not None:
            eligible, slots, n_drawn = eligible - explored.drawn, explored.slots_left, explored.n_slots
        most_clicks = _sum_floats(scored, "most_clicks") if explored is None else explored.most_clicks
        bounds = settings.bounds(categories, np.array(self.job.clicks), eligible, slots, n_drawn, most_clicks)
        values = self.job.values
        unit = None if values is None or not values.decides else values.unit
        return ChancePlan(self.job.table, bounds, settings.k, self.job.start_prices, self.job.weights, unit)

    def _score_all(self) -> list[dict[str, Any]]:
        """Return the counts of all partitions, after scoring those that are not done."""
        in_force = self.job.settings.policy

        def show(counts: dict[str, Any]) -> None:
            if in_force in counts["policies"]:
                self._add_exposure(counts["policies"][in_force])

        done = [self.job.finished_facts(partition) for partition in range(self.job.n_partitions)]
        return self._complete("score", functools.partial(score_partitions, self.job), done, show=show)

    def _apply_all(
        self, policy: Policy, plans: Mapping[str, Any], explored: ExploredCounts | None
    ) -> list[dict[str, Any]]:
        """Return the counts of a policy that needed all scores, after writing the partitions that are not done."""
        is_in_force = policy.name == self.job.settings.policy
        draws = (explored.plan, plans) if is_in_force and explored is not None else None

        def show(counts: dict[str, Any]) -> None:
            if is_in_force:
                self._add_exposure(counts)

        done = [
            written_facts(self.job.run, partition) if is_in_force else None
            for partition in range(self.job.n_partitions)
        ]
        apply = functools.partial(apply_policy, self.job, policy.name, plans[policy.name], draws)
        return self._complete(policy.name, apply, done, show=show)

    def _complete(
        self,
        stage: str,
        function: Callable[[Sequence[int]], list[dict[str, Any]]],
        done: Sequence[dict[str, Any] | None],
        *,
        show: Callable[[dict[str, Any]], None],
    ) -> list[dict[str, Any]]:
        """Return the counts of all partitions, in their order: those `done`, or of a task where that is None.

        `function` takes some partitions and returns the counts of each; `show` gets them as soon as they are there.
        """
        for counts in done:
            if counts is not None:
                show(counts)
        missing = [partition for partition, counts in enumerate(done) if counts is None]

        def take(index: int, counts: dict[str, Any]) -> None:
            show(counts)
            begin_syncs(table_path(self.job.run / folder, missing[index]) for folder in (BY_USER, DELTA))

        users = [self.users[partition] for partition in missing]
        results = run_batches(
            self.client,
            stage,
            function,
            missing,
            weights=[n_users / USERS_OF_TASK for n_users in users],
            units=users,
            on_result=take,
            progress=self.progress,
        )
        self.live.flush()
        made = dict(zip(missing, results, strict=True))
        return [made[partition] if counts is None else counts for partition, counts in enumerate(done)]

    def _add_exposure(self, counts: Mapping[str, Any]) -> None:
        """Show what a policy assigned to the users of one partition."""
        self.live.add(sum(counts["categories_per_user"]), np.array(counts["exposure"], np.int64).sum(axis=1))


def _sum_arrays(counts: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Return the sum over all partitions of an array (L,) among their counts."""
    return np.array([found[name] for found in counts], np.int64).sum(axis=0)


def _sum_floats(counts: Sequence[Mapping[str, Any]], name: str) -> np.ndarray | None:
    """Return the sum over all partitions of an array (L,) of floats among their counts; None where there is none."""
    found = [of_part[name] for of_part in counts]
    return None if None in found else np.array(found, np.float64).sum(axis=0)

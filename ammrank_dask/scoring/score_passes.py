"""Drive the passes of scoring over all partitions, and add up what they counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.features.store import Features
from ammrank_dask.monitor.events import LiveExposure, LivePrices
from ammrank_dask.scoring.policies import ChancePlan, PlanRequest, Policy, PolicyCounts
from ammrank_dask.scoring.score_partition import ScoreJob, apply_policy, score_partition
from ammrank_dask.storage.store.qualifications import written_facts
from ammrank_dask.tasks import Progress, run_tasks, silent


@dataclass(frozen=True)
class ScoreCounts:
    """What a report needs to know about scored users, without any user in it.

    `may_hold` (L,) are the users from whom a category is not kept, whatever their scores are; `unknown_opt_outs` are
    users who opted out of a category and are not scored.
    """

    n_users: int
    cold_users: int
    may_hold: np.ndarray
    unknown_opt_outs: int
    policies: Mapping[str, PolicyCounts]
    policy_facts: Mapping[str, Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return the counts as the manifest has them."""
        return {
            "users": self.n_users,
            "cold_users": self.cold_users,
            "may_hold": self.may_hold.tolist(),
            "unknown_opt_outs": self.unknown_opt_outs,
            "policies": {
                name: {**counts.to_json(), **self.policy_facts[name]} for name, counts in self.policies.items()
            },
        }


@dataclass(frozen=True)
class ScorePasses:
    """The passes of one run: `live` shows the dashboard what the policy in force hands out."""

    client: Client
    job: ScoreJob
    live: LiveExposure
    progress: Progress = silent

    def run(self, features: Features, tie_order: np.ndarray) -> ScoreCounts:
        """Score all partitions, then apply the policies that need all scores."""
        job = self.job
        scored = self._score_all(features)
        slots = sum(counts["slots"] for counts in scored)
        policies: dict[str, PolicyCounts] = {}
        policy_facts: dict[str, Mapping[str, Any]] = {}
        for policy in job.settings.wanted:
            plan = None
            if policy.needs_all_scores:
                chances = self._chance_plan(scored, features.categories) if policy.needs_chances else None
                plan = policy.plan(
                    PlanRequest(self.client, job.scratch, job.settings.n, slots, tie_order, chances, self.progress)
                )
                listed = self._apply_all(policy, plan)
            else:
                listed = [counts["policies"][policy.name] for counts in scored]
            by_partition = [PolicyCounts.from_json(content) for content in listed]
            policies[policy.name] = sum(by_partition[1:], start=by_partition[0])
            policy_facts[policy.name] = policy.facts(plan)
        names = ("users", "cold_users", "unknown_opt_outs")
        users, cold, unknown = (sum(counts[name] for counts in scored) for name in names)
        may_hold = np.array([counts["may_hold"] for counts in scored], np.int64).sum(axis=0)
        return ScoreCounts(users, cold, may_hold, unknown, policies, policy_facts)

    def _chance_plan(self, scored: Sequence[Mapping[str, Any]], categories: Sequence[str]) -> ChancePlan:
        """Return what a policy that needs chances plans with."""
        settings = self.job.settings
        eligible = np.array([counts["eligible"] for counts in scored], np.int64).sum(axis=0)
        slots = sum(counts["slots"] for counts in scored)
        bounds = settings.bounds(categories, np.array(self.job.clicks), eligible, slots)
        live = LivePrices(self.client, categories)
        return ChancePlan(self.job.table, bounds, settings.k, self.job.start_prices, live)

    def _score_all(self, features: Features) -> list[dict[str, Any]]:
        """Return the counts of all partitions, after scoring those that are not done."""
        in_force = self.job.settings.policy

        def show(counts: dict[str, Any]) -> None:
            if in_force in counts["policies"]:
                self._add_exposure(counts["policies"][in_force])

        done = [self.job.finished_facts(partition) for partition in range(self.job.n_partitions)]
        rows = [part.rows for part in features.run.parts]
        return self._complete("score", score_partition, done, show=show, rows=rows)

    def _apply_all(self, policy: Policy, plan: Any) -> list[dict[str, Any]]:
        """Return the counts of a policy that needed all scores, after writing the partitions that are not done."""
        is_in_force = policy.name == self.job.settings.policy

        def show(counts: dict[str, Any]) -> None:
            if is_in_force:
                self._add_exposure(counts)

        done = [
            written_facts(self.job.run, partition) if is_in_force else None
            for partition in range(self.job.n_partitions)
        ]
        return self._complete(policy.name, apply_policy, done, policy.name, plan, show=show)

    def _complete(
        self,
        stage: str,
        function: Callable[..., dict[str, Any]],
        done: Sequence[dict[str, Any] | None],
        *arguments: Any,
        show: Callable[[dict[str, Any]], None],
        rows: Sequence[int] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the counts of all partitions, in their order: those `done`, or of a task where that is None.

        `show` gets the counts of each partition as soon as they are there; `rows` are the users of the partitions.
        """
        for counts in done:
            if counts is not None:
                show(counts)
        missing = [partition for partition, counts in enumerate(done) if counts is None]
        results = run_tasks(
            self.client,
            stage,
            function,
            [(self.job, partition, *arguments) for partition in missing],
            units=None if rows is None else [rows[partition] for partition in missing],
            on_result=lambda _, counts: show(counts),
            progress=self.progress,
        )
        self.live.flush()
        made = dict(zip(missing, results, strict=True))
        return [made[partition] if counts is None else counts for partition, counts in enumerate(done)]

    def _add_exposure(self, counts: Mapping[str, Any]) -> None:
        """Show what a policy handed out to the users of one partition."""
        self.live.add(sum(counts["categories_per_user"]), np.array(counts["exposure"], np.int64).sum(axis=1))

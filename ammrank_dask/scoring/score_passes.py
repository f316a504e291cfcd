"""Write the lists of a run: drive the passes of scoring over all partitions, and add up what they counted."""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.features.store import Features
from ammrank_dask.model.plane_panels import panel_arrays
from ammrank_dask.model.saved import RankModel
from ammrank_dask.monitor.events import LiveExposure
from ammrank_dask.runtime.tasks import Call, Progress, run_batches, run_together, silent
from ammrank_dask.scoring.barred_cells import save_opt_outs, sum_barred
from ammrank_dask.scoring.by_category import write_by_category
from ammrank_dask.scoring.chances import Chances
from ammrank_dask.scoring.delta import PreviousQualifications
from ammrank_dask.scoring.demographic_counts import rank_by_group
from ammrank_dask.scoring.exploration import Exploration, find_targets, plan_exploration, sum_support
from ammrank_dask.scoring.policies import ChancePlan, PlanRequest, Policy, PolicyCounts
from ammrank_dask.scoring.policy_sample import PolicySample, kept_share
from ammrank_dask.scoring.qualifications import Qualifications
from ammrank_dask.scoring.score_partition import (
    MODEL,
    ScoreJob,
    apply_policy,
    count_draws,
    draw_partitions,
    score_partitions,
)
from ammrank_dask.scoring.settings import CLICKS, ScoreSettings
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.people import OptOuts
from ammrank_dask.storage.objects.atomic import begin_syncs, read_json, sweep_tree, temporary_beside, write_text
from ammrank_dask.storage.objects.folders import is_file, remove, rename
from ammrank_dask.storage.store.qualification_files import (
    WORK,
    make_folders,
    remove_empty_folders,
    short_folders,
    written_facts,
    written_files,
)
from ammrank_dask.storage.store.qualifications import BY_USER, DELTA, KIND, table_path
from ammrank_dask.storage.store.runs import finish_run
from ammrank_dask.storage.store.scratch_arrays import save_arrays

logger = logging.getLogger(__name__)

USERS_OF_TASK = 50_000
"""Users that a task scores at least where there are more, and those of several partitions while there is much left."""


TOO_FEW = "too-few.json"
"""In the work folder: the categories that too few users had, with their users."""


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


def write_qualifications(
    client: Client,
    model: RankModel,
    features: Features,
    run: Path,
    settings: ScoreSettings,
    *,
    chances: Chances | None = None,
    opt_outs: OptOuts | None = None,
    previous: Qualifications | None = None,
    variant: str | None = None,
    clicks: Sequence[int] | None = None,
    starved_below: float | None = None,
    tombstones: Path | None = None,
    progress: Progress = silent,
) -> ScoreCounts:
    """Write all partitions of a run and return the counts; what is whole from an earlier try is not done again.

    Parameters are those of `score`; `clicks` by category code are what the dashboard compares the exposure with and
    floors and caps are multiples of (by default those the model was trained on), and
    `starved_below` is the share of its share of clicks below which it shows a category as starved. `tombstones` is the
    list of users who were forgotten since the `previous` night.

    With `min_audience` the lists are made again without the categories that too few users had, until there is none.
    """
    write = functools.partial(
        _write_lists, client, model, features, run, chances=chances, opt_outs=opt_outs, previous=previous,
        variant=variant, clicks=clicks, starved_below=starved_below, tombstones=tombstones, progress=progress,
    )  # fmt: skip
    if settings.min_audience is None:
        return write(settings)
    marker = run / WORK / TOO_FEW
    too_few: dict[str, int] = read_json(marker) if is_file(marker) else {}
    while True:
        counts = write(settings.without(too_few))
        users = counts.policies[settings.policy].exposure.sum(axis=1)
        is_small = (users > 0) & (users < settings.min_audience)
        if not is_small.any():
            return replace(counts, too_few=too_few)
        too_few |= {features.categories[code]: int(users[code]) for code in np.flatnonzero(is_small)}
        # With one rename nothing is left that was written with these categories: a crash leaves all of it or none.
        aside = temporary_beside(run)
        rename(run, aside)
        remove(aside)
        make_folders(run, features.categories)
        write_text(marker, json.dumps(too_few))


def _write_lists(
    client: Client,
    model: RankModel,
    features: Features,
    run: Path,
    settings: ScoreSettings,
    *,
    chances: Chances | None,
    opt_outs: OptOuts | None,
    previous: Qualifications | None,
    variant: str | None,
    clicks: Sequence[int] | None,
    starved_below: float | None,
    tombstones: Path | None,
    progress: Progress,
) -> ScoreCounts:
    """Write all partitions of a run with settings as they are, and return the counts."""
    started = time.perf_counter()
    if variant is None:
        variant = model.variant_
    settings.check(features.categories)
    check_match(model, features, variant)
    check_chances(chances, settings, features)
    counted = model.popularity_.tolist() if clicks is None else clicks
    if opt_outs is None:
        refuse_early(settings, features, np.array(counted))
    make_folders(run, features.categories)
    # A file reaches every worker more cheaply than an argument, and survives the death of one.
    panels = model.panels()
    save_arrays(run / WORK / MODEL, *panel_arrays(panels))
    if opt_outs is not None:
        save_opt_outs(run / WORK, opt_outs, features.n_partitions)
    job = ScoreJob(
        run, features.path, settings, variant,
        None if previous is None else PreviousQualifications.of(previous.run), features.n_partitions, chances,
        last_prices(previous, features.categories, settings.objective), tuple(counted), tombstones,
        kept_share(settings, features.n_users, len(features.categories)),
        None if chances is None else settings.click_values(features.categories),
    )  # fmt: skip
    live = LiveExposure(
        client, features.categories, users_total=features.n_users, clicks=clicks, starved_below=starved_below,
        excluded=settings.exclude,
    )  # fmt: skip
    users = [part.rows for part in features.run.parts]
    counts = ScorePasses(client, job, users, live, progress).run(features, panels.tie_order)
    write_by_category(client, run, features.categories, features.n_partitions, progress=progress)
    seconds = time.perf_counter() - started
    logger.info("scored %d users, %d of them cold, %.1f s", counts.n_users, counts.cold_users, seconds)
    return counts


def finish_qualifications(
    run: Path,
    digest: str,
    features: Features,
    settings: ScoreSettings,
    counts: ScoreCounts,
    *,
    inputs: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    window: Mapping[str, Any] | None = None,
) -> None:
    """Make a run whole whose partitions are all written; `window` has clicks and events of the label window."""
    files = written_files(run, features.n_partitions)
    shortened = short_folders(features.categories)
    # What only the work needed goes with one rename before the run is whole: a crash leaves all of it or none.
    rename(run / WORK, temporary_beside(run / WORK))
    sweep_tree(run)
    remove_empty_folders(run)
    finish_run(
        run,
        KIND,
        digest,
        [],
        config={
            **settings.to_json(),
            "categories": list(features.categories),
            "partitions": features.n_partitions,
            **({"short_folders": shortened} if shortened else {}),
            **(config or {}),
        },
        inputs=inputs,
        counts={**counts.to_json(), **(window or {})},
        files=files,
    )


def last_prices(
    previous: Qualifications | None, categories: Sequence[str], objective: str = CLICKS
) -> np.ndarray | None:
    """Return the prices of an earlier balanced run by category, 0 for new ones; None when it had none of this unit."""
    facts = {} if previous is None else previous.manifest.policies.get("balanced", {})
    if previous is None or "prices" not in facts or previous.manifest.objective != objective:
        return None
    by_name = dict(zip(previous.categories, facts["prices"], strict=True))
    return np.array([by_name.get(category, 0.0) for category in categories])


def refuse_early(settings: ScoreSettings, features: Features, clicks: np.ndarray) -> None:
    """Refuse floors and caps that cannot be kept, before any user is scored, when scores decide nothing about that.

    Where they do (limits by score, chance or group), it takes the pass over all users to tell.
    """
    is_known = settings.min_score is None and settings.min_chance is None and not settings.exclude_by_group
    if is_known and any(policy.needs_chances for policy in settings.wanted):
        eligible = np.full(len(features.categories), features.n_users, np.int64)
        eligible[[features.categories.index(name) for name in settings.exclude]] = 0
        slots = features.n_users * min(settings.k, int((eligible > 0).sum()))
        settings.bounds(features.categories, clicks, eligible, slots)


def check_chances(chances: Chances | None, settings: ScoreSettings, features: Features) -> None:
    """Refuse a policy that needs chances without them, and chances of other categories."""
    if settings.chances_needed_by is not None and chances is None:
        raise BadInput(
            f"{settings.chances_needed_by} needs chances, got none; learn them with `learn_chances` on held-out users"
        )
    if chances is not None and chances.n_categories != len(features.categories):
        raise BadInput(
            f"chances must be of the {len(features.categories)} categories of the features at {features.path}, "
            f"got {chances.n_categories}; learn them again"
        )


def check_match(model: RankModel, features: Features, variant: str | None) -> None:
    """Refuse a model that was trained on other columns or categories than the features have."""
    if model.n_categories_ != len(features.categories) or (
        model.categories_ is not None and model.categories_ != list(features.categories)
    ):
        raise BadInput(
            f"the model must rank the categories of the features at {features.path}, found other ones "
            f"({model.n_categories_} in the model, {len(features.categories)} in the features); train again"
        )
    if model.columns_ is not None and model.columns_ != features.columns_of(variant):
        raise BadInput(
            f"the model must be trained on the columns of the features at {features.path}, found other ones "
            f"(variant {model.variant_} in the model, {variant} asked for); train again or take that variant"
        )
    if model.n_features_in_ != features.n_columns(variant):
        raise BadInput(
            f"the features at {features.path} must have the model's {model.n_features_in_} columns, "
            f"found {features.n_columns(variant)}; train again"
        )

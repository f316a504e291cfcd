"""Score every user and write the categories they qualify for."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.features.store import FeaturePartition, Features, open_features
from ammrank_dask.kernels.scoring import Panels
from ammrank_dask.kernels.scoring_plus import PlusPanels
from ammrank_dask.kernels.selection import sort_by_category
from ammrank_dask.model.plane_panels import top_categories
from ammrank_dask.model.saved import RankModel, load_model, panel_arrays, panels_from
from ammrank_dask.monitor.events import LiveExposure
from ammrank_dask.monitor.meters import measure
from ammrank_dask.scoring.category_cutoffs import ScoreScratch
from ammrank_dask.scoring.chance_table import ChanceTable, allowed_counts, sample_share
from ammrank_dask.scoring.chances import Chances
from ammrank_dask.scoring.delta import PreviousQualifications, compare_qualifications
from ammrank_dask.scoring.exposure_bounds import CAP, FLOOR, exposure_bounds
from ammrank_dask.scoring.policies import POLICIES, ChancePlan, PlanRequest, Policy, PolicyCounts, ScoredUsers
from ammrank_dask.scoring.qualifications import Qualifications, open_qualifications
from ammrank_dask.scoring.settings import ScoreSettings
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.atomic import digest_of, swap_folder, sweep_tree, temporary_beside
from ammrank_dask.storage.store.qualifications import (
    KIND,
    WORK,
    QualificationRows,
    list_files,
    make_folders,
    remove_empty_folders,
    write_partition_files,
    written_facts,
)
from ammrank_dask.storage.store.runs import finish_run, is_finished, remove_run
from ammrank_dask.storage.store.scratch_arrays import is_saved, load_arrays, load_facts, save_arrays
from ammrank_dask.tasks import Progress, run_tasks, silent

logger = logging.getLogger(__name__)

MODEL = "model"


@dataclass(frozen=True)
class ScoreCounts:
    """What a report needs to know about scored users, without any user in it."""

    n_users: int
    cold_users: int
    policies: Mapping[str, PolicyCounts]
    policy_facts: Mapping[str, Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return the counts as the manifest has them."""
        return {
            "users": self.n_users,
            "cold_users": self.cold_users,
            "policies": {
                name: {**counts.to_json(), **self.policy_facts[name]} for name, counts in self.policies.items()
            },
        }


def score(
    client: Client,
    model: RankModel | str | Path,
    features: Features,
    path: str | Path,
    *,
    k: int = 10,
    policy: str = "user_top_k",
    n: int | None = None,
    min_score: float | None = None,
    exclude: Iterable[str] = (),
    exclude_by_group: Mapping[str, Iterable[str]] | None = None,
    chances: Chances | None = None,
    floor: float = FLOOR,
    cap: float = CAP,
    floors: Mapping[str, float] | None = None,
    caps: Mapping[str, float] | None = None,
    previous: Qualifications | None = None,
    variant: str | None = None,
    progress: Progress = silent,
) -> Qualifications:
    """Write the categories every user qualifies for under `path`, and return them.

    A run that was interrupted goes on where it stopped; `path` changes with one rename at the end.

    Parameters
    ----------
    client
        The cluster to score on, one task per partition.
    model
        A fitted model or the folder of a saved one.
    features
        The users to score.
    path
        A folder that all workers see: `by_user/part-00000.parquet` and so on, `by_category/category=…/`, `delta/`.
    k
        Categories per user.
    policy
        `user_top_k`: every user gets the k best; `category_top_n`: every category takes its n best users; `balanced`:
        every user gets k, every category stays between floor and cap, and the sum of chances is the largest.
    n
        Users per category; None for as many as make the slots of `user_top_k`.
    min_score
        The lowest score that qualifies.
    exclude
        Categories that nobody gets.
    exclude_by_group
        Categories by the group of users who do not get them: age buckets (`13-17`), `female`, `male`, `unknown-age`,
        `unknown-gender`.
    chances
        What a score is worth, which `balanced` needs (`learn_chances`).
    floor, cap
        The fewest and the most users of a category under `balanced`, as multiples of its share of clicks.
    floors, caps
        The same by name: a whole number of users, or a share of all slots below 1.
    previous
        Earlier qualifications that `delta` is taken against; None: everything is added.
    variant
        The columns the model was trained on; by default what the model says.
    progress
        Called after every finished task.
    """
    path = Path(path)
    fitted = load_model(model) if isinstance(model, str | Path) else model
    settings = ScoreSettings(
        k=k, policy=policy, n=n, min_score=min_score, exclude=tuple(exclude),
        exclude_by_group={group: tuple(names) for group, names in (exclude_by_group or {}).items()},
        floor=floor, cap=cap, floors=dict(floors or {}), caps=dict(caps or {}),
    )  # fmt: skip
    inputs = {
        "features": digest_of([features.run.digest, features.run.checksums]),
        "model": fitted.digest(),
        "previous": None if previous is None else previous.run.digest,
        **({} if chances is None else {"chances": chances.digest()}),
    }
    digest = digest_of([inputs, variant, settings.to_json()])
    if path.exists() and any(path.iterdir()) and open_qualifications(path).run.digest == digest:
        return open_qualifications(path)
    building = path.with_name(f".building-{path.name}-{digest}")
    if not is_finished(building):
        counts = write_qualifications(
            client, fitted, features, building, settings, chances=chances, previous=previous, variant=variant,
            progress=progress,
        )  # fmt: skip
        finish_qualifications(building, digest, features, settings, counts, inputs=inputs)
    swap_folder(building, path)
    if building.is_dir():
        remove_run(building)
    return open_qualifications(path)


def write_qualifications(
    client: Client,
    model: RankModel,
    features: Features,
    run: Path,
    settings: ScoreSettings,
    *,
    chances: Chances | None = None,
    previous: Qualifications | None = None,
    variant: str | None = None,
    clicks: Sequence[int] | None = None,
    starved_below: float | None = None,
    progress: Progress = silent,
) -> ScoreCounts:
    """Write all partitions of a run and return the counts; what is whole from an earlier try is not done again.

    Parameters are those of `score`; `clicks` by category code are what the dashboard compares the exposure with and
    floors and caps are multiples of (by default those the model was trained on), and
    `starved_below` is the share of its share of clicks below which it shows a category as starved.
    """
    started = time.perf_counter()
    if variant is None:
        variant = model.variant_
    settings.check(features.categories)
    check_match(model, features, variant)
    check_chances(chances, settings, features)
    make_folders(run, features.categories)
    # A file reaches every worker more cheaply than an argument, and survives the death of one.
    panels = model.panels()
    save_arrays(run / WORK / MODEL, *panel_arrays(panels))
    job = ScoreJob(
        run, features.path, settings, variant,
        None if previous is None else PreviousQualifications.of(previous.run), features.n_partitions, chances,
        last_prices(previous, features.categories), tuple(model.popularity_.tolist() if clicks is None else clicks),
    )  # fmt: skip
    live = LiveExposure(
        client, features.categories, users_total=features.n_users, clicks=clicks, starved_below=starved_below
    )
    counts = job.run_all(client, features, panels.tie_order, live, progress)
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
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Make a run whole whose partitions are all written."""
    files = list_files(run, features.n_partitions)
    # What only the work needed goes with one rename before the run is whole: a crash leaves all of it or none.
    os.rename(run / WORK, temporary_beside(run / WORK))
    sweep_tree(run)
    remove_empty_folders(run)
    finish_run(
        run,
        KIND,
        digest,
        0,
        config={
            **settings.to_json(),
            "categories": list(features.categories),
            "partitions": features.n_partitions,
            **(config or {}),
        },
        inputs=inputs,
        facts={**counts.to_json(), **(facts or {})},
        files=files,
    )


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

    @property
    def table(self) -> ChanceTable:
        """Where all chances are kept for policies that need them."""
        return ChanceTable(self.run / WORK, self.n_partitions)

    @property
    def scratch(self) -> ScoreScratch:
        """Where all scores are kept for policies that need them."""
        return ScoreScratch(self.run, self.n_partitions)

    @property
    def late(self) -> list[Policy]:
        """The policies that need the scores of all users."""
        return [policy for policy in self.settings.wanted if policy.needs_all_scores]

    def run_all(
        self, client: Client, features: Features, tie_order: np.ndarray, live: LiveExposure, progress: Progress
    ) -> ScoreCounts:
        """Score all partitions, then apply the policies that need all scores."""
        scored = self._score_all(client, features, live, progress)
        slots = sum(facts["slots"] for facts in scored)
        policies: dict[str, PolicyCounts] = {}
        policy_facts: dict[str, Mapping[str, Any]] = {}
        for policy in self.settings.wanted:
            plan = None
            if policy.needs_all_scores:
                chances = self._chance_plan(scored, features.categories) if policy.needs_chances else None
                plan = policy.plan(
                    PlanRequest(client, self.scratch, self.settings.n, slots, tie_order, chances, progress)
                )
                listed = self._apply_all(client, policy, plan, live, progress)
            else:
                listed = [facts["policies"][policy.name] for facts in scored]
            counts = [PolicyCounts.from_json(content) for content in listed]
            policies[policy.name] = sum(counts[1:], start=counts[0])
            policy_facts[policy.name] = policy.facts(plan)
        users, cold = (sum(facts[name] for facts in scored) for name in ("users", "cold_users"))
        return ScoreCounts(users, cold, policies, policy_facts)

    def _chance_plan(self, scored: Sequence[Mapping[str, Any]], categories: Sequence[str]) -> ChancePlan:
        """Return what a policy that needs chances plans with."""
        eligible = np.array([facts["eligible"] for facts in scored], np.int64).sum(axis=0)
        bounds = exposure_bounds(
            categories, np.array(self.clicks), eligible, sum(facts["slots"] for facts in scored),
            floor=self.settings.floor, cap=self.settings.cap, floors=self.settings.floors, caps=self.settings.caps,
        )  # fmt: skip
        return ChancePlan(self.table, bounds, self.settings.k, self.start_prices)

    def _score_all(
        self, client: Client, features: Features, live: LiveExposure, progress: Progress
    ) -> list[dict[str, Any]]:
        """Return the facts of all partitions, after scoring those that are not done."""

        def show(facts: dict[str, Any]) -> None:
            if self.settings.policy in facts["policies"]:
                _add_exposure(live, facts["policies"][self.settings.policy])

        found = [self.finished_facts(partition) for partition in range(self.n_partitions)]
        rows = [part["rows"] for part in features.run.manifest["parts"]]
        facts = self._complete(client, "score", score_partition, found, show=show, rows=rows, progress=progress)
        live.flush()
        return facts

    def _apply_all(
        self, client: Client, policy: Policy, plan: Any, live: LiveExposure, progress: Progress
    ) -> list[dict[str, Any]]:
        """Return the counts of a policy that needed all scores, after writing the partitions that are not done."""
        is_in_force = policy.name == self.settings.policy

        def show(counts: dict[str, Any]) -> None:
            if is_in_force:
                _add_exposure(live, counts)

        found = [written_facts(self.run, partition) if is_in_force else None for partition in range(self.n_partitions)]
        counts = self._complete(
            client, policy.name, apply_policy, found, policy.name, plan, show=show, progress=progress
        )
        live.flush()
        return counts

    def _complete(
        self,
        client: Client,
        stage: str,
        function: Callable[..., dict[str, Any]],
        found: Sequence[dict[str, Any] | None],
        *arguments: Any,
        show: Callable[[dict[str, Any]], None],
        rows: Sequence[int] | None = None,
        progress: Progress,
    ) -> list[dict[str, Any]]:
        """Return what all partitions came to, in their order: as `found`, or from a task where that is None.

        `show` gets each of them as soon as it is known; `rows` are the users of the partitions.
        """
        for facts in found:
            if facts is not None:
                show(facts)
        missing = [partition for partition, facts in enumerate(found) if facts is None]
        results = run_tasks(
            client,
            stage,
            function,
            [(self, partition, *arguments) for partition in missing],
            units=None if rows is None else [rows[partition] for partition in missing],
            on_result=lambda _, facts: show(facts),
            progress=progress,
        )
        made = dict(zip(missing, results, strict=True))
        return [made[partition] if facts is None else facts for partition, facts in enumerate(found)]

    def finished_facts(self, partition: int) -> dict[str, Any] | None:
        """Return the facts of a partition that needs no scoring any more, else None."""
        written = None
        if not POLICIES[self.settings.policy].needs_all_scores:
            written = written_facts(self.run, partition)
            if written is None or not self.late:
                return written
        return load_facts(self.scratch.folder(partition)) if is_saved(self.scratch.folder(partition)) else None

    def load_panels(self) -> Panels | PlusPanels:
        """Read the model as the kernel reads it."""
        return panels_from(*load_arrays(self.run / WORK / MODEL))

    def write(
        self, partition: int, rows: QualificationRows, categories: Sequence[str], facts: Mapping[str, Any]
    ) -> None:
        """Write what the users of a partition hold, and what changed."""
        start = np.empty(len(categories) + 1, np.int64)
        order = np.empty(len(rows.category), np.int32)
        sort_by_category(rows.category, rows.score.view(np.uint32), start, order)
        changes = compare_qualifications(rows, categories, self.previous, partition, self.n_partitions)
        write_partition_files(
            self.run, partition, rows, categories, order=order, start=start, changes=changes, facts=facts
        )


def _add_exposure(live: LiveExposure, counts: Mapping[str, Any]) -> None:
    """Add what a policy handed out to the users of one partition."""
    live.add(sum(counts["categories_per_user"]), np.array(counts["exposure"], np.int64).sum(axis=1))


def read_rows(features: Features, partition: int, panels: Panels | PlusPanels, variant: str | None) -> FeaturePartition:
    """Read the rows of a partition as the model was trained on them: AMM-rank-plus normalises rows itself."""
    return features.partition(partition, variant=variant, normalize=False if isinstance(panels, PlusPanels) else None)


def score_partition(job: ScoreJob, partition: int) -> dict[str, Any]:
    """Score one partition, write it if its policy can already tell, and return its facts."""
    features = open_features(job.features)
    with measure("read"):
        panels = job.load_panels()
        part = read_rows(features, partition, panels, job.variant)
    n_categories, k = len(features.categories), job.settings.k
    limits = job.settings.eligibility(features.categories).filter(n_categories, part.age_bucket, part.gender)
    with measure("kernel"):
        codes, scores, everything = top_categories(part.X, panels, k, limits, keep_all=bool(job.late))
    users = ScoredUsers(part.user_ids, codes, scores, panels.tie_order)
    facts: dict[str, Any] = {
        "users": len(codes),
        "cold_users": int((part.n_event_features == 0).sum()),
        "slots": int((codes >= 0).sum()),
        "policies": {},
    }
    held: dict[str, QualificationRows] = {}
    for policy in job.settings.wanted:
        if not policy.needs_all_scores:
            held[policy.name] = policy.assign(users, None)
            facts["policies"][policy.name] = policy.count(held[policy.name], n_categories, k).to_json()
    with measure("write"):
        if any(policy.needs_chances for policy in job.late):
            assert job.chances is not None
            bare = np.zeros(n_categories, bool)
            planes = panels.planes if isinstance(panels, PlusPanels) else panels
            bare[panels.tie_order[planes.bare]] = True
            chances = job.chances.of_users(everything, part.n_event_features, bare, limits)
            facts["eligible"] = allowed_counts(chances, k)[0].tolist()
            job.table.save(partition, chances, part.user_ids, sample_share(features.n_users, n_categories))
        if job.late:
            job.scratch.save(partition, everything, part.user_ids, facts)
        if job.settings.policy in held:
            job.write(partition, held[job.settings.policy], features.categories, facts)
    return facts


def apply_policy(job: ScoreJob, partition: int, name: str, plan: Any) -> dict[str, Any]:
    """Apply a policy that needed all scores to one partition, write it if it is the chosen one, return its counts."""
    categories = open_features(job.features).categories
    user_ids = job.scratch.user_ids(partition)
    nothing = np.empty((len(user_ids), 0), np.int32)
    users = ScoredUsers(
        user_ids, nothing, nothing.astype(np.float32), job.load_panels().tie_order, job.scratch.bits(partition),
        partition,
    )  # fmt: skip
    policy = POLICIES[name]
    rows = policy.assign(users, plan)
    counts = policy.count(rows, len(categories), job.settings.k).to_json()
    if name == job.settings.policy:
        with measure("write"):
            job.write(partition, rows, categories, counts)
    return counts


def last_prices(previous: Qualifications | None, categories: Sequence[str]) -> np.ndarray | None:
    """Return the prices of an earlier balanced run by category, 0 for new ones; None when it had none."""
    facts = {} if previous is None else previous.run.manifest["facts"]["policies"].get("balanced", {})
    if previous is None or "prices" not in facts:
        return None
    by_name = dict(zip(previous.run.manifest["config"]["categories"], facts["prices"], strict=True))
    return np.array([by_name.get(category, 0.0) for category in categories])


def check_chances(chances: Chances | None, settings: ScoreSettings, features: Features) -> None:
    """Refuse a policy that needs chances without them, and chances of other categories."""
    needing = [policy.name for policy in settings.wanted if policy.needs_chances]
    if needing and chances is None:
        raise BadInput(
            f"policy {needing[0]} needs chances, got none; learn them with `learn_chances` on held-out users"
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

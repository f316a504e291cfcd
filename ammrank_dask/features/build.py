"""Build features from the interest state: a block function for one partition and its Dask driver."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.features.columns import FeatureColumns, interest_columns
from ammrank_dask.features.csr import csr_arrays, csr_attributes
from ammrank_dask.features.demographics import Demographics, describe_users
from ammrank_dask.features.eligibility import Eligibility, group_of
from ammrank_dask.features.store import finish_features
from ammrank_dask.ingest.fold import DayPart, part_of, parts_of
from ammrank_dask.ingest.interest_state import InterestState, end_of, fold_days
from ammrank_dask.kernels.features import count_values, rank_clicks, write_values
from ammrank_dask.monitor.performance import measure
from ammrank_dask.runtime.run_in_work import begin_runs
from ammrank_dask.runtime.tasks import Call, Progress, run_together, silent
from ammrank_dask.storage.store.ids import UserIds, empty_ids, ids_from_arrays, union
from ammrank_dask.storage.store.parts import PartRef, WrittenPart, write_part
from ammrank_dask.storage.store.registry import DAY, FEATURES, STATE, USERS
from ammrank_dask.storage.store.runs import Run, RunInWork, is_finished, open_run
from ammrank_dask.storage.vocabulary import DAY_US, PERIODS
from ammrank_dask.user_hash import SPLITS, split_of


@dataclass(frozen=True)
class FeatureSettings:
    """What features are made of: all groups of the log in code order, those used, and the transforms."""

    groups: tuple[str, ...]
    used_groups: tuple[str, ...]
    categories: tuple[str, ...]
    alpha: float
    intensity: str = "log1p"
    recency: str = "decay"
    demographics: bool = True
    normalize: bool = True
    label_days: int = 30
    label_alpha: float = 0.97

    @property
    def columns(self) -> FeatureColumns:
        """The columns, groups in code order."""
        used = [group for group in self.groups if group in self.used_groups]
        return interest_columns(used, self.categories, recency=self.recency == "decay", demographics=self.demographics)

    @property
    def n_cells(self) -> int:
        """Number of cells of the interest state."""
        return len(self.groups) * len(self.categories)


def build_rows(
    state: InterestState,
    age_bucket: np.ndarray,
    gender: np.ndarray,
    settings: FeatureSettings,
    *,
    end: int,
    dtype: Any = np.float32,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the features of a state's users at time `end` as CSR arrays (indptr, indices, data)."""
    n_categories = len(settings.categories)
    group_slot = np.full(len(settings.groups), -1, np.int64)
    used = [code for code, group in enumerate(settings.groups) if group in settings.used_groups]
    group_slot[used] = np.arange(len(used))
    use_recency = settings.recency == "decay"
    kinds = 2 if use_recency else 1
    counts = np.empty(len(state.user_ids), np.int64)
    count_values(state.indptr, state.cell, group_slot, n_categories, kinds, counts)
    if settings.demographics:
        counts += (age_bucket >= 0).astype(np.int64) + (gender >= 0)
    else:
        age_bucket = np.full_like(age_bucket, -1)
        gender = np.full_like(gender, -1)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    age_column = len(used) * kinds * n_categories
    indices = np.empty(indptr[-1], np.uint32)
    data = np.empty(indptr[-1], dtype)
    write_values(
        state.indptr, state.cell, state.intensity, state.last, group_slot, n_categories, end,
        math.log(settings.alpha) / DAY_US, settings.intensity == "log1p", use_recency,
        age_bucket, gender, age_column, age_column + 9, indptr, indices, data,
    )  # fmt: skip
    return indptr, indices, data


def rank_users(clicks: InterestState, n_categories: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the clicked categories of each user, best first, and their intensities (aligned with `clicks.indptr`).

    `clicks` has cells of the click group only.
    """
    category = np.empty(len(clicks.cell), np.uint16 if n_categories <= 1 << 16 else np.uint32)
    intensity = np.empty(len(clicks.cell), np.float64)
    order = np.empty(len(clicks.cell), np.int64)
    rank_clicks(clicks.indptr, clicks.cell, clicks.intensity, clicks.last, n_categories, order, category, intensity)
    return category, intensity


@dataclass(frozen=True)
class FeatureSource:
    """From where one features run is built: `part(i)` is what the task of partition i needs.

    `state` is the interest state of `date`, None for no events. With `label_days`, the days after `date` up to the
    end of the label window, only users who clicked at least `min_categories` categories in them are kept, with their
    ranking. Without, users are those of the state, and of `users` if `all_users`. With `label_days` and `splits`, users
    are these too, those of the splits only, and have their ranking, whether they clicked or not. The users of
    `suppressed`, by partition, are left out; `eligibility` keeps categories out of the rankings of groups of users.
    With `n_sampled`, partitions behind the first so many have no users: a sample, for users are dealt by hash.
    """

    date: dt.date
    state: Run | None
    users: Run | None
    all_users: bool
    label_days: tuple[tuple[dt.date, Run | None], ...] = ()
    min_categories: int = 1
    id_kind: str = "int64"
    suppressed: Mapping[int, UserIds] = field(default_factory=dict)
    eligibility: Eligibility = field(default_factory=Eligibility)
    splits: tuple[str, ...] = ()
    n_sampled: int | None = None

    def part(self, partition: int) -> FeaturePart:
        """Return the source of one partition."""
        if self.n_sampled is not None and partition >= self.n_sampled:
            without = tuple((day, None) for day, _ in self.label_days)
            return replace(self, state=None, users=None, label_days=without, n_sampled=None).part(partition)
        return FeaturePart(
            self.date,
            part_of(self.state, partition),
            part_of(self.users, partition),
            self.all_users,
            parts_of(self.label_days, partition),
            self.min_categories,
            self.id_kind,
            self.suppressed.get(partition, empty_ids(self.id_kind)),
            self.eligibility,
            self.splits,
        )


@dataclass(frozen=True)
class FeaturePart:
    """One partition of a FeatureSource."""

    date: dt.date
    state: PartRef | None
    users: PartRef | None
    all_users: bool
    label_days: Sequence[DayPart]
    min_categories: int
    id_kind: str
    suppressed: UserIds
    eligibility: Eligibility
    splits: tuple[str, ...] = ()


@dataclass(frozen=True)
class FeaturePlan:
    """Features before they are built: from what, with which settings, and the run they become."""

    source: FeatureSource
    settings: FeatureSettings
    path: Path
    digest: str
    n_partitions: int
    inputs: Mapping[str, Any]
    popular: np.ndarray | None = None
    """What `popular_around` says of the date; None where no training needs it."""


def build_features(
    client: Client,
    plan: FeaturePlan,
    *,
    click_group: str,
    stage: str = "features",
    progress: Progress = silent,
) -> Run:
    """Write a features run; finished parts are kept."""
    source, settings, path = plan.source, plan.settings, plan.path
    if is_finished(path):
        return open_run(path, FEATURES.kind)
    (run,) = begin_runs(client, [path], plan.n_partitions)
    with run:
        todo = run.todo
        calls: list[Call] = [
            (build_partition, (source.part(partition), settings, click_group, path, partition)) for partition in todo
        ]
        run_together(
            client,
            stage,
            calls,
            progress=progress,
            units=attrgetter("facts.rows"),
            on_result=lambda i, part: run.add(todo[i], part),
        )
        return _finish(run, plan)


def _finish(run: RunInWork, plan: FeaturePlan) -> Run:
    """Make features whole whose partitions are written."""
    source, settings = plan.source, plan.settings
    known = np.sum(run.counts, axis=0)
    if plan.popular is not None:
        known = np.concatenate([known, np.insert(plan.popular, 0, 0, axis=1)])
    label_end = source.label_days[-1][0] if source.label_days else None
    return finish_features(
        run.path,
        settings.columns,
        digest=plan.digest,
        parts=run.parts,
        config={
            "date": str(source.date),
            "label_end": str(label_end) if label_end else None,
            "min_categories": source.min_categories,
            "all_users": source.all_users,
            "groups": list(settings.used_groups),
            "categories": list(settings.categories),
            "alpha": settings.alpha,
            "intensity": settings.intensity,
            "recency": settings.recency,
            "normalize": settings.normalize,
            "has_rankings": bool(source.label_days),
            "id_kind": source.id_kind,
            **({} if source.n_sampled is not None else {"clickers": known.tolist()}),
            **({"splits": list(source.splits)} if source.splits else {}),
        },
        inputs=dict(plan.inputs),
    )


def clickers_of(state: InterestState, settings: FeatureSettings, click_group: str, *, end: int) -> np.ndarray:
    """Return by period of `PERIODS` before `end` how many users clicked, and how many clicked each category.

    The last click of a user on a category tells it: (periods, 1 + L) int64.
    """
    n_categories = len(settings.categories)
    first = settings.groups.index(click_group) * n_categories
    is_click = (state.cell >= first) & (state.cell < first + n_categories)
    category = state.cell[is_click].astype(np.int64) - first
    user = np.repeat(np.arange(len(state.user_ids)), np.diff(state.indptr))[is_click]
    counts = np.zeros((len(PERIODS), 1 + n_categories), np.int64)
    for row, n_windows in enumerate(PERIODS):
        is_late = state.last[is_click] >= end - n_windows * settings.label_days * DAY_US
        counts[row, 0] = np.count_nonzero(np.diff(user[is_late], prepend=-1))
        counts[row, 1:] = np.bincount(category[is_late], minlength=n_categories)
    return counts


def build_partition(
    source: FeaturePart, settings: FeatureSettings, click_group: str, path: Path, partition: int
) -> WrittenPart:
    """Build and write the features of one partition, and tell who clicked what before the date (`clickers_of`)."""
    with measure("read"):
        state = _read_state(source, settings)
        people = _read_people(source)
    with measure("kernel"):
        clickers = clickers_of(state, settings, click_group, end=end_of(source.date))
    labels: dict[str, np.ndarray] = {}
    if source.label_days:
        with measure("read"):
            clicks = _read_clicks(source, settings, click_group, people)
        if source.splits:
            users = _of_splits(_users_to_score(source, state, people), source.splits)
            clicks = _restrict(clicks, users).place(users)
        users = clicks.user_ids
        category, intensity = rank_users(clicks, len(settings.categories))
        labels = {
            "ranking/indptr": clicks.indptr,
            "ranking/category": category,
            "ranking/intensity": intensity,
        }
    else:
        users = _users_to_score(source, state, people)
    bucket, gender = describe_users(users, people)
    with measure("kernel"):
        rows = _restrict(state, users).place(users)
        indptr, indices, data = build_rows(rows, bucket, gender, settings, end=end_of(source.date))
    n_columns = len(settings.columns.names)
    arrays = {
        **users.to_arrays(),
        **csr_arrays(indptr, indices, data, n_columns),
        "age_bucket": bucket,
        "gender": gender,
        **labels,
    }
    with measure("write"):
        facts = write_part(path, partition, FEATURES, arrays, group_attributes=csr_attributes(len(users), n_columns))
    return WrittenPart(facts, clickers.tolist())


def _read_state(source: FeaturePart, settings: FeatureSettings) -> InterestState:
    if source.state is None:
        return InterestState.empty(source.id_kind, settings.n_cells)
    return InterestState.from_part(source.state, STATE)


def _read_clicks(
    source: FeaturePart, settings: FeatureSettings, click_group: str, people: Demographics | None
) -> InterestState:
    """Return the clicks that make rankings: not of users who are left out, nor on categories kept from them."""
    first = settings.groups.index(click_group) * len(settings.categories)
    cells = (first, first + len(settings.categories))
    nothing = InterestState.empty(source.id_kind, settings.n_cells)
    partials = (
        None if part is None else InterestState.from_part(part, DAY).select_range(*cells)
        for _, part in source.label_days
    )
    first_end = end_of(source.label_days[0][0])
    clicks = fold_days(nothing, partials, first_end=first_end, alpha=settings.label_alpha, max_age_days=None)
    allowed = source.eligibility.allowed(len(settings.categories))
    if len(allowed) or len(source.suppressed):
        counts = np.diff(clicks.indptr)
        kept = np.repeat(source.suppressed.positions_of(clicks.user_ids) < 0, counts)
        if len(allowed):
            group = group_of(*describe_users(clicks.user_ids, people))
            kept &= allowed[np.repeat(group, counts), clicks.cell - first]
        clicks = clicks.select_cells(kept).drop_empty_users()
    counts = np.diff(clicks.indptr)
    few = np.repeat(counts < source.min_categories, counts)
    return clicks.select_cells(~few).drop_empty_users()


def _read_people(source: FeaturePart) -> Demographics | None:
    if source.users is None:
        return None
    arrays = source.users.read(USERS)
    return Demographics(ids_from_arrays(arrays), arrays["age"], arrays["gender"])


def _users_to_score(source: FeaturePart, state: InterestState, people: Demographics | None) -> UserIds:
    """Return the users of the state, with `all_users` also those of the users table, without suppressed users."""
    users = state.user_ids
    if people is not None and source.all_users:
        users = union([users, people.user_ids])
    return _without(users, source.suppressed)


def _of_splits(users: UserIds, splits: Sequence[str]) -> UserIds:
    return users.take(np.flatnonzero(np.isin(split_of(users), [SPLITS.index(name) for name in splits])))


def _without(users: UserIds, others: UserIds) -> UserIds:
    """Return the users who are not among others."""
    if not len(others):
        return users
    return users.take(np.flatnonzero(others.positions_of(users) < 0))


def _restrict(state: InterestState, users: UserIds) -> InterestState:
    """Return the state without users that are not in `users`."""
    if not len(users):
        return InterestState(
            empty_ids(users.kind), np.zeros(1, np.int64), state.cell[:0], state.intensity[:0], state.last[:0]
        )
    is_wanted = users.positions_of(state.user_ids) >= 0
    if is_wanted.all():
        return state
    return state.select_users(np.flatnonzero(is_wanted & (np.diff(state.indptr) > 0)))

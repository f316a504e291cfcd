"""Walk through one training on a cluster: prepare rows, begin, make rounds and merges, and choose the model."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.features.store import Features
from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.lagged import LaggedPopularity, lagged_popularity
from ammrank_dask.model.plane_sums import PlaneSums
from ammrank_dask.model.plus_sums import PlusState
from ammrank_dask.model.saved import RankModel
from ammrank_dask.monitor.events import publish
from ammrank_dask.runtime.tasks import Call, Progress, run_calls, run_tasks, run_together, silent
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.numbers import whole_number
from ammrank_dask.storage.objects.folders import is_folder
from ammrank_dask.storage.store.ids import UserIds, digest_ids
from ammrank_dask.storage.store.scratch_arrays import is_saved, load_array, load_facts
from ammrank_dask.training.basis import prepare_basis
from ammrank_dask.training.checkpoints import TrainingFolder
from ammrank_dask.training.learners import AVERAGE, LAST, Learner, PlaneLearner, PlusLearner
from ammrank_dask.training.matched_rows import RowMatch, match_features
from ammrank_dask.training.plus_start import add_memberships, check_start, state_of_model
from ammrank_dask.training.prepared_rows import TRAIN, VALIDATION, prepare_rows
from ammrank_dask.training.round_tasks import FIRST_PASS, close_round, merge_shards, train_shard
from ammrank_dask.training.shards import MERGE_WIDTH, RowBlock, choose_sample, cut_blocks, deal_blocks
from ammrank_dask.training.validation import Validation, mean_of_parts
from ammrank_dask.training.warm_start import planes_of_model
from ammrank_dask.user_hash import partition_of

logger = logging.getLogger(__name__)

CLICKERS_WANTED = 50
"""Clickers of every category in the first pass over a sample, which gives all shards a common set of planes."""
SAMPLE_ROWS = 10_000
BEST = "best"


@dataclass(frozen=True)
class TrainingPlan:
    """How training is cut and when it ends: none of it depends on the cluster."""

    shards: int = 8
    rounds_per_epoch: int = 2
    block_rows: int = 1024
    patience: int | None = None
    max_rows: int = 1_000_000

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None:
                whole_number(name, value, least=1)


@dataclass(frozen=True)
class Windows:
    """Rows of earlier label windows to train on as well, and the features of the night that is to be scored.

    What was popular is the prior of a row as it was known at its own moment, if all of these tell it. Rows are brought
    to the columns and categories of tonight by name; `renames` has the names of now of categories that have another.
    The users of `left_out` have no rows in any of them.
    """

    earlier: tuple[Features, ...] = ()
    tonight: Features | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    left_out: UserIds | None = None
    holds_out: bool = True
    """Whether users of the newest window are left out of training, for validation and the gate."""

    def identity(self, features: Features) -> dict[str, Any]:
        """Return what a training on `features` and these windows depends on, apart from the rows of `features`."""
        target = self.tonight or features
        return {
            "earlier": [each.run.checksums for each in self.earlier],
            "tonight": None if self.tonight is None else self.tonight.manifest.clickers,
            "names": [target.columns, target.categories, dict(self.renames)],
            "left_out": None if self.left_out is None else digest_ids(self.left_out),
        }

    def partitions(self, features: Features, max_rows: int) -> list[tuple[Features, int]]:
        """Return the partitions that train, so many that all have about `max_rows`, and one of each window at least.

        Half of the rows are of the newest window `features`, unless there are fewer; earlier ones share the others.
        They take turns, so that they have other users.
        """
        earlier = sum(each.n_users for each in self.earlier)
        newest = max(max_rows // 2, max_rows - earlier)
        every_newest = _one_in(features.n_users, newest)
        every_earlier = _one_in(earlier, max_rows - min(newest, features.n_users))
        chosen = []
        for number, each in enumerate((features, *self.earlier)):
            step = min(each.n_partitions, every_earlier if number else every_newest)
            chosen += [(each, partition) for partition in range(number % step, each.n_partitions, step)]
        return chosen

    def match(self, each: Features, features: Features, variant: str | None) -> RowMatch | None:
        """Return how one of them is read tonight, where `features` are the newest rows; None as it is."""
        return match_features(each, self.tonight or features, variant, self.renames)

    def left_out_of(self, each: Features) -> list[UserIds | None]:
        """Return by partition of one of them the users without rows."""
        if self.left_out is None:
            return [None] * each.n_partitions
        home = partition_of(self.left_out, each.n_partitions)
        return [self.left_out.take(np.flatnonzero(home == number)) for number in range(each.n_partitions)]

    def popularity(self, features: Features, variant: str | None) -> LaggedPopularity | None:
        """Return what tonight and the moments of all windows, the newest first, know; None if one of them does not."""
        known = []
        for each in (self.tonight or features, features, *self.earlier):
            if each.manifest.clickers is None:
                return None
            counts, match = np.array(each.manifest.clickers, np.int64), self.match(each, features, variant)
            known.append(counts if match is None else match.clickers(counts))
        return lagged_popularity(known)


def _one_in(rows: int, room: int) -> int:
    """Return of how many rows one is taken where there is room for so many."""
    return max(1, math.ceil(rows / max(1, room)))


class Training:
    """One training: the state between rounds is on the disk, this object only walks through them."""

    def __init__(
        self,
        client: Client,
        features: Features,
        model: RankModel,
        plan: TrainingPlan,
        variant: str | None,
        folder: Path,
        progress: Progress,
        windows: Windows,
    ) -> None:
        self.client = client
        self.features = features
        self.windows = windows
        self.target = windows.tonight or features
        self.parts = windows.partitions(features, plan.max_rows)
        self.model = model
        self.plan = plan
        self.variant = variant
        self.folder = TrainingFolder(folder, plan.patience)
        self.progress = progress
        self.left_over: Callable[[], None] | None = None
        self.popularity_error: float | None = None
        of_window = [each.path for each, _ in self.parts]
        first = tuple(of_window.index(each.path) for each in (features, *windows.earlier))
        self.learner: Learner = (
            PlusLearner(model, folder, plan.shards, first)
            if isinstance(model, AMMRankPlus)
            else PlaneLearner(model, folder)
        )

    def run(self, average: bool | None, start: RankModel | None, digest: str) -> RankModel:
        """Train to the end and return the model."""
        check_start(self.model, start)
        self.folder.claim(digest)
        rows, clickers = self._prepare()
        blocks = cut_blocks(rows, self.plan.block_rows)
        if not blocks:
            raise TooFewUsers(
                f"features at {self.features.path} have no training user with a ranking; ingest more days"
            )
        if sum(rows) < self.plan.shards:
            raise TooFewUsers(
                f"shards must be at most the number of training users ({sum(rows)}), got {self.plan.shards}"
            )
        popularity = clickers.sum(axis=0)
        self._warn_of_unclicked(popularity)
        if isinstance(self.learner, PlusLearner):
            self._prepare_plus(self.learner, start, blocks)
        first = [] if self.folder.checkpoints() else self._begin(start, blocks, clickers)
        self.popularity_error = self.validation.popularity_error(popularity, first)
        average_error = None
        epoch, round_ = self.folder.next_round()
        self.folder.sweep_earlier(_name_of_round(epoch, round_))
        while True:
            is_last = epoch == self.model.epochs
            if self._is_unmeasured(epoch, round_) and (is_last or self.plan.patience is not None):
                with_average = is_last and self._has_average(average)
                kinds = [LAST, AVERAGE] if with_average else [LAST]
                errors = self.validation.errors(self.folder.checkpoint(epoch, 0), kinds)
                self._close_epoch(epoch, errors[0])
                average_error = errors[1] if with_average else None
            if is_last or self.folder.is_enough(self.folder.history()):
                break
            dealt = deal_blocks(
                len(blocks), self.plan.shards, self.plan.rounds_per_epoch, seed=self.model.seed, epoch=epoch
            )
            self._round(epoch, round_, [[blocks[i] for i in shard] for shard in dealt[round_]])
            epoch, round_ = self.folder.next_round()
        self._tidy_up()
        return self._choose(average, popularity, average_error)

    def _prepare(self) -> tuple[list[int], np.ndarray]:
        """Decode the rows of every partition once; return its training rows, and (n_blocks, L) clickers by block."""
        all_windows = (self.features, *self.windows.earlier)
        matches = {each.path: self.windows.match(each, self.features, self.variant) for each in all_windows}
        left_out = {each.path: self.windows.left_out_of(each) for each in all_windows}
        tasks = [
            (
                str(features.path), partition, self.variant, self.plan.block_rows, self.folder.rows(number),
                self.model.normalize_rows, self.windows.holds_out and features is self.features, matches[features.path],
                left_out[features.path][partition],
            )
            for number, (features, partition) in enumerate(self.parts)
        ]  # fmt: skip
        todo: list[Call] = [(prepare_rows, task) for task in tasks if not is_saved(task[4])]
        run_together(self.client, "train-prepare", todo, progress=self.progress)
        folders = [task[4] for task in tasks]
        unseen = [folder for folder in folders if not is_folder(folder)]
        if unseen:
            raise BadInput(
                f"this process does not see {unseen[0]}, which workers have written; its folder must be in a file"
                " system that all workers share with this process, under one path"
            )
        counts = [load_facts(folder) for folder in folders]
        self.validation = Validation(self.client, self.learner, folders, [each[VALIDATION] for each in counts])
        return [each[TRAIN] for each in counts], np.concatenate([load_array(folder, "clickers") for folder in folders])

    def _prepare_plus(self, learner: PlusLearner, start: RankModel | None, blocks: list[RowBlock]) -> None:
        """Fix what comes before the first step of AMM-rank-plus, and add memberships to the training rows."""
        folders = [self.folder.rows(number) for number in range(len(self.parts))]
        earlier = start if isinstance(start, AMMRankPlus) else None
        columns = self.target.columns_of(self.variant)
        lagged = self.windows.popularity(self.features, self.variant)
        prepare_basis(self.client, learner, folders, blocks, columns, earlier, lagged, self.progress)
        outputs = [
            (learner.rows_folder(partition), learner.members_folder(partition)) for partition in range(len(folders))
        ]
        calls: list[Call] = [
            (add_memberships, (learner, rows, *both))
            for rows, both in zip(folders, outputs, strict=True)
            if not all(is_saved(output) for output in both)
        ]
        run_together(self.client, "train-memberships", calls, progress=self.progress)

    def _warn_of_unclicked(self, popularity: np.ndarray) -> None:
        unclicked = [name for name, clicks in zip(self.target.categories, popularity, strict=True) if not clicks]
        if unclicked:
            logger.warning(
                "%d of %d categories have no clicks of training users and rank last: %s",
                len(unclicked), len(popularity), ", ".join(unclicked[:5]) + (", …" if len(unclicked) > 5 else ""),
            )  # fmt: skip

    def _begin(self, start: RankModel | None, blocks: list[RowBlock], clickers: np.ndarray) -> list[tuple[Any, ...]]:
        """Write the model before the first round, empty or the one to start from, or return the task that makes it.

        With several shards planes are born only here, in a pass over a sample: planes that shards make on their own do
        not correspond, and their mean has no meaning. A model to start from needs the pass only for categories that
        have clicks and no planes.
        """
        n_rows = np.array([block.n_rows for block in blocks])
        state: Any = self._first_state(start, math.ceil(n_rows.sum() / self.plan.shards))
        n_planes, clicks = state.planes.n_planes, clickers.sum(axis=0)
        if isinstance(self.learner, PlusLearner):
            grows = start is None and bool((n_planes < self.learner.basis.limit).any())
        else:
            grows = bool(((n_planes == 0) & (clicks > 0)).any())
        needs_pass = self.plan.shards > 1 and grows
        first = self.folder.path / "start" if needs_pass else self.folder.checkpoint(0, 0)
        if not is_saved(first):
            mean: Any = self.learner.empty_mean()
            self.learner.save(first, state, mean)
        if not needs_pass:
            return []
        sample = choose_sample(clickers, n_rows, wanted=CLICKERS_WANTED, min_rows=SAMPLE_ROWS, seed=self.model.seed)
        return [(first, [blocks[i] for i in sample], self.learner, FIRST_PASS, True, self.folder.checkpoint(0, 0))]

    def _first_state(self, start: RankModel | None, step: int) -> PlaneSums | PlusState:
        """Return the state before the first step: empty, or that of a model whose planes `step` steps have made."""
        columns, categories = self.target.columns_of(self.variant), self.target.categories
        if isinstance(self.learner, PlusLearner):
            basis = self.learner.basis
            if not isinstance(start, AMMRankPlus):
                return PlusState.empty(basis)
            options = self.learner.model.block_options(basis, self.learner.shards)
            regularization, rates = options["regularization"], options["rates"]
            return state_of_model(
                start, basis, columns, categories, regularization=regularization, rates=rates, step=step
            )
        if not isinstance(start, AMMRank):
            return PlaneSums.empty(len(columns), len(categories))
        model = self.learner.model
        return planes_of_model(
            start, columns, categories, regularization=model.regularization, max_planes=model.max_planes, step=step
        )

    def _round(self, epoch: int, round_: int, dealt: list[list[RowBlock]]) -> None:
        """Let every shard train a copy of the model on its blocks, merge, and write the checkpoint.

        The error of an epoch that has just ended is measured beside: nothing of the next one depends on it, and there
        is little of it to share out among workers.
        """
        started = time.perf_counter()
        name = _name_of_round(epoch, round_)
        now = self.folder.checkpoint(epoch, round_)
        outputs = [self.folder.path / f"{name}-s{shard:04d}" for shard in range(len(dealt))]
        # After the first pass planes are born only by a single shard.
        births = self.plan.shards == 1
        rows = [sum(block.n_rows for block in shard) for shard in dealt]
        todo = [shard for shard, output in enumerate(outputs) if not is_saved(output)]
        shards: list[list[Call]] = [
            [(train_shard, (now, dealt[shard], self.learner, epoch, births, outputs[shard]))] for shard in todo
        ]
        measures = self.validation.calls(now) if self._is_unmeasured(epoch, round_) else []
        results = run_calls(
            self.client,
            name,
            [*shards, *measures],
            progress=self.progress,
            units=[*(rows[shard] for shard in todo), *(0 for calls in measures for _ in calls)],
            meanwhile=self._tidy_up,
        )
        if measures:
            self._close_epoch(epoch, mean_of_parts(results[len(shards) :]))
        trained = time.perf_counter()
        is_epoch_end = round_ + 1 == self.plan.rounds_per_epoch
        next_checkpoint = (
            self.folder.checkpoint(epoch + 1, 0) if is_epoch_end else self.folder.checkpoint(epoch, round_ + 1)
        )
        averages = is_epoch_end and epoch >= self.model.epochs // 2
        # With fewer blocks than shards and rounds, a round may have no rows: every shard then keeps the model.
        merged = self._merge(name, outputs, [n / sum(rows) if any(rows) else 1 / len(rows) for n in rows])
        task = (now, outputs, merged, sum(rows), round_ > 0, next_checkpoint, averages, self.learner)
        (facts,) = run_tasks(self.client, f"{name}-merge", close_round, [task], progress=silent)
        ended = time.perf_counter()
        counts = {
            "epoch": epoch + 1,
            "round": round_ + 1,
            "loss": facts["loss"] / sum(rows) if any(rows) else None,
            "planes": sum(facts["n_planes"]),
            "users_per_second": round(sum(rows) / (ended - started)),
        }
        share = (ended - trained) / (ended - started)
        self.left_over = functools.partial(self._leave_round, name, counts, facts["n_planes"], share)

    def _leave_round(self, name: str, counts: dict[str, Any], n_planes: list[int], merge_share: float) -> None:
        """Remove what a round left, and tell of it."""
        self.folder.sweep(name)
        publish(
            self.client, "train", **counts, epochs=self.model.epochs, rounds=self.plan.rounds_per_epoch,
            planes_per_category=n_planes, categories=self.target.categories,
        )  # fmt: skip
        told = ", ".join(f"{key} {value}" for key, value in counts.items())
        logger.info("trained %s, merge and checkpoint %.1f %%", told, 100 * merge_share)

    def _tidy_up(self) -> None:
        """Do what is left to do of the round before: while the workers are at the next one, nobody waits for it."""
        left_over, self.left_over = self.left_over, None
        if left_over is not None:
            left_over()

    def _merge(self, name: str, parts: list[Path], weights: list[float]) -> list[tuple[Path, float]]:
        """Merge models on the workers until a few are left, in a tree whose shape depends on their number only."""
        level = 0
        while len(parts) > MERGE_WIDTH:
            groups = [slice(i, i + MERGE_WIDTH) for i in range(0, len(parts), MERGE_WIDTH)]
            outputs = [self.folder.path / f"{name}-m{level}-{i:04d}" for i in range(len(groups))]
            tasks = [
                (parts[group], weights[group], self.learner.merged, output)
                for group, output in zip(groups, outputs, strict=True)
                if not is_saved(output)
            ]
            run_tasks(self.client, f"{name}-merge", merge_shards, tasks, progress=silent)
            parts, weights, level = outputs, [1.0] * len(outputs), level + 1
        return list(zip(parts, weights, strict=True))

    def _is_unmeasured(self, epoch: int, round_: int) -> bool:
        """Return whether an epoch has just ended whose error on the validation users is not in the history."""
        return round_ == 0 and len(self.folder.history()) < epoch

    def _close_epoch(self, epoch: int, error: float | None) -> None:
        """Add a finished epoch, with its error on the validation users, to the history, and tell of it."""
        self._tidy_up()  # what is told of its last round comes before
        facts = load_facts(self.folder.checkpoint(epoch, 0))
        closed = {"epoch": epoch, "loss": facts["loss"] / facts["rows"], "validation_error": error}
        self.folder.write_history([*self.folder.history(), closed])
        publish(
            self.client, "train", **closed, round=self.plan.rounds_per_epoch, rounds=self.plan.rounds_per_epoch,
            epochs=self.model.epochs, popularity_error=self.popularity_error,
        )  # fmt: skip
        logger.info("closed %s", ", ".join(f"{key} {value}" for key, value in closed.items()))

    def _has_average(self, average: bool | None) -> bool:
        """Return whether the last checkpoint has a mean of models that may be published."""
        return average is not False and bool(load_facts(self.folder.checkpoints()[-1])["n_models"])

    def _choose(self, average: bool | None, popularity: np.ndarray, average_error: float | None) -> RankModel:
        """Return the model that the validation users prefer, or the one that was asked for."""
        history, latest = self.folder.history(), self.folder.checkpoints()[-1]
        chosen, kind, checkpoint = LAST, LAST, latest
        error = history[-1]["validation_error"]
        best = self.folder.best_checkpoint()
        if best is not None:
            chosen, checkpoint = BEST, best
            error = min(closed["validation_error"] for closed in history)
        if self._has_average(average):
            if average_error is None:  # training ended early, or this is a rerun
                (average_error,) = self.validation.errors(latest, [AVERAGE])
            if average or (average_error is not None and average_error < error):
                chosen, kind, checkpoint, error = AVERAGE, AVERAGE, latest, average_error
        model = self.learner.fit(checkpoint, kind, popularity)
        model.categories_ = list(self.target.categories)
        model.columns_ = self.target.columns_of(self.variant)
        model.variant_ = self.variant
        model.training_ = {
            "published": chosen,
            "validation_error": error,
            "average_error": average_error,
            "popularity_error": self.popularity_error,
            "epochs": history,
        }
        return model


def _name_of_round(epoch: int, round_: int) -> str:
    return f"train-e{epoch:03d}-r{round_:02d}"

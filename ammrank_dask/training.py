"""Train AMM-rank on stored features: logical shards, rounds and merges on a Dask cluster.

The result depends on the features, the parameters and the seed, never on the number of workers: blocks are dealt to a
fixed number of logical shards, and what they learn is merged in their order. Rows are decoded once into a scratch
folder and mapped from there; after every round the merged model is written, and a rerun goes on from the last one.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client

from ammrank_dask.features import Features, open_features
from ammrank_dask.hashing import SPLITS, split_of
from ammrank_dask.metrics import disagreement_error
from ammrank_dask.planes import PlaneSums, WeightMean, train_block
from ammrank_dask.ranker import AMMRank
from ammrank_dask.rankings import check_rankings
from ammrank_dask.shards import (
    MERGE_WIDTH,
    RowBlock,
    advance_step,
    choose_sample,
    cut_blocks,
    deal_blocks,
    merge_sums,
)
from ammrank_dask.tasks import Progress, run_tasks, silent
from storage.checkpoints import is_saved, load_array, load_facts, save_arrays
from storage.errors import BadInput
from storage.files import digest_of

logger = logging.getLogger(__name__)

CLICKERS_WANTED = 50
"""Clickers of every category in the first pass over a sample, which gives all shards a common set of planes."""
SAMPLE_ROWS = 10_000
TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True)
class TrainingPlan:
    """How training is cut: none of it depends on the cluster."""

    shards: int = 8
    rounds_per_epoch: int = 2
    block_rows: int = 1024

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise BadInput(f"{name} must be at least 1, got {value}")


def train(
    client: Client,
    features: Features,
    *,
    shards: int = 8,
    rounds_per_epoch: int = 2,
    block_rows: int = 1024,
    epochs: int = 5,
    regularization: float = 1e-3,
    max_planes: int = 5,
    rank_weight: str = "uniform",
    average: bool | None = None,
    seed: int = 0,
    variant: str | None = None,
    scratch: str | Path | None = None,
    progress: Progress = silent,
) -> AMMRank:
    """Train on the labelled training users of all partitions and return the fitted model.

    Users whom `split_of` puts into validation or gate are left out; the error on validation users is measured after
    every epoch.

    Parameters
    ----------
    client
        The cluster; it is left as it is.
    features
        Features with rankings, in a folder that all workers see.
    shards, rounds_per_epoch, block_rows
        Logical shards, merges an epoch, and rows of a block. One shard is the plain loop over all blocks.
    epochs, regularization, max_planes, rank_weight, seed
        As in `AMMRank`.
    average
        Publish the mean of the epoch-end models of the last half of the epochs; None lets the validation users
        choose between it and the last model.
    variant
        The columns to learn from; all when None.
    scratch
        Folder for decoded rows and checkpoints, seen by all workers; beside the features when None. It is removed
        at the end, and a rerun after a crash goes on from it.
    """
    if not features.has_rankings:
        raise BadInput(f"features at {features.path} must have rankings to train on, found none")
    plan = TrainingPlan(shards, rounds_per_epoch, block_rows)
    model = AMMRank(
        epochs=epochs,
        regularization=regularization,
        max_planes=max_planes,
        rank_weight=rank_weight,
        average=bool(average),
        n_categories=len(features.categories),
        seed=seed,
    )
    digest = digest_of([features.run.digest, features.run.checksums, variant, asdict(plan), model.get_params()])
    folder = Path(scratch) if scratch is not None else features.path.parent
    job = _Training(client, features, model, plan, variant, folder / f".training-{digest}", progress)
    fitted = job.run(average)
    shutil.rmtree(job.folder, ignore_errors=True)
    return fitted


class _Training:
    """One training: the state between rounds is on the disk, this object only walks through them."""

    def __init__(
        self,
        client: Client,
        features: Features,
        model: AMMRank,
        plan: TrainingPlan,
        variant: str | None,
        folder: Path,
        progress: Progress,
    ) -> None:
        self.client = client
        self.features = features
        self.model = model
        self.plan = plan
        self.variant = variant
        self.folder = folder
        self.progress = progress

    def run(self, average: bool | None) -> AMMRank:
        """Train to the end and return the model."""
        rows, clickers = self._prepare()
        blocks = cut_blocks(rows, self.plan.block_rows)
        popularity = clickers.sum(axis=0)
        if not blocks:
            raise BadInput(f"features at {self.features.path} have no training user with a ranking; ingest more days")
        if sum(rows) < self.plan.shards:
            raise BadInput(f"shards must be at most the number of training users ({sum(rows)}), got {self.plan.shards}")
        n_rounds = self.plan.rounds_per_epoch
        epoch, round_ = self._resume()
        if epoch == 0 and round_ == 0 and not is_saved(self._checkpoint(0, 0)):
            self._begin(blocks, clickers if self.plan.shards > 1 else None)
        while epoch < self.model.epochs:
            dealt = deal_blocks(len(blocks), self.plan.shards, n_rounds, seed=self.model.seed, epoch=epoch)
            self._round(epoch, round_, [[blocks[i] for i in shard] for shard in dealt[round_]])
            epoch, round_ = (epoch, round_ + 1) if round_ + 1 < n_rounds else (epoch + 1, 0)
        last = self._candidate(self._checkpoint(epoch, 0), "sums")
        mean = self._candidate(self._checkpoint(epoch, 0), "mean")
        chosen = last
        if average or (average is None and self._validate(mean) < self._validate(last)):
            chosen = mean
        return self._fitted(chosen, popularity, self._checkpoint(epoch, 0))

    def _prepare(self) -> tuple[list[int], np.ndarray]:
        """Decode the rows of every partition once; return its training rows, and (n_blocks, L) clickers by block."""
        tasks = [
            (str(self.features.path), partition, self.variant, self.plan.block_rows, self._rows(partition))
            for partition in range(self.features.n_partitions)
        ]
        todo = [task for task in tasks if not is_saved(task[-1])]
        run_tasks(self.client, "train-prepare", prepare_rows, todo, progress=self.progress)
        rows, clickers = [], []
        for partition in range(self.features.n_partitions):
            folder = self._rows(partition)
            rows.append(load_facts(folder)[TRAIN])
            clickers.append(load_array(folder, "clickers"))
        return rows, np.concatenate(clickers)

    def _begin(self, blocks: list[RowBlock], clickers: np.ndarray | None) -> None:
        """Write the model before the first round: empty, or for several shards that of a pass over a sample."""
        n_features = self.features.n_columns(self.variant)
        empty = PlaneSums.empty(n_features, self.model.n_categories or 0)
        start = self.folder / "start"
        if not is_saved(start):
            save_arrays(start, _arrays_of(empty), {"step": empty.step, "next_id": empty.next_id})
        if clickers is None:
            shutil.copytree(start, self._checkpoint(0, 0), dirs_exist_ok=False)
            return
        n_rows = np.array([block.n_rows for block in blocks])
        sample = choose_sample(clickers, n_rows, wanted=CLICKERS_WANTED, min_rows=SAMPLE_ROWS, seed=self.model.seed)
        arguments = (start, self.folder, [blocks[i] for i in sample], self.model, -1, self.model.max_planes)
        run_tasks(
            self.client, "train-first", train_shard, [(*arguments, self._checkpoint(0, 0))], progress=self.progress
        )

    def _round(self, epoch: int, round_: int, dealt: list[list[RowBlock]]) -> None:
        """Let every shard train a copy of the model on its blocks, merge, and write the checkpoint."""
        started = time.perf_counter()
        name = f"train-e{epoch:03d}-r{round_:02d}"
        now = self._checkpoint(epoch, round_)
        outputs = [self.folder / f"{name}-s{shard:04d}" for shard in range(len(dealt))]
        # Planes are born freely only by a single shard: born apart they would not match, and their mean is nothing.
        limit = self.model.max_planes if self.plan.shards == 1 else 0
        tasks = [
            (now, self.folder, shard, self.model, epoch, limit, output)
            for shard, output in zip(dealt, outputs, strict=True)
            if not is_saved(output)
        ]
        run_tasks(self.client, name, train_shard, tasks, progress=self.progress)
        rows = [sum(block.n_rows for block in shard) for shard in dealt]
        merged = self._merge(name, outputs, [n / sum(rows) for n in rows])
        steps = [load_facts(output)["step"] - load_facts(now)["step"] for output in outputs]
        is_epoch_end = round_ + 1 == self.plan.rounds_per_epoch
        following = self._checkpoint(epoch + 1, 0) if is_epoch_end else self._checkpoint(epoch, round_ + 1)
        planes = _load_planes(outputs[0])
        planes.sums = load_array(merged, "sums").astype(np.float32)
        planes.step = advance_step(load_facts(now)["step"], steps)
        mean = _load_mean(now)
        if is_epoch_end and epoch >= self.model.epochs // 2:
            mean.add(planes.weights(self.model.regularization), planes.plane_id)
        save_arrays(
            following,
            {**_arrays_of(planes), **mean.to_arrays()},
            {"step": planes.step, "next_id": planes.next_id, "n_models": mean.n_models},
        )
        for old in [now, *outputs, merged]:
            shutil.rmtree(old, ignore_errors=True)
        facts: dict[str, Any] = {"epoch": epoch + 1, "round": round_ + 1, "planes": int(planes.n_planes.sum())}
        facts["users_per_second"] = round(sum(rows) / (time.perf_counter() - started))
        if is_epoch_end:
            facts["validation_error"] = self._validate(self._candidate(following, "sums"))
        self.client.log_event("ammrank-train", facts)
        logger.info("trained %s", ", ".join(f"{key} {value}" for key, value in facts.items()))

    def _merge(self, name: str, parts: list[Path], weights: list[float]) -> Path:
        """Merge models on the workers, a few at a time, in a tree whose shape depends on their number only."""
        level = 0
        while len(parts) > 1 or level == 0:
            groups = [slice(i, i + MERGE_WIDTH) for i in range(0, len(parts), MERGE_WIDTH)]
            outputs = [self.folder / f"{name}-m{level}-{i:04d}" for i in range(len(groups))]
            tasks = [
                (parts[group], weights[group], output)
                for group, output in zip(groups, outputs, strict=True)
                if not is_saved(output)
            ]
            run_tasks(self.client, f"{name}-merge", merge_shards, tasks, progress=silent)
            if level:
                for part in parts:
                    shutil.rmtree(part, ignore_errors=True)
            parts, weights, level = outputs, [1.0] * len(outputs), level + 1
        return parts[0]

    def _validate(self, weights: np.ndarray) -> float:
        """Return the disagreement error of a model on the validation users, NaN without any."""
        place = self.folder / "candidate"
        shutil.rmtree(place, ignore_errors=True)
        category = _load_planes(self._latest()).plane_category[: weights.shape[1]]
        save_arrays(place, {"weights": weights, "plane_category": category}, {})
        tasks = [(place, self._rows(partition), self.model) for partition in range(self.features.n_partitions)]
        errors = run_tasks(self.client, "train-validate", validate_rows, tasks, progress=silent)
        shutil.rmtree(place, ignore_errors=True)
        n_rows = sum(count for _, count in errors)
        return sum(total for total, _ in errors) / n_rows if n_rows else math.nan

    def _candidate(self, checkpoint: Path, name: str) -> np.ndarray:
        planes = _load_planes(checkpoint)
        if name == "mean":
            return _load_mean(checkpoint).weights()
        return planes.weights(self.model.regularization)

    def _fitted(self, weights: np.ndarray, popularity: np.ndarray, checkpoint: Path) -> AMMRank:
        planes = _load_planes(checkpoint)
        model = self.model
        model.set_planes(weights, planes.plane_category[: weights.shape[1]], popularity, n_steps=planes.step - 1)
        model.categories_ = list(self.features.categories)
        model.columns_digest_ = digest_columns(self.features, self.variant)
        model.variant_ = self.variant
        return model

    def _rows(self, partition: int) -> Path:
        return self.folder / f"rows-{partition:05d}"

    def _checkpoint(self, epoch: int, round_: int) -> Path:
        return self.folder / f"checkpoint-{epoch:04d}-{round_:04d}"

    def _latest(self) -> Path:
        return max(path for path in self.folder.glob("checkpoint-*") if is_saved(path))

    def _resume(self) -> tuple[int, int]:
        """Return the epoch and round to go on with: that of the last checkpoint."""
        found = [path for path in self.folder.glob("checkpoint-*") if is_saved(path)]
        if not found:
            return 0, 0
        _, epoch, round_ = max(found).name.split("-")
        return int(epoch), int(round_)


def prepare_rows(features_path: str, partition: int, variant: str | None, block_rows: int, folder: Path) -> None:
    """Decode the labelled rows of one partition, training and validation apart, and count clickers by block."""
    features = open_features(features_path)
    part = features.partition(partition, variant=variant)
    if part.rankings is None:
        raise BadInput(f"partition {partition} of {features_path} must have rankings, found none")
    n_categories = len(features.categories)
    check_rankings(part.rankings, n_rows=part.X.shape[0], n_categories=n_categories)
    has_ranking = (part.rankings >= 0).any(axis=1)
    split = split_of(part.user_ids)
    arrays: dict[str, np.ndarray] = {}
    facts = {}
    for name in (TRAIN, VALIDATION):
        chosen = has_ranking & (split == SPLITS.index(name))
        X, rankings = part.X[chosen], part.rankings[chosen]
        arrays |= {
            f"{name}-data": X.data,
            f"{name}-indices": X.indices,
            f"{name}-indptr": X.indptr,
            f"{name}-rankings": rankings,
        }
        facts[name] = int(chosen.sum())
    facts["columns"] = part.X.shape[1]
    rankings = arrays[f"{TRAIN}-rankings"]
    starts = range(0, len(rankings), block_rows)
    counts = [_count_clickers(rankings[start : start + block_rows], n_categories) for start in starts]
    arrays["clickers"] = np.array(counts, np.int64).reshape(len(counts), n_categories)
    save_arrays(folder, arrays, facts)


def _count_clickers(rankings: np.ndarray, n_categories: int) -> np.ndarray:
    return np.bincount(rankings[rankings >= 0], minlength=n_categories)


def train_shard(
    checkpoint: Path, folder: Path, blocks: list[RowBlock], model: AMMRank, epoch: int, max_planes: int, output: Path
) -> None:
    """Train a copy of the model on blocks, one after the other, and write what it became.

    The rows of a block are visited in an order drawn from (seed, epoch, block), as `AMMRank.fit_blocks` does; the
    first pass, epoch -1, has an order of its own.
    """
    planes = _load_planes(checkpoint)
    options = {**model.block_options(), "max_planes": max_planes}
    if not max_planes:
        options |= {"prune_every": None, "clone_probability": 0.0}
    for block in blocks:
        X, rankings = read_rows(folder / f"rows-{block.partition:05d}", TRAIN, block.start, block.stop)
        key = [model.seed, epoch, block.number] if epoch >= 0 else [model.seed, 2**31, block.number, 1]
        train_block(planes, X, rankings, np.random.default_rng(key).permutation(len(rankings)), **options)
    save_arrays(output, _arrays_of(planes), {"step": planes.step, "next_id": planes.next_id})


def read_rows(folder: Path, name: str, start: int = 0, stop: int | None = None) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return rows of a prepared partition; only the pages that they lie on are read."""
    indptr = load_array(folder, f"{name}-indptr", mapped=True)
    stop = len(indptr) - 1 if stop is None else stop
    begin, end = int(indptr[start]), int(indptr[stop])
    data = np.array(load_array(folder, f"{name}-data", mapped=True)[begin:end])
    indices = np.array(load_array(folder, f"{name}-indices", mapped=True)[begin:end])
    shape = (stop - start, load_facts(folder)["columns"])
    X = sp.csr_matrix((data, indices, np.array(indptr[start : stop + 1]) - begin), shape=shape)
    return X, np.array(load_array(folder, f"{name}-rankings", mapped=True)[start:stop])


def merge_shards(parts: list[Path], weights: list[float], output: Path) -> None:
    """Write the weighted sum of some models."""
    sums = merge_sums([load_array(part, "sums", mapped=True) for part in parts], weights)
    save_arrays(output, {"sums": sums}, {})


def validate_rows(candidate: Path, rows: Path, model: AMMRank) -> tuple[float, int]:
    """Return the sum of the disagreement errors of the validation users of a partition, and their number."""
    X, rankings = read_rows(rows, VALIDATION)
    if not len(rankings):
        return 0.0, 0
    scorer = AMMRank(**model.get_params())
    popularity = np.zeros(model.n_categories or 0, np.int64)
    weights, category = load_array(candidate, "weights"), load_array(candidate, "plane_category")
    scorer.set_planes(weights, category, popularity, n_steps=0)
    return disagreement_error(scorer.decision_function(X), rankings) * len(rankings), len(rankings)


def digest_columns(features: Features, variant: str | None) -> str:
    """Return a hash of the names of a variant's columns, in their order."""
    return digest_of(features.columns_of(variant))


def _arrays_of(planes: PlaneSums) -> dict[str, np.ndarray]:
    return {
        "sums": planes.sums,
        "plane_category": planes.plane_category,
        "n_planes": planes.n_planes,
        "plane_id": planes.plane_id,
    }


def _load_planes(folder: Path) -> PlaneSums:
    facts: Mapping[str, Any] = load_facts(folder)
    arrays = {name: load_array(folder, name) for name in ("sums", "plane_category", "n_planes", "plane_id")}
    return PlaneSums(**arrays, step=facts["step"], next_id=facts["next_id"])


def _load_mean(folder: Path) -> WeightMean:
    facts = load_facts(folder)
    if not facts.get("n_models"):
        return WeightMean()
    return WeightMean.from_arrays(load_array(folder, "mean_total"), load_array(folder, "mean_id"), facts["n_models"])

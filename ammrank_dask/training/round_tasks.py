"""The tasks of a training, each from files to files: train a shard, merge, close a round, validate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.model.plane_sums import PlaneSums, WeightMean, train_block
from ammrank_dask.monitor.meters import measure
from ammrank_dask.storage.store.scratch_arrays import load_array, load_facts, save_arrays
from ammrank_dask.training.prepared_rows import TRAIN, VALIDATION, PreparedRows
from ammrank_dask.training.shards import RowBlock, advance_step, merge_sums

LAST, AVERAGE = "last", "average"
"""The two models of a checkpoint: as it is after the round, and the mean over the last epochs."""


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
    rows: dict[int, PreparedRows] = {}
    loss = 0.0
    for block in blocks:
        if block.partition not in rows:
            rows[block.partition] = PreparedRows(folder / f"rows-{block.partition:05d}", TRAIN)
        with measure("read"):
            X, rankings = rows[block.partition].read(block.start, block.stop)
        key = [model.seed, epoch, block.number] if epoch >= 0 else [model.seed, 2**31, block.number, 1]
        order = np.random.default_rng(key).permutation(len(rankings))
        with measure("kernel"):
            loss += train_block(planes, X, rankings, order, **options)
    with measure("write"):
        save_planes(output, planes, WeightMean(), loss=loss)


def merge_shards(parts: list[Path], weights: list[float], output: Path) -> None:
    """Write the weighted sum of some models."""
    with measure("merge"):
        sums = merge_sums([load_array(part, "sums", mapped=True) for part in parts], weights)
    with measure("write"):
        save_arrays(output, {"sums": sums}, {})


def close_round(
    now: Path, shards: list[Path], merged: list[tuple[Path, float]], rows: int, sums_up: bool, following: Path,
    average_with: float | None,
) -> dict[str, Any]:  # fmt: skip
    """Merge what is left to merge, write the checkpoint after a round, and return its facts.

    Parameters
    ----------
    now, following
        The checkpoints before and after the round.
    shards
        What the shards learned, in their order.
    merged
        The models to merge, with their weights.
    rows, sums_up
        Rows of the round, and whether earlier rounds of the epoch count with it.
    average_with
        λ when the model belongs to the average, else None.
    """
    before, learned = load_facts(now), [load_facts(shard) for shard in shards]
    planes = _load_planes(shards[0])
    parts, weights = zip(*merged, strict=True)
    with measure("merge"):
        planes.sums = merge_sums([load_array(part, "sums", mapped=True) for part in parts], weights).astype(np.float32)
    planes.step = advance_step(before["step"], [facts["step"] - before["step"] for facts in learned])
    mean = _load_mean(now)
    if average_with is not None:
        mean.add(planes.weights(average_with), planes.plane_id)
    loss = sum(facts["loss"] for facts in learned)
    earlier = (before["loss"], before["rows"]) if sums_up else (0.0, 0)
    save_planes(following, planes, mean, loss=loss + earlier[0], rows=rows + earlier[1])
    return {"loss": loss, "n_planes": planes.n_planes.tolist()}


def validate_rows(checkpoint: Path, kind: str, rows: Path, model: AMMRank) -> tuple[float, int]:
    """Return the sum of the disagreement errors of the validation users of a partition, and their number."""
    X, rankings = PreparedRows(rows, VALIDATION).read()
    if not len(rankings):
        return 0.0, 0
    scorer = AMMRank(**model.get_params())
    planes, weights = load_candidate(checkpoint, kind, model.regularization)
    popularity = np.zeros(len(planes.n_planes), np.int64)
    scorer.set_planes(weights, planes.plane_category[: weights.shape[1]], popularity, n_steps=0)
    return disagreement_error(scorer.decision_function(X), rankings) * len(rankings), len(rankings)


def load_candidate(checkpoint: Path, kind: str, regularization: float) -> tuple[PlaneSums, np.ndarray]:
    """Return the planes of a checkpoint and their weights: those of the model itself, or of the average."""
    planes = _load_planes(checkpoint)
    weights = _load_mean(checkpoint).weights() if kind == AVERAGE else planes.weights(regularization)
    return planes, weights


def save_planes(folder: Path, planes: PlaneSums, mean: WeightMean, *, loss: float = 0.0, rows: int = 0) -> None:
    """Write a checkpoint: planes, the mean of models so far, and what the rows before it lost."""
    n_total = int(planes.n_planes.sum())
    # Without the room for more planes, which differs from shard to shard: sums that are merged have one shape.
    arrays = {
        "sums": planes.sums[:, :n_total],
        "plane_category": planes.plane_category[:n_total],
        "n_planes": planes.n_planes,
        "plane_id": planes.plane_id,
        **mean.to_arrays(),
    }
    facts = {"step": planes.step, "next_id": planes.next_id, "n_models": mean.n_models, "loss": loss, "rows": rows}
    save_arrays(folder, arrays, facts)


def _load_planes(folder: Path) -> PlaneSums:
    facts: Mapping[str, Any] = load_facts(folder)
    arrays = {name: load_array(folder, name) for name in ("sums", "plane_category", "n_planes", "plane_id")}
    return PlaneSums(**arrays, step=facts["step"], next_id=facts["next_id"])


def _load_mean(folder: Path) -> WeightMean:
    n_models = load_facts(folder)["n_models"]
    if not n_models:
        return WeightMean()
    return WeightMean.from_arrays(load_array(folder, "mean_total"), load_array(folder, "mean_id"), n_models)

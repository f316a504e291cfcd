"""The tasks of a training, each from files to files: train a shard, merge, close a round, validate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ammrank_dask.model.metrics import disagreement_error
from ammrank_dask.model.plane_panels import top_categories
from ammrank_dask.monitor.performance import measure
from ammrank_dask.storage.store.scratch_arrays import RowReader, load_facts, save_arrays
from ammrank_dask.training.learners import Learner
from ammrank_dask.training.prepared_rows import VALIDATION, PreparedRows
from ammrank_dask.training.shards import RowBlock, advance_step

VALUES_AT_ONCE = 1 << 17
"""Values of each model that are merged at a time."""
FIRST_PASS = -1
"""The epoch of the pass over a sample that gives all shards a common set of planes."""


def train_shard(
    checkpoint: Path, blocks: list[RowBlock], learner: Learner, epoch: int, births: bool, output: Path
) -> None:
    """Train a copy of the model on blocks, one after the other, and write what it became.

    The rows of a block are visited in an order drawn from (seed, epoch, block), as `fit_blocks` does; the first pass,
    over a sample, has an order of its own.
    """
    state: Any = learner.load(checkpoint)
    seed = learner.model.seed
    rows: dict[int, Any] = {}
    loss = 0.0
    for block in blocks:
        if block.partition not in rows:
            rows[block.partition] = learner.open_rows(block.partition)
        key = [seed, 2**31, block.number, 1] if epoch == FIRST_PASS else [seed, epoch, block.number]
        order = np.random.default_rng(key).permutation(block.n_rows)
        with measure("read"):
            prepared, rankings = rows[block.partition].read(block.start, block.stop)
        with measure("kernel"):
            options = learner.block_options(block.partition, births=births)
            loss += learner.train_block(state, prepared, rankings, order, **options)
    if epoch == FIRST_PASS:
        state = state.after_first_pass()
    with measure("write"):
        mean: Any = learner.empty_mean()
        learner.save(output, state, mean, loss=loss)


def merge_shards(parts: list[Path], weights: list[float], names: Sequence[str], output: Path) -> None:
    """Write the weighted sum of some models."""
    with measure("merge"):
        arrays = {name: merge_arrays(parts, name, weights, np.float64) for name in names}
    with measure("write"):
        save_arrays(output, arrays, {})


def merge_arrays(parts: Sequence[Path], name: str, weights: Sequence[float], dtype: npt.DTypeLike) -> np.ndarray:
    """Return Σ weight · array of some models, added in the order given; a single one of weight 1 keeps its bits.

    The sums are in float64. Of every model a few rows at a time are in memory.
    """
    readers = [RowReader(part) for part in parts]
    shape = readers[0].shape(name)
    total = np.empty(shape, dtype)
    step = max(1, VALUES_AT_ONCE // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        stop = min(shape[0], start + step)
        rows = np.multiply(readers[0].read(name, start, stop), weights[0], dtype=np.float64)
        for reader, weight in zip(readers[1:], weights[1:], strict=True):
            rows += np.multiply(reader.read(name, start, stop), weight, dtype=np.float64)
        total[start:stop] = rows
    return total


def close_round(
    now: Path, shards: list[Path], merged: list[tuple[Path, float]], rows: int, continues_epoch: bool,
    next_checkpoint: Path, averages: bool, learner: Learner,
) -> dict[str, Any]:  # fmt: skip
    """Merge what is left to merge, write the checkpoint after a round, and return its facts.

    Parameters
    ----------
    now, next_checkpoint
        The checkpoints before and after the round.
    shards
        What the shards learned, in their order.
    merged
        The models to merge, with their weights.
    rows, continues_epoch
        Rows of the round, and whether earlier rounds of the epoch count with it.
    averages
        Whether the model belongs to the average.
    """
    before, learned = load_facts(now), [load_facts(shard) for shard in shards]
    state: Any = learner.load(shards[0])
    planes = state.planes
    parts, weights = zip(*merged, strict=True)
    with measure("merge"):
        for name in learner.merged:
            owner = planes if hasattr(planes, name) else state
            setattr(owner, name, merge_arrays(parts, name, weights, getattr(owner, name).dtype))
    planes.step = advance_step(before["step"], [facts["step"] - before["step"] for facts in learned])
    mean: Any = learner.load_mean(now)
    if averages:
        learner.add_to_mean(mean, state)
    loss = sum(facts["loss"] for facts in learned)
    earlier = (before["loss"], before["rows"]) if continues_epoch else (0.0, 0)
    learner.save(next_checkpoint, state, mean, loss=loss + earlier[0], rows=rows + earlier[1])
    return {"loss": loss, "n_planes": planes.n_planes.tolist()}


def validate_rows(checkpoint: Path, kind: str, rows: Path, partition: int, learner: Learner) -> tuple[float, int]:
    """Return the sum of the disagreement errors of the validation users of a partition, and their number."""
    X, rankings = PreparedRows(rows, VALIDATION).read()
    n_categories = learner.model.n_categories
    assert n_categories is not None  # `train` sets it
    # With one category there is no pair that could be in the wrong order.
    if not len(rankings) or n_categories < 2:
        return 0.0, 0
    # The newest window is the second of the moments: its rows knew the popularity before it, not tonight's.
    scorer: Any = learner.fit(checkpoint, kind, np.zeros(n_categories, np.int64), moment=1)
    members = learner.members(partition)
    if members is None:
        scores = scorer.decision_function(X)
    else:
        _, _, by_category = top_categories(X, scorer.panels(), 1, keep_all=True, members=members)
        scores = np.ascontiguousarray(by_category.T)
    return disagreement_error(scores, rankings) * len(rankings), len(rankings)


def validate_popularity(rows: Path, clicks: np.ndarray) -> tuple[float, int]:
    """Return the same sum and number for a ranking of all users by clicks, (L,)."""
    _, rankings = PreparedRows(rows, VALIDATION).read()
    if not len(rankings) or len(clicks) < 2:
        return 0.0, 0
    scores = np.broadcast_to(clicks.astype(np.float64), (len(rankings), len(clicks)))
    return disagreement_error(np.ascontiguousarray(scores), rankings) * len(rankings), len(rankings)

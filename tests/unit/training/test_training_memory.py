"""What the tasks of a training have in memory, held against what the check before a night counts."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from ammrank_dask.model.amm_rank import AMMRank
from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.plane_sums import PlaneSums
from ammrank_dask.model.plus_basis import count_rankings
from ammrank_dask.model.plus_sums import PlusState
from ammrank_dask.runtime.memory import ModelSize
from ammrank_dask.storage.store.scratch_arrays import ArrayWriter
from ammrank_dask.training.basis import read_basis, write_begun, write_centers, write_knots, write_sample
from ammrank_dask.training.learners import PlaneLearner, PlusLearner
from ammrank_dask.training.plus_start import add_memberships
from ammrank_dask.training.prepared_rows import TRAIN, VALIDATION
from ammrank_dask.training.round_tasks import close_round, merge_shards, train_shard, validate_rows
from ammrank_dask.training.shards import RowBlock

N_ROWS, N_CATEGORIES, N_COLUMNS, N_CENTERS, N_SHARDS = 700, 150, 1_000, 600, 8
PLANES = 5 * N_CATEGORIES


@pytest.fixture(scope="module", params=["amm-rank", "amm-rank-plus"])
def training(request, tmp_path_factory):
    """Return how to make a learner, its folder, and the size of its model, after a round of `N_SHARDS` shards."""
    folder = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(0)
    X = sp.random(N_ROWS, N_COLUMNS, 0.05, format="csr", dtype=np.float32, random_state=rng)
    rankings = np.argsort(rng.random((N_ROWS, N_CATEGORIES)), axis=1)[:, :4].astype(np.int32)
    with ArrayWriter(folder / "rows") as writer:
        for name in (TRAIN, VALIDATION):
            for part, array in (("data", X.data), ("indices", X.indices), ("indptr", X.indptr), ("rankings", rankings)):
                writer.append(f"{name}-{part}", array)
        writer.finish({TRAIN: N_ROWS, VALIDATION: N_ROWS, "columns": N_COLUMNS, "complete": 0})
    plus = request.param == AMMRankPlus.method
    centers, values = (N_CENTERS, X.nnz) if plus else (0, 0)
    size = ModelSize(N_CATEGORIES, PLANES, N_COLUMNS + centers + 1, centers, N_COLUMNS, values, 3)

    def learner():
        if plus:
            return PlusLearner(AMMRankPlus(n_categories=N_CATEGORIES, n_centers=200), folder, N_SHARDS)
        return PlaneLearner(AMMRank(n_categories=N_CATEGORIES), folder)

    if plus:
        write(learner(), folder, rankings)
    save_states(learner(), folder, size, rng)
    return learner, folder, size, rankings


def write(learner, folder, rankings):
    write_sample([folder / "rows"], [np.arange(N_ROWS)], folder / "sample")
    parts = [write_part(learner, folder, rankings, number) for number in (0, 1, 2, None)]
    learner.save_basis(read_basis(learner.model, count_rankings(rankings, N_CATEGORIES), parts))


def write_part(learner, folder, rankings, number):
    part, begun = folder / f"part-{number}", folder / f"begun-{number}"
    given = learner.model, [folder / "sample"], count_rankings(rankings, N_CATEGORIES)
    if number is None:
        write_knots(*given, part)
    else:
        write_begun(*given, None, number, begun)
        write_centers(*given, None, number, begun, part)
    return part


def save_states(learner, folder, size, rng):
    sums = rng.random((size.weights, PLANES), np.float32)
    category, number = np.repeat(np.arange(N_CATEGORIES), 5).astype(np.int32), np.full(N_CATEGORIES, 5)
    state = PlaneSums(sums, category, number, 10, np.arange(PLANES), PLANES)
    if isinstance(learner, PlusLearner):
        own = np.zeros(learner.basis.own.weights.shape)
        state = PlusState(state, rng.random(size.weights), own, own.copy())
    mean = learner.empty_mean()
    learner.add_to_mean(mean, state)
    learner.save(folder / "now", state, mean)
    for shard in range(N_SHARDS):
        learner.save(folder / f"shard-{shard}", state, learner.empty_mean())


def peak_of(task):
    """Return the most that numpy has in memory while a task runs, after it ran once and compiled its kernels."""
    task()
    tracemalloc.start()
    try:
        task()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_training_bytes__are_what_the_tasks_of_a_round_take(training):
    learner, folder, size, _ = training
    shards = [folder / f"shard-{number}" for number in range(N_SHARDS)]
    weights = [1 / N_SHARDS] * N_SHARDS
    merged = list(zip(shards, weights, strict=True))
    if isinstance(learner(), PlusLearner):
        add_memberships(learner(), folder / "rows", folder / "plus-00000", folder / "members-00000")
    else:
        (folder / "rows-00000").symlink_to(folder / "rows")
    block = RowBlock(0, 0, 0, 64)
    tasks = {
        "shard": lambda: train_shard(folder / "now", [block], learner(), 0, False, folder / "trained"),
        "merge": lambda: merge_shards(shards, weights, learner().merged, folder / "merged"),
        "close": lambda: close_round(folder / "now", shards, merged, 10, False, folder / "next", True, learner()),
        "average": lambda: validate_rows(folder / "now", "average", folder / "rows", 0, learner()),
        "last": lambda: validate_rows(folder / "now", "last", folder / "rows", 0, learner()),
    }
    peaks = {name: peak_of(task) / size.training_bytes for name, task in tasks.items()}
    assert 0.9 < max(peaks.values()) < 1.1, peaks


@pytest.mark.parametrize("training", [AMMRankPlus.method], indirect=True)
def test_training_bytes__are_what_the_tasks_before_the_first_step_take(training):
    learner, folder, size, rankings = training
    alone = ModelSize(0, 0, 0, size.centers, size.columns, size.sample_values, size.clusterings)
    tasks = {
        "sample": lambda: write_sample([folder / "rows"], [np.arange(N_ROWS)], folder / "sample"),
        "centres": lambda: write_part(learner(), folder, rankings, 2),
        "knots": lambda: write_part(learner(), folder, rankings, None),
        "memberships": lambda: add_memberships(
            learner(), folder / "rows", folder / "plus-00000", folder / "members-00000"
        ),
    }
    peaks = {name: peak_of(task) / alone.training_bytes for name, task in tasks.items()}
    assert 0.8 < max(peaks.values()) < 1.1, (peaks, alone.training_bytes)

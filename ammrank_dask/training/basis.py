"""Make the basis of AMM-rank-plus on a cluster: draw a sample of the training rows, then two tasks a clustering."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from distributed import Client

from ammrank_dask.model.amm_rank_plus import AMMRankPlus
from ammrank_dask.model.lagged import LaggedPopularity
from ammrank_dask.model.memberships import (
    BegunClustering,
    ClusteringSettings,
    Memberships,
    begin_clustering,
    count_clusterings,
    fit_memberships,
    join_memberships,
    membership_arrays,
    memberships_from,
)
from ammrank_dask.model.own_term import OwnTerm
from ammrank_dask.model.plus_basis import PlusBasis, RankingCounts, draw_rows, join_basis, prior_of, sample_size
from ammrank_dask.model.rows import RowStack, read_csr
from ammrank_dask.monitor.performance import measure
from ammrank_dask.runtime.tasks import Call, Progress, run_calls, run_tasks
from ammrank_dask.storage.objects.folders import remove
from ammrank_dask.storage.store.scratch_arrays import RowReader, is_saved, load_arrays, save_arrays
from ammrank_dask.training.learners import PlusLearner
from ammrank_dask.training.prepared_rows import TRAIN, PreparedRows, load_counts
from ammrank_dask.training.shards import RowBlock
from ammrank_dask.training.warm_start import match_names

SAMPLE_PARTS = 8
"""Tasks that draw the sample, at most: each reads some partitions."""


def prepare_basis(
    client: Client, learner: PlusLearner, rows: Sequence[Path], blocks: Sequence[RowBlock], columns: Sequence[str],
    start: AMMRankPlus | None, lagged: LaggedPopularity | None, progress: Progress,
) -> None:  # fmt: skip
    """Write the basis of a training unless it is there.

    Parameters
    ----------
    rows
        The folders of the prepared partitions.
    blocks
        All blocks of training rows.
    columns
        The names of the columns.
    start
        A model whose centres the clusterings start from; None for none.
    lagged
        What the moments of the rows knew of popularity; None where that is not known.
    """
    if is_saved(learner.basis_folder):
        return
    counts = functools.reduce(RankingCounts.__add__, map(load_counts, rows))
    work = learner.basis_folder.with_name("basis-parts")
    samples, todo = [], []
    groups = np.array_split(np.arange(len(rows)), min(len(rows), SAMPLE_PARTS))
    chosen = draw_sample(learner.model, rows, blocks, counts)
    for number, group in enumerate(groups):
        samples.append(work / f"sample-{number}")
        if not is_saved(samples[-1]):
            todo.append(([rows[i] for i in group], [chosen[i] for i in group], samples[-1]))
    run_tasks(client, "train-sample", write_sample, todo, progress=progress)
    earlier = None
    if start is not None:
        earlier = work / "start"
        save_arrays(earlier, *membership_arrays(match_centers(start, columns)))
    settings = learner.model.clustering_settings(counts)
    numbers = range(count_clusterings(settings.n_clusterings, settings.geometry))
    begun = [work / f"begun-{number}" for number in numbers]
    centres = [work / f"centres-{number}" for number in numbers]
    knots = work / "knots"
    given = learner.model, samples, counts
    # Every clustering is begun before one is ended: halves of three share out evenly among two workers. Knots are the
    # least work. One task a thread is in flight: what waits at a worker does not go to another that has nothing to do.
    calls: list[Call] = [
        *((write_begun, (*given, earlier, *each)) for each in enumerate(begun)),
        *(
            (write_centers, (*given, earlier, number, before, output))
            for number, (before, output) in enumerate(zip(begun, centres, strict=True))
        ),
        (write_knots, (*given, knots)),
    ]
    todo_parts = [(write, args) for write, args in calls if not is_saved(args[-1])]
    task_of = {args[-1]: number for number, (_, args) in enumerate(todo_parts)}
    before_of = dict(zip(centres, begun, strict=True))
    after = [task_of.get(before_of.get(args[-1], work)) for _, args in todo_parts]
    tasks = [[call] for call in todo_parts]
    run_calls(client, "train-centres", tasks, progress=progress, in_flight_per_thread=1, after=after)
    learner.save_basis(replace(read_basis(learner.model, counts, [*centres, knots]), lagged=lagged))
    remove(work)


def draw_sample(
    model: AMMRankPlus, rows: Sequence[Path], blocks: Sequence[RowBlock], counts: RankingCounts
) -> list[np.ndarray]:
    """Return by partition the numbers of its training rows that are in the sample."""
    n_values = sum(PreparedRows(folder, TRAIN).n_values for folder in rows)
    n_wanted = sample_size(counts.n_rows, model.n_centers, n_values)
    labelled = [np.broadcast_to(True, block.n_rows) for block in blocks]
    chosen = [[np.empty(0, np.int64)] for _ in rows]
    for block, drawn in zip(blocks, draw_rows(labelled, n_wanted, model.seed), strict=True):
        chosen[block.partition].append(block.start + drawn)
    return [np.concatenate(numbers) for numbers in chosen]


def write_sample(rows: Sequence[Path], chosen: Sequence[np.ndarray], output: Path) -> None:
    """Write the rows of some prepared partitions that are in the sample."""
    stack = RowStack(0)
    with measure("read"):
        for folder, numbers in zip(rows, chosen, strict=True):
            stack.add(PreparedRows(folder, TRAIN).read_some(numbers))
    X = stack.rows()
    with measure("write"):
        save_arrays(output, {"data": X.data, "indices": X.indices, "indptr": X.indptr}, {"columns": X.shape[1]})


def write_begun(
    model: AMMRankPlus, samples: Sequence[Path], counts: RankingCounts, start: Path | None, number: int, output: Path
) -> None:
    """Write the first half of one of the clusterings of the sample; no centres where rows are worth fewer.

    Parameters
    ----------
    samples
        The parts of the sample.
    start
        The centres to start from; None for none.
    """
    with measure("read"):
        sample = _read_sample(samples)
        settings = _clustering_settings(model, counts, start)
    with measure("kernel"):
        begun = begin_clustering(sample, settings, number)
    centers, n_drawn = (np.zeros((0, sample.shape[1]), np.float32), 0) if begun is None else begun
    save_arrays(output, {"centers": centers}, {"n_drawn": n_drawn})


def write_centers(
    model: AMMRankPlus, samples: Sequence[Path], counts: RankingCounts, start: Path | None, number: int, begun: Path,
    output: Path,
) -> None:  # fmt: skip
    """Write one of the clusterings of the sample, whose first half `write_begun` wrote."""
    with measure("read"):
        sample = _read_sample(samples)
        settings = _clustering_settings(model, counts, start)
        arrays, facts = load_arrays(begun)
    before = BegunClustering(arrays["centers"], facts["n_drawn"]) if len(arrays["centers"]) else None
    with measure("kernel"):
        found = fit_memberships(sample, settings, only=number, begun=before)
    save_arrays(output, *membership_arrays(found))


def write_knots(model: AMMRankPlus, samples: Sequence[Path], counts: RankingCounts, output: Path) -> None:
    """Write the own term with the knots of the sample."""
    with measure("read"):
        sample = _read_sample(samples)
    own = model.own_term(sample.shape[1], len(counts.clicks))
    with measure("kernel"):
        save_arrays(output, vars(own.with_knots(sample, prior_of(counts))), {})


def _clustering_settings(model: AMMRankPlus, counts: RankingCounts, start: Path | None) -> ClusteringSettings:
    return model.clustering_settings(counts, None if start is None else memberships_from(*load_arrays(start)))


def read_basis(model: AMMRankPlus, counts: RankingCounts, parts: Sequence[Path]) -> PlusBasis:
    """Return the basis from its parts that were written: the clusterings, and the knots last."""
    *clusterings, own = (load_arrays(part) for part in parts)
    return join_basis(
        counts, join_memberships([memberships_from(*found) for found in clusterings]), OwnTerm(**own[0]),
        max_planes=model.max_planes, clickers_per_plane=model.clickers_per_plane,
    )  # fmt: skip


def match_centers(model: AMMRankPlus, columns: Sequence[str]) -> Memberships:
    """Return the clusterings of a model over other columns; a column it did not know is 0 in all centres."""
    members = model.basis_.memberships
    new, old = match_names("columns", model.columns_, model.n_features_in_, columns)
    centers = np.zeros((members.n_centers, len(columns)), np.float32)
    centers[:, new] = members.centers[:, old]
    return Memberships(centers, members.start, members.n_nearest, members.temperature, members.geometry)


def _read_sample(parts: Sequence[Path]) -> sp.csr_matrix:
    readers = [RowReader(part) for part in parts]
    n_rows = [reader.shape("indptr")[0] - 1 for reader in readers]
    stack = RowStack(sum(reader.shape("data")[0] for reader in readers))
    for reader, stop in zip(readers, n_rows, strict=True):
        stack.add(read_csr(reader, 0, stop))
    return stack.rows()

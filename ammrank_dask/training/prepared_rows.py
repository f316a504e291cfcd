"""The rows that training reads: decoded once from the store, then read from a scratch folder in every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from ammrank_dask.features.csr import cut_rows
from ammrank_dask.features.partition import OpenFeaturePartition
from ammrank_dask.features.store import open_features
from ammrank_dask.kernels.features import normalize_rows
from ammrank_dask.model.plus_basis import PlusRows, RankingCounts, count_rankings
from ammrank_dask.model.rows import check_rankings, read_csr
from ammrank_dask.monitor.performance import measure_each
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.storage.store.scratch_arrays import ArrayWriter, RowReader, load_array, load_facts
from ammrank_dask.training.matched_rows import RowMatch
from ammrank_dask.user_hash import SPLITS, split_of

TRAIN, VALIDATION = "train", "validation"


def prepare_rows(
    features_path: str,
    partition: int,
    variant: str | None,
    block_rows: int,
    folder: Path,
    normalize: bool | None = None,
    is_newest: bool = True,
    match: RowMatch | None = None,
    left_out: UserIds | None = None,
) -> None:
    """Decode the labelled rows of one partition, training and validation apart, and count clickers by block.

    `normalize` is that of `Features.partition`. Users are held out of the newest window only: what they clicked in
    earlier ones is no part of what they are asked for. With a `match`, rows and rankings are brought to other columns
    and categories before rows are normalised: they become those of features that were built with these. The users of
    `left_out` have no rows.
    """
    features = open_features(features_path)
    normalize = features.normalize if normalize is None else normalize
    part = features.open_partition(partition, variant=variant, normalize=normalize and match is None)
    with ArrayWriter(folder) as writer:
        if part.rankings is None:
            raise BadInput(f"partition {partition} of {features_path} must have rankings, found none")
        n_categories = len(features.categories)
        check_rankings(part.rankings, n_rows=part.n_rows, n_categories=n_categories)
        all_rankings, n_columns = part.rankings, part.n_columns
        if match is not None:
            all_rankings, n_columns, n_categories = match.rankings(part.rankings), match.n_columns, match.n_categories
        has_ranking, split = (all_rankings >= 0).any(axis=1), split_of(part.user_ids)
        chosen = {name: has_ranking & (split == SPLITS.index(name)) for name in (TRAIN, VALIDATION)}
        if not is_newest:
            chosen = {TRAIN: has_ranking, VALIDATION: np.zeros_like(has_ranking)}
        if left_out is not None and len(left_out):
            is_left = left_out.positions_of(part.user_ids) < 0
            chosen = {name: own & is_left for name, own in chosen.items()}
        _append_rows(writer, part, chosen, match, normalize=normalize)
        for name, own in chosen.items():
            writer.append(f"{name}-rankings", all_rankings[own])
        rankings = all_rankings[chosen[TRAIN]]
        starts = range(0, len(rankings), block_rows)
        counts = [_count_clickers(rankings[start : start + block_rows], n_categories) for start in starts]
        writer.append("clickers", np.array(counts, np.int64).reshape(len(counts), n_categories))
        whole = count_rankings(rankings, n_categories)
        writer.append("worth", whole.worth)
        facts = {name: int(own.sum()) for name, own in chosen.items()}
        writer.finish({**facts, "columns": n_columns, "complete": whole.n_complete})


def _append_rows(
    writer: ArrayWriter,
    part: OpenFeaturePartition,
    chosen: Mapping[str, np.ndarray],
    match: RowMatch | None,
    *,
    normalize: bool,
) -> None:
    """Decode the rows of a partition, some at a time, and append those that are chosen by name."""
    where = np.int32 if part.indptr[-1] < 2**31 else np.int64
    n_values = dict.fromkeys(chosen, 0)
    for name in chosen:
        writer.append(f"{name}-data", np.empty(0, np.float32))
        writer.append(f"{name}-indices", np.empty(0, np.int32))
        writer.append(f"{name}-indptr", np.zeros(1, where))
    for rows, X, _ in measure_each("decode", part.pieces()):
        matrix = X.to_matrix()
        if match is not None:
            matrix = match.rows(matrix)
            if normalize:
                normalize_rows(matrix.indptr, matrix.data)
        for name, are_chosen in chosen.items():
            own = matrix[are_chosen[rows]]
            writer.append(f"{name}-data", own.data)
            writer.append(f"{name}-indices", own.indices.astype(np.int32, copy=False))
            writer.append(f"{name}-indptr", (own.indptr[1:] + n_values[name]).astype(where, copy=False))
            n_values[name] += own.nnz


def load_counts(folder: Path) -> RankingCounts:
    """Return what the training rows of one prepared partition rank."""
    facts = load_facts(folder)
    clicks = load_array(folder, "clickers").sum(axis=0)
    return RankingCounts(facts[TRAIN], clicks, load_array(folder, "worth"), facts["complete"])


class PlusPreparedRows:
    """The training rows of one partition with their memberships; only the rows asked for are read."""

    def __init__(self, folder: Path) -> None:
        self._reader = RowReader(folder)

    def read(self, start: int, stop: int) -> tuple[PlusRows, np.ndarray]:
        """Return the rows from `start` to `stop` and their rankings."""
        indptr = self._reader.read("indptr", start, stop + 1)
        begin, end = int(indptr[0]), int(indptr[-1])
        data, indices = (self._reader.read(name, begin, end) for name in ("data", "indices"))
        # Without own columns there are no knots.
        knot = self._reader.read("knot", *((begin, end) if self._reader.shape("knot")[0] else (0, 0)))
        own_scale, rankings = (self._reader.read(name, start, stop) for name in ("own_scale", "rankings"))
        return PlusRows(data, indices, indptr - begin, knot, own_scale), rankings


class PreparedRows:
    """The training or validation rows of one prepared partition; only the rows asked for are read."""

    def __init__(self, folder: Path, name: str) -> None:
        self._reader, self._name = RowReader(folder), name

    def __len__(self) -> int:
        return int(self._reader.facts[self._name])

    @property
    def n_values(self) -> int:
        """Values of all rows."""
        return int(self._reader.read(f"{self._name}-indptr", len(self), len(self) + 1)[0])

    def read(self, start: int = 0, stop: int | None = None) -> tuple[sp.csr_matrix, np.ndarray]:
        """Return the rows from `start` to `stop` and their rankings."""
        stop = len(self) if stop is None else stop
        X = read_csr(self._reader, start, stop, prefix=f"{self._name}-")
        return X, self._reader.read(f"{self._name}-rankings", start, stop)

    def read_some(self, chosen: np.ndarray) -> sp.csr_matrix:
        """Return some rows without their rankings, by number and ascending; those between them are not read."""
        starts = chosen[np.diff(chosen, prepend=-2) != 1]
        stops = chosen[np.diff(chosen, append=-2) != 1] + 1
        indptr = self._reader.read(f"{self._name}-indptr", 0, len(self) + 1)
        ends = np.cumsum(np.diff(indptr)[chosen])
        data, indices = (
            self._reader.read_stretches(f"{self._name}-{part}", indptr[starts], indptr[stops])
            for part in ("data", "indices")
        )
        shape = (len(chosen), self._reader.facts["columns"])
        return sp.csr_matrix((data, indices, np.concatenate([[0], ends])), shape=shape)

    def pieces(self) -> Iterator[tuple[sp.csr_matrix, np.ndarray]]:
        """Yield all rows and their rankings, some at a time."""
        for rows in cut_rows(self._reader.read(f"{self._name}-indptr", 0, len(self) + 1)):
            yield self.read(rows.start, rows.stop)


def _count_clickers(rankings: np.ndarray, n_categories: int) -> np.ndarray:
    return np.bincount(rankings[rankings >= 0], minlength=n_categories)

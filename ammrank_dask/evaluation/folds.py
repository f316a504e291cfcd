"""Deal labelled users to folds, decode their rows once, and hand them to methods as blocks of a fold.

The rows of a partition lie in the order of their pieces: piece 2f has the users of fold f, piece 2f + 1 those of the
fold on whom parameters are checked. A block is a stretch of a piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from ammrank_dask.features.store import open_features
from ammrank_dask.kernels.features import normalize_rows
from ammrank_dask.methods.registry import MethodName, Setting, load_method
from ammrank_dask.model.rows import check_rankings, read_csr
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.ids import UserIds, ids_from_values
from ammrank_dask.storage.store.scratch_arrays import RowReader, load_facts, save_arrays
from ammrank_dask.storage.vocabulary import AGE_BUCKETS, GENDERS
from ammrank_dask.user_hash import hash_ids

FOLD_SALT = 0x666F6C6475736572
TUNING_SALT = 0x74756E6575736572
RESAMPLING_SALT = 0x726573616D706C65
TUNING_SHARE, TUNING_USERS = 0.2, 20_000
"""Parameters are chosen on a fifth of the users, but no more than so many; they are in no fold."""
BLOCK_ROWS = 4096
N_DECILES = 10
KEPT_BYTES = 256 << 20
"""Blocks that a task keeps in memory for the next pass; those above this are read again."""


@dataclass(frozen=True)
class Rows:
    """Prepared rows: the folders of the partitions, and how they are cut.

    With `tuning_fold`, parameters are chosen on the users of a fold of their own, number `n_folds`; without, on the
    training rows of each fold, a quarter of them held out. With `standardize`, features get mean 0 and deviation 1 on
    the training rows and are divided by √d. With `normalize`, rows are divided by their norm. `own_columns` and
    `own_groups` say which columns are a category's own, as `AMMRankPlus` takes them, and `own_kinds` names their kinds.
    """

    folders: tuple[str, ...]
    n_folds: int
    n_categories: int
    group_columns: tuple[tuple[int, ...], ...]
    tuning_fold: bool
    standardize: bool
    activity_bounds: tuple[int, ...] = ()
    normalize: bool = False
    own_columns: tuple[tuple[int, ...], ...] | None = None
    own_groups: tuple[int, ...] | None = None
    own_kinds: tuple[str, ...] | None = None

    def for_method(self, name: MethodName) -> Rows:
        """Return the rows as a method reads them: those of a model that normalises rows itself stay as stored."""
        return replace(self, normalize=False) if load_method(name).reads_stored_rows else self

    def setting(self, n_rows: int, seed: int, tuned_rows: int | None = None) -> Setting:
        """Return the sizes that a method is built for, with `n_rows` training rows."""
        return Setting(
            n_rows, self.n_categories, self.group_columns, seed, tuned_rows, self.own_columns, self.own_groups,
            is_table=self.standardize, own_kinds=self.own_kinds,
        )  # fmt: skip

    def training(self, fold: int) -> FoldBlocks:
        """Return the rows of all other folds."""
        return self._blocks([piece for other in self._others(fold) for piece in (2 * other, 2 * other + 1)])

    def test(self, fold: int) -> FoldBlocks:
        """Return the rows of a fold."""
        return self._blocks([2 * fold, 2 * fold + 1])

    def tuning(self, fold: int) -> tuple[FoldBlocks, FoldBlocks]:
        """Return the rows to try parameters with, and those to measure them on."""
        folds = [self.n_folds] if self.tuning_fold else self._others(fold)
        return self._blocks([2 * other for other in folds]), self._blocks([2 * other + 1 for other in folds])

    def standardized(self, train: FoldBlocks, test: FoldBlocks) -> tuple[AnyBlocks, AnyBlocks]:
        """Return both as methods read them: as they are, or in the standards of the first."""
        if not self.standardize:
            return train, test
        first = DenseBlocks(train)
        return first, DenseBlocks(test, first.standards)

    @property
    def n_tuning(self) -> int:
        """Users on whom parameters are chosen and who are in no fold."""
        return sum(blocks.n_rows for blocks in self.tuning(0)) if self.tuning_fold else 0

    def _others(self, fold: int) -> list[int]:
        return [other for other in range(self.n_folds) if other != fold]

    def _blocks(self, pieces: Sequence[int]) -> FoldBlocks:
        stretches = []
        for folder in self.folders:
            starts = load_facts(Path(folder))["piece_starts"]
            for piece in pieces:
                for start in range(starts[piece], starts[piece + 1], BLOCK_ROWS):
                    stretches.append((folder, start, min(start + BLOCK_ROWS, starts[piece + 1])))
        return FoldBlocks(stretches, normalize=self.normalize)


@dataclass(frozen=True)
class UserFacts:
    """What is known of the users of a block beside their rows: hashes, and codes of the slices."""

    hashes: np.ndarray
    group: np.ndarray
    activity: np.ndarray


class FoldBlocks:
    """Blocks of (X, rankings, tied); each is read when it is asked for, and kept while there are not too many."""

    def __init__(self, stretches: Sequence[tuple[str, int, int]], *, normalize: bool = False) -> None:
        self.stretches = stretches
        self.normalize = normalize
        self._kept: dict[int, tuple[Any, np.ndarray, np.ndarray]] = {}
        self._kept_bytes = 0

    @property
    def n_rows(self) -> int:
        """Rows of all blocks."""
        return sum(stop - start for _, start, stop in self.stretches)

    def __len__(self) -> int:
        return len(self.stretches)

    def __getitem__(self, block: int) -> tuple[Any, np.ndarray, np.ndarray]:
        if block not in self._kept:
            found = self._load(block)
            size = found[0].data.nbytes + found[0].indices.nbytes + found[1].nbytes + found[2].nbytes
            if self._kept_bytes + size > KEPT_BYTES:
                return found
            self._kept[block] = found
            self._kept_bytes += size
        return self._kept[block]

    def _load(self, block: int) -> tuple[Any, np.ndarray, np.ndarray]:
        folder, start, stop = self.stretches[block]
        reader = RowReader(Path(folder))
        rankings, tied = (reader.read(name, start, stop) for name in ("rankings", "tied"))
        X = read_csr(reader, start, stop)
        if self.normalize:
            normalize_rows(X.indptr, X.data)
        return X, rankings, tied

    def users(self, block: int) -> UserFacts:
        """Return what is known of the users of a block."""
        folder, start, stop = self.stretches[block]
        reader = RowReader(Path(folder))
        return UserFacts(*(reader.read(name, start, stop) for name in ("hashes", "group", "activity")))


class DenseBlocks:
    """The rows of some blocks in memory, dense and standardised: for tables, which are small."""

    def __init__(self, blocks: FoldBlocks, standards: tuple[np.ndarray, np.ndarray] | None = None) -> None:
        parts = [blocks[i] for i in range(len(blocks))]
        X = np.concatenate([part[0].toarray().astype(np.float64) for part in parts])
        self.rankings, self.tied = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        facts = [blocks.users(i) for i in range(len(blocks))]
        self.facts = UserFacts(
            *(np.concatenate([getattr(fact, name) for fact in facts]) for name in ("hashes", "group", "activity"))
        )
        self.standards = standards or _standards(X)
        self.X = (X - self.standards[0]) / self.standards[1]

    @property
    def n_rows(self) -> int:
        """Rows of all blocks."""
        return len(self.X)

    def __len__(self) -> int:
        return -(-len(self.X) // BLOCK_ROWS)

    def __getitem__(self, block: int) -> tuple[Any, np.ndarray, np.ndarray]:
        rows = slice(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS)
        return self.X[rows], self.rankings[rows], self.tied[rows]

    def users(self, block: int) -> UserFacts:
        """Return what is known of the users of a block."""
        rows = slice(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS)
        return UserFacts(self.facts.hashes[rows], self.facts.group[rows], self.facts.activity[rows])


def _standards(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and scale of every column: the deviation times √d; a constant column becomes 0."""
    mean, deviation = X.mean(axis=0), X.std(axis=0)
    varies = deviation > 1e-9 * np.abs(mean)
    return mean, np.where(varies, deviation, np.inf) * np.sqrt(X.shape[1])


AnyBlocks: TypeAlias = FoldBlocks | DenseBlocks


def prepare_partition(
    features_path: str, partition: int, variant: str | None, n_folds: int, tuning_share: float, folder: str
) -> np.ndarray:
    """Decode the labelled rows of a partition in the order of their pieces; count its test users by activity."""
    features = open_features(features_path)
    part = features.partition(partition, variant=variant, normalize=False)
    if part.rankings is None:
        raise BadInput(f"features at {features_path} must have rankings to compare methods with, found none")
    check_rankings(part.rankings, n_rows=part.X.shape[0], n_categories=features.n_categories)
    piece = deal_users(part.user_ids, n_folds, tuning_share)
    labelled = np.flatnonzero((part.rankings >= 0).any(axis=1))
    rows = labelled[np.argsort(piece[labelled], kind="stable")]
    known = (part.age_bucket >= 0) & (part.gender >= 0)
    group = np.where(known, part.gender.astype(np.int64) * len(AGE_BUCKETS) + part.age_bucket, -1)
    save_pieces(
        Path(folder),
        part.X[rows],
        part.rankings[rows],
        np.zeros((len(rows), part.rankings.shape[1]), bool),
        piece[rows],
        n_folds,
        UserFacts(
            hash_ids(part.user_ids, RESAMPLING_SALT)[rows],
            group[rows].astype(np.int16),
            part.n_event_features[rows].astype(np.int32),
        ),
    )
    in_fold = piece[rows] < 2 * n_folds
    return np.bincount(part.n_event_features[rows][in_fold])


def prepare_table(X: np.ndarray, rankings: np.ndarray, tied: np.ndarray, n_folds: int, folder: str) -> None:
    """Write the rows of a table in the order of their pieces; rows are dealt to folds in turn, by a hash's order."""
    ids = ids_from_values(np.arange(len(X)))
    turn = np.empty(len(X), np.int64)
    turn[np.argsort(hash_ids(ids, FOLD_SALT), kind="stable")] = np.arange(len(X))
    piece = 2 * (turn % n_folds) + (turn // n_folds % 4 == 1)
    rows = np.argsort(piece, kind="stable")
    nothing = np.full(len(rows), -1, np.int16)
    save_pieces(
        Path(folder),
        sp.csr_matrix(X[rows]),  # narrowed after they are standardised: large values may differ by little
        rankings[rows],
        tied[rows],
        piece[rows],
        n_folds,
        UserFacts(hash_ids(ids, RESAMPLING_SALT)[rows], nothing, nothing.astype(np.int32)),
    )


def save_pieces(
    folder: Path,
    X: sp.csr_matrix,
    rankings: np.ndarray,
    tied: np.ndarray,
    piece: np.ndarray,
    n_folds: int,
    users: UserFacts,
) -> None:
    """Write rows that are in the order of their pieces."""
    arrays = {
        "data": X.data, "indices": X.indices, "indptr": X.indptr, "rankings": rankings.astype(np.int32), "tied": tied,
        "hashes": users.hashes, "group": users.group, "activity": users.activity,
    }  # fmt: skip
    starts = np.searchsorted(piece, np.arange(2 * (n_folds + 1) + 1))
    save_arrays(folder, arrays, {"columns": X.shape[1], "piece_starts": starts.tolist()})


def deal_users(ids: UserIds, n_folds: int, tuning_share: float) -> np.ndarray:
    """Return the piece of every user. It depends on the id and the two numbers, not on partitions or splits."""
    fold = (hash_ids(ids, FOLD_SALT) % np.uint64(n_folds)).astype(np.int64)
    unit = hash_ids(ids, TUNING_SALT) / 2.0**64
    checked = unit < tuning_share / 4
    return np.where(unit < tuning_share, 2 * n_folds + checked, 2 * fold)


def tuning_share(n_users: int) -> float:
    """Return the share of the users on whom parameters are chosen."""
    return min(TUNING_SHARE, TUNING_USERS / max(1, n_users))


def count_clicks(rows: Rows) -> np.ndarray:
    """Return how many users of all folds rank each category, (L,) int64."""
    clicks = np.zeros(rows.n_categories, np.int64)
    for fold in range(rows.n_folds):
        blocks = rows.test(fold)
        for block in range(len(blocks)):
            rankings = blocks[block][1]
            clicks += np.bincount(rankings[rankings >= 0], minlength=rows.n_categories)
    return clicks


def activity_bounds(counts: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Return the lowest activity of the second to the last decile, from counts of users by activity."""
    total = np.zeros(max((len(count) for count in counts), default=0), np.int64)
    for count in counts:
        total[: len(count)] += count
    reached = np.cumsum(total)
    if not len(reached) or reached[-1] == 0:
        return ()
    marks = reached[-1] * np.arange(1, N_DECILES) / N_DECILES
    return tuple(int(i) for i in np.searchsorted(reached, marks, side="right"))


def slice_codes(users: UserFacts, rows: Rows) -> dict[str, tuple[np.ndarray, int]]:
    """Return the slices that a block's users fall into, as `measure_block` takes them."""
    if not rows.activity_bounds:
        return {}
    decile = np.searchsorted(np.array(rows.activity_bounds), users.activity, side="right")
    return {"group": (users.group, len(GENDERS) * len(AGE_BUCKETS)), "activity": (decile, N_DECILES)}

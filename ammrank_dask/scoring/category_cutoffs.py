"""Find for every category the score above which it takes users: exact, over scores that are only on the disk.

Scores are read as integers that order as they do, and the cutoff is found digit by digit: every pass counts one digit
of the keys that may still be the cutoff. Ties are broken by user id; the last id taken is found by repeated sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from distributed import Client

from ammrank_dask.kernels.selection import DIGIT_BITS, count_digits
from ammrank_dask.runtime.tasks import Progress, count_at_once, run_tasks, silent
from ammrank_dask.storage.store.ids import UserIds, concat, ids_from_arrays
from ammrank_dask.storage.store.qualification_files import WORK
from ammrank_dask.storage.store.scratch_arrays import load_array, load_facts, save_arrays

_TASKS, _TASKS_PER_THREAD = 32, 2
"""Tasks of a pass, at most, each over several partitions, so that what comes back does not grow with their number."""
_IDS_AT_ONCE, _IDS_PER_PARTITION = 50_000, 8
_ABOVE_ALL = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True)
class ScoreCutoffs:
    """The users of each category: those above `key` (L,), and of those at it the ids up to `last_id[c]`.

    Without an entry in `last_id` all users at the key are taken. `n_taken` (L,) is how many that makes.
    """

    key: np.ndarray
    last_id: dict[int, UserIds]
    n_taken: np.ndarray

    def tie_end(self, user_ids: UserIds) -> np.ndarray:
        """Return for each category how many of these sorted users are up to its last id; all without one."""
        stop = np.full(len(self.key), len(user_ids), np.int64)
        for category, last in self.last_id.items():
            stop[category] = user_ids.count_up_to(last)
        return stop


@dataclass(frozen=True)
class ScoreScratch:
    """Scores of all users for all categories, one folder per partition, for as long as a run is going on."""

    run: Path
    n_partitions: int

    def folder(self, partition: int) -> Path:
        """Return the folder of one partition."""
        return self.run / WORK / f"scores-{partition:05d}"

    def save(
        self,
        partition: int,
        scores: np.ndarray,
        user_ids: UserIds,
        counts: dict[str, object],
        *,
        activity: np.ndarray | None = None,
        group: np.ndarray | None = None,
        own_scores: np.ndarray | None = None,
    ) -> None:
        """Keep scores (L, n), the ids of their users, how active they are and the `group_of` each.

        `own_scores` (L, n) are those of the model where categories are taken by something else.
        """
        kept = {"activity": activity, "group": group, "own_scores": own_scores}
        arrays = {"scores": scores, **user_ids.to_arrays()}
        arrays |= {name: array for name, array in kept.items() if array is not None}
        save_arrays(self.folder(partition), arrays, {**counts, "ids": user_ids.kind})

    def activity(self, partition: int) -> np.ndarray:
        """Return how active the users are."""
        return load_array(self.folder(partition), "activity")

    def group(self, partition: int) -> np.ndarray:
        """Return the group of each user."""
        return load_array(self.folder(partition), "group")

    def own_scores(self, partition: int) -> np.ndarray:
        """Return the scores of the model (L, n), mapped, where others are kept beside them."""
        return load_array(self.folder(partition), "own_scores", mapped=True)

    def bits(self, partition: int) -> np.ndarray:
        """Return the bits of the scores (L, n), mapped."""
        return load_array(self.folder(partition), "scores", mapped=True).view(np.uint32)

    def user_ids(self, partition: int) -> UserIds:
        """Return the users, ascending."""
        kind = load_facts(self.folder(partition))["ids"]
        names = ("user_id",) if kind == "int64" else ("user_id_offsets", "user_id_bytes")
        return ids_from_arrays({name: load_array(self.folder(partition), name) for name in names})


def find_cutoffs(
    client: Client,
    scratch: ScoreScratch,
    wanted: Callable[[np.ndarray], np.ndarray],
    *,
    progress: Progress = silent,
) -> ScoreCutoffs:
    """Return the cutoffs at which each category has taken as many users as it wants.

    Parameters
    ----------
    wanted
        From how many users have a score in each category, return how many each takes, at most that.
    """
    groups = _group(client, scratch.n_partitions)
    prefix: np.ndarray = np.zeros(0, np.uint32)
    taken = left = np.zeros(0, np.int64)
    known_bits = 0
    for digit_bits in DIGIT_BITS:
        tasks = [(scratch, group, prefix, known_bits, digit_bits) for group in groups]
        found = run_tasks(client, "select", count_digit_group, tasks, progress=progress)
        counts = np.stack(found).sum(axis=0, dtype=np.int64)
        if not known_bits:
            taken = wanted(counts.sum(axis=1))
            left, prefix = taken, np.zeros(len(taken), np.uint32)
        digit, left, tied = _descend(counts, left)
        prefix = (prefix << np.uint32(digit_bits)) | digit
        known_bits += digit_bits
    key = np.where(taken > 0, prefix, _ABOVE_ALL)
    open_ties = {int(c): int(left[c]) for c in np.flatnonzero((taken > 0) & (left < tied))}
    return ScoreCutoffs(key, _find_last_ids(client, scratch, key, open_ties, progress), taken)


def count_digit_group(
    scratch: ScoreScratch, partitions: Sequence[int], prefix: np.ndarray, known_bits: int, digit_bits: int
) -> np.ndarray:
    """Count one digit of the scores of some partitions, (L, 2 ** digit_bits) uint32."""
    total = np.zeros((0, 0), np.uint32)
    for partition in partitions:
        bits = scratch.bits(partition)
        if not len(total):
            total = np.zeros((len(bits), 1 << digit_bits), np.uint32)
        known = prefix if known_bits else np.zeros(len(bits), np.uint32)
        count_digits(bits, known, known_bits, digit_bits, total)
    return total


def _descend(counts: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the digit at which the count from the highest reaches `wanted`, the users left to take, and its count."""
    from_highest = np.cumsum(counts[:, ::-1], axis=1)
    place = (from_highest < wanted[:, None]).sum(axis=1).clip(max=counts.shape[1] - 1)
    rows = np.arange(len(counts))
    here = counts[:, ::-1][rows, place]
    before = from_highest[rows, place] - here
    return (counts.shape[1] - 1 - place).astype(np.uint32), wanted - before, here


@dataclass(frozen=True)
class _Window:
    """Ids of users at a category's key that may be the last one taken: above `low` (None: any), up to `high`."""

    category: int
    step: int
    low: UserIds | None = None
    high: UserIds | None = None


def _find_last_ids(
    client: Client, scratch: ScoreScratch, key: np.ndarray, wanted: dict[int, int], progress: Progress
) -> dict[int, UserIds]:
    """Return for each category the last id that it takes of the users at its key."""
    last: dict[int, UserIds] = {}
    windows = [_Window(category, step=0) for category in wanted]
    at_once = max(_IDS_AT_ONCE, _IDS_PER_PARTITION * scratch.n_partitions)
    while windows:
        tasks = [(scratch, group, key, windows) for group in _group(client, scratch.n_partitions)]
        found = run_tasks(client, "select", sample_ties, tasks, progress=progress)
        narrower = []
        for number, window in enumerate(windows):
            parts = [group[number] for group in found]
            below, inside = sum(part[0] for part in parts), sum(part[1] for part in parts)
            left = wanted[window.category] - below
            if not window.step:
                narrower.append(_Window(window.category, max(1, inside // at_once), window.low, window.high))
                continue
            sampled = concat([part[2] for part in parts]).sort_unique()
            if window.step == 1:
                last[window.category] = sampled.take(np.array([left - 1]))
                continue
            # A sample stands for `step` users of its partition that are not above it; of every partition fewer than
            # `step` more may be.
            sure = (left - 1 - scratch.n_partitions * (window.step - 1)) // window.step
            enough = -(-left // window.step)
            low = sampled.take(np.array([sure - 1])) if sure >= 1 else window.low
            high = sampled.take(np.array([enough - 1])) if enough <= len(sampled) else window.high
            narrower.append(_Window(window.category, 0, low, high))
        windows = narrower
    return last


def sample_ties(
    scratch: ScoreScratch, partitions: Sequence[int], key: np.ndarray, windows: Sequence[_Window]
) -> list[tuple[int, int, UserIds]]:
    """Return for each window how many tied users are below it and inside it, and every step-th of those inside."""
    results = []
    read = {partition: (scratch.bits(partition), scratch.user_ids(partition)) for partition in partitions}
    for window in windows:
        below = inside = 0
        samples = []
        for bits, user_ids in read.values():
            tied = user_ids.take(np.flatnonzero(order_keys(bits[window.category]) == key[window.category]))
            start = 0 if window.low is None else tied.count_up_to(window.low)
            stop = len(tied) if window.high is None else tied.count_up_to(window.high)
            below += start
            inside += stop - start
            step = window.step
            samples.append(tied.take(np.arange(start + step - 1, stop, step) if step else np.arange(0)))
        results.append((below, inside, concat(samples)))
    return results


def order_keys(bits: np.ndarray) -> np.ndarray:
    """Return the keys of float32 bits, which order as the floats do."""
    sign = np.uint32(0x80000000)
    return np.where(bits > sign, ~bits, bits | sign)


def _group(client: Client, n_partitions: int) -> list[list[int]]:
    n_tasks = min(_TASKS, _TASKS_PER_THREAD * count_at_once(client), n_partitions)
    parts = np.array_split(np.arange(n_partitions), n_tasks)
    return [part.tolist() for part in parts]

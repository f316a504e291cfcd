"""Keep what the first pass found of a partition until the draws of exploration are made, which need all users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ammrank_dask.scoring.exploration import Drawn
from ammrank_dask.storage.store.ids import UserIds, ids_from_arrays
from ammrank_dask.storage.store.scratch_arrays import is_saved, load_array, load_arrays, load_facts, save_arrays


@dataclass(frozen=True)
class FirstScores:
    """The users of a partition as the first pass left them.

    `codes` and `scores` (n, k) are their best categories, `everything` (L, n) all scores, `chances` (n, L) or None,
    `allowed` (n, L) bool what they may hold, `activity` (n,) how active they are.
    """

    user_ids: UserIds
    codes: np.ndarray
    scores: np.ndarray
    everything: np.ndarray
    chances: np.ndarray | None
    allowed: np.ndarray
    activity: np.ndarray


@dataclass(frozen=True)
class ExplorationScratch:
    """First scores and draws, a folder each a partition, for as long as a run is going on."""

    folder: Path

    def _first(self, partition: int) -> Path:
        return self.folder / f"first-{partition:05d}"

    def _drawn(self, partition: int) -> Path:
        return self.folder / f"drawn-{partition:05d}"

    def save(self, partition: int, first: FirstScores, counts: Mapping[str, Any]) -> None:
        """Keep the scores of a partition with its counts."""
        arrays = {name: getattr(first, name) for name in ("codes", "scores", "everything", "activity")}
        arrays["allowed"] = np.packbits(first.allowed, axis=1)
        if first.chances is not None:
            arrays["chances"] = first.chances
        save_arrays(self._first(partition), {**arrays, **first.user_ids.to_arrays()}, counts)

    def counts(self, partition: int) -> dict[str, Any] | None:
        """Return the counts of a partition, None before it is kept."""
        folder = self._first(partition)
        return load_facts(folder) if is_saved(folder) else None

    def load(self, partition: int) -> FirstScores:
        """Return what `save` kept."""
        arrays, _ = load_arrays(self._first(partition))
        n_categories = len(arrays["everything"])
        return FirstScores(
            ids_from_arrays(arrays), arrays["codes"], arrays["scores"], arrays["everything"], arrays.get("chances"),
            np.unpackbits(arrays["allowed"], axis=1, count=n_categories).astype(bool), arrays["activity"],
        )  # fmt: skip

    def best(self, partition: int) -> tuple[np.ndarray, np.ndarray]:
        """Return codes and scores (n, k) of the best categories alone."""
        return load_array(self._first(partition), "codes"), load_array(self._first(partition), "scores")

    def scores(self, partition: int) -> np.ndarray:
        """Return all scores (L, n) alone, mapped."""
        return load_array(self._first(partition), "everything", mapped=True)

    def save_drawn(self, partition: int, drawn: Drawn, counts: Mapping[str, Any]) -> None:
        """Keep the draws of a partition with their counts."""
        save_arrays(self._drawn(partition), {"codes": drawn.codes, "propensity": drawn.propensity}, counts)

    def drawn(self, partition: int) -> Drawn:
        """Return the draws of a partition."""
        arrays, _ = load_arrays(self._drawn(partition))
        return Drawn(arrays["codes"], arrays["propensity"])

    def drawn_counts(self, partition: int) -> dict[str, Any] | None:
        """Return the counts of the draws of a partition, None before they are kept."""
        folder = self._drawn(partition)
        return load_facts(folder) if is_saved(folder) else None

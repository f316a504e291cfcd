"""Keep the chances of all users for all categories on the disk for as long as a run is going on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ammrank_dask.kernels.balanced import Offers
from ammrank_dask.scoring.prices import offers_of
from ammrank_dask.storage.store.ids import UserIds, ids_from_arrays
from ammrank_dask.storage.store.scratch_arrays import load_array, load_facts, save_arrays
from ammrank_dask.user_hash import hash_ids

SAMPLE_SALT = 0x70726963656D6531
_SAMPLE_CELLS, _SAMPLE_USERS = 500_000, 5_000


@dataclass(frozen=True)
class ChanceTable:
    """Chances (n, L) float32 of each partition in a folder of its own, below 0 where a user may not hold a category."""

    folder: Path
    n_partitions: int

    def part(self, partition: int) -> Path:
        """Return the folder of one partition."""
        return self.folder / f"chances-{partition:05d}"

    def save(
        self,
        partition: int,
        chances: np.ndarray,
        user_ids: UserIds,
        sample_share: float,
        *,
        slots: np.ndarray | None = None,
        group: np.ndarray | None = None,
    ) -> None:
        """Keep the chances of a partition and, apart from them, those of a sample of its users chosen by hash.

        `slots` (n,) says how many categories each user gets, where that is not k for all, and `group` (n,) the row of
        the weights of each user, where there is more than one.
        """
        sampled = hash_ids(user_ids, SAMPLE_SALT) / 2.0**64 < sample_share
        arrays = {"chances": chances, "sample": chances[sampled], **user_ids.to_arrays()}
        if slots is not None:
            arrays |= {"slots": slots, "sample_slots": slots[sampled]}
        if group is not None:
            arrays |= {"group": group, "sample_group": group[sampled]}
        save_arrays(self.part(partition), arrays, {"ids": user_ids.kind, "has_slots": slots is not None})

    def slots(self, partition: int, k: int) -> int | np.ndarray:
        """Return how many categories users get: k, or a number for each (n,) where such were kept."""
        part = self.part(partition)
        return load_array(part, "slots") if load_facts(part)["has_slots"] else k

    def chances(self, partition: int) -> np.ndarray:
        """Return the chances (n, L), mapped."""
        return load_array(self.part(partition), "chances", mapped=True)

    def offers(self, partition: int, weights: np.ndarray | None) -> Offers:
        """Return the chances with weights (groups, L) by which they are worth something; None for 1."""
        return self._offers(self.chances(partition), [self.part(partition)], weights, "group")

    def sample(self) -> np.ndarray:
        """Return the chances of the sampled users of all partitions, in their order."""
        return np.concatenate([load_array(part, "sample") for part in self._parts])

    def sample_offers(self, weights: np.ndarray | None) -> Offers:
        """Return the same with weights, as `offers` does."""
        return self._offers(self.sample(), self._parts, weights, "sample_group")

    @property
    def _parts(self) -> list[Path]:
        return [self.part(partition) for partition in range(self.n_partitions)]

    def _offers(self, chances: np.ndarray, parts: list[Path], weights: np.ndarray | None, name: str) -> Offers:
        if weights is None:
            return offers_of(chances)
        if len(weights) == 1:
            return Offers(chances, weights, np.zeros(len(chances), np.uint8))
        return Offers(chances, weights, np.concatenate([load_array(part, name) for part in parts]))

    def sample_slots(self, k: int) -> int | np.ndarray:
        """Return how many categories the sampled users get, as `slots` does."""
        if not all(load_facts(part)["has_slots"] for part in self._parts):
            return k
        return np.concatenate([load_array(part, "sample_slots") for part in self._parts])

    def user_ids(self, partition: int) -> UserIds:
        """Return the users of a partition, ascending."""
        kind = load_facts(self.part(partition))["ids"]
        names = ("user_id",) if kind == "int64" else ("user_id_offsets", "user_id_bytes")
        return ids_from_arrays({name: load_array(self.part(partition), name) for name in names})


def sample_share(n_users: int, n_categories: int) -> float:
    """Return the share of users that prices are first found on.

    Examples
    --------
    >>> sample_share(1_000_000, 50), sample_share(2_500, 340)
    (0.01, 1.0)
    """
    return min(1.0, max(_SAMPLE_USERS, _SAMPLE_CELLS // n_categories) / max(1, n_users))


def allowed_counts(chances: np.ndarray, k: int) -> tuple[np.ndarray, int]:
    """Return how many users may hold each category (L,), and how many slots they fill with k each at most.

    Examples
    --------
    >>> allowed_counts(np.array([[0.1, -1.0, 0.2], [0.3, 0.1, 0.2]], np.float32), 2)
    (array([2, 1, 2]), 4)
    """
    allowed = chances >= 0
    return allowed.sum(axis=0), int(np.minimum(allowed.sum(axis=1), k).sum())

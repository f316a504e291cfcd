"""Hold the chances of a past night against the clicks of the days since."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.report.hit_rate import find_clicked, read_clicks
from ammrank_dask.scoring.moved_parts import NightPart
from ammrank_dask.storage.store.ids import UserIds
from ammrank_dask.storage.store.parts import PartRef
from ammrank_dask.storage.store.qualifications import QualificationRows
from ammrank_dask.tasks import Progress, run_tasks, silent


@dataclass(frozen=True)
class ChanceOutcome:
    """Qualifications with a chance: how many, the sum of their chances, how many were clicked, Σ chance·(1 − chance).

    The last is the variance of the clicks, if every chance is right.
    """

    slots: int = 0
    expected: float = 0.0
    clicked: int = 0
    variance: float = 0.0

    def __add__(self, other: ChanceOutcome) -> ChanceOutcome:
        """Return the sums over both sets of users."""
        return ChanceOutcome(
            self.slots + other.slots,
            self.expected + other.expected,
            self.clicked + other.clicked,
            self.variance + other.variance,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the sums as a summary has them; `error` is the standard error of the clicks."""
        return {
            "slots": self.slots,
            "expected": self.expected,
            "clicked": self.clicked,
            "error": math.sqrt(self.variance),
        }


def measure_chance_outcome(
    client: Client,
    parts: Sequence[NightPart],
    days: Sequence[Sequence[PartRef]],
    categories: Sequence[str],
    cells: tuple[int, int],
    *,
    progress: Progress = silent,
) -> ChanceOutcome:
    """Return how the chances of a past night came true, one task a partition.

    Parameters
    ----------
    parts
        The by_user files of the night.
    days
        For each partition the partials of the days of the label window after it.
    categories, cells
        The names of the categories of the partials, and the first and the last (excluded) cell of clicks.
    """
    tasks = [(part, list(own), list(categories), cells) for part, own in zip(parts, days, strict=True)]
    return sum(run_tasks(client, "outcome", match_chances, tasks, progress=progress), start=ChanceOutcome())


def match_chances(part: NightPart, days: list[PartRef], categories: list[str], cells: tuple[int, int]) -> ChanceOutcome:
    """Hold the file of one partition against the clicks of its users."""
    return count_outcome(part.read(categories), *read_clicks(days, cells))


def count_outcome(rows: QualificationRows, users: UserIds, user: np.ndarray, category: np.ndarray) -> ChanceOutcome:
    """Count what was expected and what was clicked.

    Parameters
    ----------
    users
        Who clicked, sorted.
    user, category
        Every pair of position in `users` and code that was clicked, each once.
    """
    if rows.chance is None:
        return ChanceOutcome()
    clicked = int(find_clicked(rows, users, user, category).sum())
    return ChanceOutcome(
        len(rows.chance), float(rows.chance.sum()), clicked, float((rows.chance * (1 - rows.chance)).sum())
    )

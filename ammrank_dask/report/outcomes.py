"""Compare a past night with the clicks of the days since: its chances, and its policies if it explored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client

from ammrank_dask.report.hit_rate import find_clicked, read_clicks
from ammrank_dask.report.off_policy_estimate import EarnedSums, weigh_clicks
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.scoring.qualifications import NightPart
from ammrank_dask.storage.store.parts import PartRef
from ammrank_dask.storage.store.qualifications import QualificationRows


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


def measure_past_night(
    client: Client,
    parts: Sequence[NightPart],
    days: Sequence[Sequence[PartRef]],
    categories: Sequence[str],
    cells: tuple[int, int],
    *,
    is_explored: bool,
    progress: Progress = silent,
) -> tuple[ChanceOutcome, EarnedSums | None]:
    """Return predicted and actual clicks of a past night, and what its policies earned; one task per partition.

    Parameters
    ----------
    parts
        The by_user files of the night.
    days
        For each partition the partials of the days of the label window after it.
    categories, cells
        The names of the categories of the partials, and the first and the last (excluded) cell of clicks.
    is_explored
        Whether the night drew slots: without them nothing is known of pairs that were not assigned.
    """
    tasks = [(part, list(own), list(categories), cells, is_explored) for part, own in zip(parts, days, strict=True)]
    outcomes, earned = zip(*run_tasks(client, "outcome", match_night, tasks, progress=progress), strict=True)
    outcome = sum(outcomes, start=ChanceOutcome())
    return outcome, sum(earned[1:], start=earned[0]) if is_explored else None


def match_night(
    part: NightPart, days: list[PartRef], categories: list[str], cells: tuple[int, int], is_explored: bool
) -> tuple[ChanceOutcome, EarnedSums | None]:
    """Compare the file of one partition with the clicks of its users."""
    rows = part.read(categories)
    is_clicked = find_clicked(rows, *read_clicks(days, cells))
    return count_outcome(rows, is_clicked), weigh_clicks(rows, is_clicked) if is_explored else None


def count_outcome(rows: QualificationRows, is_clicked: np.ndarray) -> ChanceOutcome:
    """Count what was expected and what was clicked; `is_clicked` tells it of every row."""
    if rows.chance is None:
        return ChanceOutcome()
    variance = float((rows.chance * (1 - rows.chance)).sum())
    return ChanceOutcome(len(rows.chance), float(rows.chance.sum()), int(is_clicked.sum()), variance)

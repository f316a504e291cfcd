"""Compare a past night with the clicks of the days since: its chances, and what each policy would have earned.

What policies would have earned is known of a night that explored. A click on what a user holds counts one over the
probability that the user held it. What the chances expect is the start, and only what came otherwise is weighed: the
estimate is right whatever the chances are worth, and the better they are the narrower is its interval.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ammrank_dask.report.hit_rate import find_clicked, read_clicks
from ammrank_dask.runtime.tasks import Call
from ammrank_dask.scoring.qualifications import NightPart
from ammrank_dask.storage.store.parts import PartRef
from ammrank_dask.storage.store.qualifications import QualificationRows
from ammrank_dask.storage.vocabulary import POLICY_NAMES

ERRORS = 1.96
"""Standard errors on both sides of an interval of 95 %."""
FEWEST_DRAWN = 30
"""An inactive policy has an interval only if it shares this many drawn slots."""


@dataclass(frozen=True)
class ChanceOutcome:
    """Qualifications with a chance: how many, the sum of their chances, how many were clicked, Σ chance·(1 − chance).

    The last is the variance of the clicks, if every chance is right. The three after it are of value: what was
    expected, what the clicks were worth, and its variance; None where nobody says what a click is worth.
    """

    slots: int = 0
    expected: float = 0.0
    clicked: int = 0
    variance: float = 0.0
    value: tuple[float, float, float] | None = None

    def __add__(self, other: ChanceOutcome) -> ChanceOutcome:
        """Return the sums over both sets of users."""
        return ChanceOutcome(
            self.slots + other.slots,
            self.expected + other.expected,
            self.clicked + other.clicked,
            self.variance + other.variance,
            _add_values(self.value, other.value),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the sums as a summary has them; `error` is the standard error of the clicks."""
        found = {
            "slots": self.slots,
            "expected": self.expected,
            "clicked": self.clicked,
            "error": math.sqrt(self.variance),
        }
        if self.value is None:
            return found
        expected, realised, variance = self.value
        return {**found, "expected_value": expected, "value": realised, "value_error": math.sqrt(variance)}


def _add_values(
    one: tuple[float, float, float] | None, other: tuple[float, float, float] | None
) -> tuple[float, float, float] | None:
    if one is None or other is None:
        return other if one is None else one
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def measure_past_night(
    parts: Sequence[NightPart],
    days: Sequence[Sequence[PartRef]],
    categories: Sequence[str],
    cells: tuple[int, int],
    *,
    is_explored: bool,
) -> Generator[list[Call], list[tuple[ChanceOutcome, Any]], tuple[ChanceOutcome, EarnedSums | None]]:
    """Return predicted and actual clicks of a past night, and what its policies earned; calls as `measure_drift`.

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
    counts = yield [
        (match_night, (part, list(own), list(categories), cells, is_explored))
        for part, own in zip(parts, days, strict=True)
    ]
    outcomes, earned = zip(*counts, strict=True)
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
    variances = rows.chance * (1 - rows.chance)
    value = None
    if rows.value is not None:
        per_click = rows.per_click
        value = float(rows.value.sum()), float(per_click[is_clicked].sum()), float((per_click**2 * variances).sum())
    return ChanceOutcome(
        len(rows.chance), float(rows.chance.sum()), int(is_clicked.sum()), float(variances.sum()), value
    )


@dataclass(frozen=True)
class EarnedSums:
    """Sums over users of what came otherwise than expected, weighed, by policy of `POLICY_NAMES`; they add.

    `total` and `squares` (P,) are of a user's sum and of its square, `n_users` how many users there are, `n_drawn` (P,)
    slots of the policy that were drawn, `n_clicked` (P,) what of its slots was held and clicked. `value` and
    `value_squares` (P,) are as `total` and `squares`, each click by its worth.
    """

    n_users: int
    total: np.ndarray
    squares: np.ndarray
    n_drawn: np.ndarray
    n_clicked: np.ndarray
    value: np.ndarray
    value_squares: np.ndarray

    def __add__(self, other: EarnedSums) -> EarnedSums:
        """Return the sums over both sets of users."""
        return EarnedSums(
            self.n_users + other.n_users,
            self.total + other.total,
            self.squares + other.squares,
            self.n_drawn + other.n_drawn,
            self.n_clicked + other.n_clicked,
            self.value + other.value,
            self.value_squares + other.value_squares,
        )

    def estimate(self, support: Mapping[str, Mapping[str, float]], in_force: str) -> dict[str, dict[str, Any]]:
        """Return by policy the clicks on the slots that could be held, and their interval of 95 %: `low` to `high`.

        Where support has `expected_value`, the same of what they were worth: `value`, `value_low` to `value_high`.
        Users are taken as independent of each other: the variance is that of their sums.

        Parameters
        ----------
        support
            By policy `slots`, how many of them are `supported`, and their `expected_clicks` if there are chances.
        in_force
            The active policy, whose lists users had.
        """
        estimates: dict[str, dict[str, Any]] = {}
        for name, found in support.items():
            at = POLICY_NAMES.index(name)
            clicks = found.get("expected_clicks", 0.0) + float(self.total[at])
            error = self._error(float(self.total[at]), float(self.squares[at]))
            has_interval = name == in_force or self.n_drawn[at] >= FEWEST_DRAWN
            estimates[name] = {
                "slots": int(found["slots"]),
                "supported": int(found["supported"]),
                "drawn": int(self.n_drawn[at]),
                "clicked": int(self.n_clicked[at]),
                "clicks": clicks,
                "error": error,
                "low": max(0.0, clicks - ERRORS * error) if has_interval else None,
                "high": clicks + ERRORS * error if has_interval else None,
            }
            if "expected_value" in found:
                value = found["expected_value"] + float(self.value[at])
                error = self._error(float(self.value[at]), float(self.value_squares[at]))
                estimates[name] |= {
                    "value": value,
                    "value_low": max(0.0, value - ERRORS * error) if has_interval else None,
                    "value_high": value + ERRORS * error if has_interval else None,
                }
        return estimates

    def _error(self, total: float, squares: float) -> float:
        spread = squares - total**2 / max(1, self.n_users)
        return math.sqrt(max(0.0, spread) * self.n_users / max(1, self.n_users - 1))


def weigh_clicks(rows: QualificationRows, is_clicked: np.ndarray) -> EarnedSums:
    """Return the sums over the users of some rows; `is_clicked` tells of every row whether it was clicked."""
    assert rows.inclusion is not None
    assert rows.held_by is not None
    n_users, user = len(rows.user_ids), rows.user
    chance = np.zeros(len(user)) if rows.chance is None else rows.chance
    weight = np.divide(1.0, rows.inclusion, out=np.zeros(len(user)), where=rows.inclusion > 0)
    surprise = weight * (is_clicked - chance)
    sums, per_click = np.zeros((6, len(POLICY_NAMES))), rows.per_click
    for bit in range(len(POLICY_NAMES)):
        is_held = (rows.held_by >> bit & 1).astype(bool)
        by_user = np.bincount(user[is_held], surprise[is_held], n_users)
        worth = np.bincount(user[is_held], (surprise * per_click)[is_held], n_users)
        counts = (is_held & rows.is_drawn).sum(), (is_held & is_clicked).sum()
        sums[:, bit] = by_user.sum(), (by_user**2).sum(), *counts, worth.sum(), (worth**2).sum()
    return EarnedSums(n_users, *sums)

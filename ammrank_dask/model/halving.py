"""Choose parameters by successive halving: many on few rows, the better ones on more.

A grid of λ follows the pairs of a user, over which the loss of AMM-rank sums. It goes on beyond an edge that is chosen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

REGULARIZATIONS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
PLANE_LIMITS = (1, 2, 5, 10, 20)
KAPPAS = (1e-3, 5e-3, 2e-2, 1e-1)
CLICKERS_PER_PLANE = (300, 60)
KEPT = 3
"""Each rung keeps 1/KEPT of the settings and trains them on KEPT times as many rows."""
RUNGS = 3
GRID_PAIRS = 500
"""Pairs of a user up to which the grids of λ are as printed: some twelve clicked categories out of fifty."""
WIDENINGS = 4
"""A grid goes on beyond an edge so many times at most."""


@dataclass(frozen=True)
class Trial:
    """A setting measured on one rung: the error of held-out rows after training on `rows` rows."""

    rung: int
    rows: int
    parameters: dict[str, Any]
    error: float
    kept: bool


@dataclass(frozen=True)
class Tuning:
    """What was chosen, and the table it was chosen from."""

    best: dict[str, Any]
    trials: list[Trial]
    popularity: float | None = None
    """Error of ranking everybody by popularity, learned from the rows of the last rung; None: not measured."""
    users: int | None = None
    """Held-out users behind the errors, where they were counted."""

    @property
    def beats_popularity(self) -> bool | None:
        """Whether the best setting is better than popularity on the held-out rows; None: not measured."""
        if self.popularity is None:
            return None
        last = max(trial.rung for trial in self.trials)
        return min(trial.error for trial in self.trials if trial.rung == last) < self.popularity

    def to_text(self) -> str:
        """Return the table, rung by rung, the best first; a star marks what stayed. Popularity stands below it."""
        names = list(self.best)
        lines = [f"{'rung':>4} {'rows':>8} " + " ".join(f"{name:>14}" for name in names) + "   error"]
        for trial in sorted(self.trials, key=lambda trial: (trial.rung, trial.error)):
            values = " ".join(f"{trial.parameters[name]:>14g}" for name in names)
            lines.append(
                f"{trial.rung + 1:>4} {trial.rows:>8,} {values} {trial.error:7.4f}{' *' if trial.kept else ''}"
            )
        if self.popularity is not None:
            lines.append(f"{'popularity':>{13 + 15 * len(names)}} {self.popularity:7.4f}")
        if self.beats_popularity is False:
            lines.append("no setting is better than ranking everybody by popularity")
        return "\n".join(lines)

    @classmethod
    def from_json(
        cls,
        best: dict[str, Any],
        trials: Sequence[Mapping[str, Any]],
        popularity: float | None = None,
        users: int | None = None,
    ) -> Self:
        """Return the table whose rows `to_json` gave."""
        return cls(
            dict(best),
            [
                Trial(row["rung"] - 1, row["rows"], {name: row[name] for name in best}, row["error"], row["kept"])
                for row in trials
            ],
            popularity,
            users,
        )

    def to_json(self) -> list[dict[str, Any]]:
        """Return the table as plain rows."""
        return [
            {"rung": t.rung + 1, "rows": t.rows, **t.parameters, "error": t.error, "kept": t.kept} for t in self.trials
        ]


def make_grid(**values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return every combination of the values.

    Examples
    --------
    >>> make_grid(a=[1, 2], b=[3])
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    for name, options in values.items():
        if not options:
            raise ValueError(f"there must be a value of {name} to try, got none")
    return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]


def count_pairs_by_row(rankings: np.ndarray, n_categories: int) -> np.ndarray:
    """Return the pairs i ≻ k of each row, (n,): m of L categories ranked have m (L − ½ (m + 1)) of them.

    Examples
    --------
    >>> count_pairs_by_row(np.array([[2, 0], [1, -1], [-1, -1]]), 3)
    array([3., 2., 0.])
    """
    ranked = (np.asarray(rankings) >= 0).sum(axis=1)
    return ranked * (n_categories - (ranked + 1) / 2)


def scale_to_pairs(regularizations: Sequence[float], mean_pairs: float) -> list[float]:
    """Return the values of λ to try for users of `mean_pairs` pairs: λ grows with them, in steps of 1, 3, 10.

    λ weighs against a loss that sums the pairs of a user.

    Examples
    --------
    >>> scale_to_pairs([0.001, 0.03], 9_700)
    [0.03, 0.9]
    """
    factor = 10 ** (round(2 * math.log10(max(1.0, mean_pairs / GRID_PAIRS))) / 2)
    return [_round(value * _round(factor, 1)) for value in regularizations]


def value_beyond(values: Sequence[float], chosen: float) -> float | None:
    """Return the value that continues a grid beyond the edge that was chosen; None where it is not at an edge.

    Examples
    --------
    >>> value_beyond([1.0, 3.0, 10.0], 10.0), value_beyond([1.0, 3.0, 10.0], 3.0)
    (33.3, None)
    """
    ordered = sorted(set(values))
    if len(ordered) < 2 or chosen not in (ordered[0], ordered[-1]):
        return None
    edge, inner = ordered[:2] if chosen == ordered[0] else ordered[:-3:-1]
    return _round(edge * edge / inner)


def _round(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")


def halve(
    settings: Sequence[dict[str, Any]],
    n_rows: int,
    measure: Callable[[Sequence[dict[str, Any]], int], Sequence[float]],
    *,
    widens: Sequence[str] = (),
    popularity: float | None = None,
) -> Tuning:
    """Return the best of some settings.

    Parameters
    ----------
    settings
        What to try.
    n_rows
        Rows of the last rung; each rung before it has a third of them.
    measure
        Returns the error of each given setting after training on so many rows.
    widens
        Parameters whose grid goes on beyond its edge, with all rows, while that is better.
    popularity
        The error to be better than; it is kept beside the table.
    """
    trials = []
    left = list(settings)
    for rung in range(RUNGS):
        rows = max(1, n_rows // KEPT ** (RUNGS - 1 - rung))
        errors = measure(left, rows)
        # Equal errors: the earlier setting stays.
        order = sorted(range(len(left)), key=lambda i: (errors[i], i))
        stays = set(order[: 1 if rung == RUNGS - 1 else math.ceil(len(order) / KEPT)])
        trials += [Trial(rung, rows, setting, float(errors[i]), i in stays) for i, setting in enumerate(left)]
        left = [setting for i, setting in enumerate(left) if i in stays]
    best = _widen(left[0], trials, n_rows, measure, widens)
    return Tuning(best, trials, popularity)


def _widen(
    best: dict[str, Any],
    trials: list[Trial],
    n_rows: int,
    measure: Callable[[Sequence[dict[str, Any]], int], Sequence[float]],
    widens: Sequence[str],
) -> dict[str, Any]:
    """Try values beyond the edges that were chosen, add them to the trials, and return the best setting."""
    for _ in range(WIDENINGS):
        beyond = [
            {**best, name: value}
            for name in widens
            if (value := value_beyond([trial.parameters[name] for trial in trials], best[name])) is not None
        ]
        if not beyond:
            break
        before = next(i for i, trial in enumerate(trials) if trial.kept and trial.rung == RUNGS - 1)
        errors = measure(beyond, n_rows)
        least = min(range(len(beyond)), key=lambda i: errors[i])
        is_better = errors[least] < trials[before].error
        trials += [
            Trial(RUNGS - 1, n_rows, setting, float(errors[i]), is_better and i == least)
            for i, setting in enumerate(beyond)
        ]
        if not is_better:
            break
        trials[before] = replace(trials[before], kept=False)
        best = beyond[least]
    return best

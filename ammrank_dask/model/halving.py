"""Choose parameters by successive halving: many on few rows, the better ones on more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

REGULARIZATIONS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
PLANE_LIMITS = (1, 2, 5, 10, 20)
KEPT = 3
"""One of so many stays from rung to rung, and gets so many times the rows."""
RUNGS = 3


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

    def to_text(self) -> str:
        """Return the table, rung by rung, the best first; a star marks what stayed."""
        names = list(self.best)
        lines = [f"{'rung':>4} {'rows':>8} " + " ".join(f"{name:>14}" for name in names) + "   error"]
        for trial in sorted(self.trials, key=lambda trial: (trial.rung, trial.error)):
            values = " ".join(f"{trial.parameters[name]:>14g}" for name in names)
            lines.append(
                f"{trial.rung + 1:>4} {trial.rows:>8,} {values} {trial.error:7.4f}{' *' if trial.kept else ''}"
            )
        return "\n".join(lines)

    @classmethod
    def from_json(cls, best: dict[str, Any], trials: Sequence[Mapping[str, Any]]) -> Self:
        """Return the table of which `to_json` gave the rows."""
        return cls(
            dict(best),
            [
                Trial(row["rung"] - 1, row["rows"], {name: row[name] for name in best}, row["error"], row["kept"])
                for row in trials
            ],
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


def halve(
    settings: Sequence[dict[str, Any]],
    n_rows: int,
    measure: Callable[[Sequence[dict[str, Any]], int], Sequence[float]],
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
    """
    trials = []
    left = list(settings)
    for rung in range(RUNGS):
        is_last = rung == RUNGS - 1
        rows = max(1, n_rows // KEPT ** (RUNGS - 1 - rung))
        errors = measure(left, rows)
        n_kept = 1 if is_last else math.ceil(len(left) / KEPT)
        # Equal errors: the earlier setting stays.
        order = sorted(range(len(left)), key=lambda i: (errors[i], i))
        stays = set(order[:n_kept])
        trials += [Trial(rung, rows, setting, float(errors[i]), i in stays) for i, setting in enumerate(left)]
        left = [setting for i, setting in enumerate(left) if i in stays]
    return Tuning(left[0], trials)

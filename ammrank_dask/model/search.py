"""Search for parameters: a grid of settings, each measured on the same users, and the table of what they are worth.

The first setting stays unless another is better by more than a standard error. A grid of λ follows the pairs of a user,
over which the loss of AMM-rank sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

# The usual value stands first.
REGULARIZATIONS = (1e-3, 1e-5, 1e-4, 1e-2, 1e-1)
PLANE_LIMITS = (5, 1, 2, 10, 20)
KAPPAS = (5e-3, 1e-3, 2e-2, 1e-1)
CLICKERS_PER_PLANE = (300, 60)
GRID_PAIRS = 500
"""Pairs of a user up to which the grids of λ are as printed: some twelve clicked categories out of fifty."""
WIDENINGS = 4
"""A grid goes on beyond an edge so many times at most."""


@dataclass(frozen=True)
class Trial:
    """What a setting is worth: its ε_dis, and by how much it is better than the first setting.

    `gain` and its `standard_error` over users are in ε_dis, or in hits where `hits` of lists were measured.
    """

    parameters: dict[str, Any]
    error: float
    gain: float
    standard_error: float
    hits: float | None = None


@dataclass(frozen=True)
class Tuning:
    """The trials of a search on `users`: by their ε_dis, or by the hits in lists of `k` categories.

    `popularity` is the ε_dis of ranking these users by popularity, where it was measured.

    Examples
    --------
    >>> trials = [Trial({"kappa": 0.005}, 0.12, 0.0, 0.0, 5.5), Trial({"kappa": 0.1}, 0.11, 0.02, 0.03, 5.52)]
    >>> Tuning(trials, users=900, k=10).best  # not better by more than a standard error
    {'kappa': 0.005}
    """

    trials: list[Trial]
    users: int
    popularity: float | None = None
    k: int | None = None

    @property
    def chosen(self) -> Trial:
        """The trial with the largest gain, if that is above its standard error, else the first."""
        better = [trial for trial in self.trials if trial.gain > trial.standard_error]
        return max(better, key=lambda trial: trial.gain, default=self.trials[0])

    @property
    def best(self) -> dict[str, Any]:
        """The parameters of the chosen trial."""
        return self.chosen.parameters

    @property
    def beats_popularity(self) -> bool | None:
        """Whether the chosen setting is better than popularity; None: not measured."""
        return None if self.popularity is None else self.chosen.error < self.popularity

    def to_text(self) -> str:
        """Return the table, the best first; a star marks the chosen setting. Popularity stands below it."""
        names, chosen = sorted(self.best), self.chosen
        hits = "" if self.k is None else f"hits@{self.k}"
        lines = [" ".join(f"{name:>18}" for name in names) + f"   ε_dis  {'versus the first':>20}  {hits}".rstrip()]
        for trial in sorted(self.trials, key=lambda trial: -trial.gain):
            values = " ".join(f"{trial.parameters[name]:>18g}" for name in names)
            gain = f"{trial.gain:+.4f} ± {trial.standard_error:.4f}"
            of_lists = "" if trial.hits is None else f"  {trial.hits:7.3f}"
            lines.append(f"{values} {trial.error:7.4f}  {gain:>20}{of_lists}{' *' if trial is chosen else ''}")
        if self.popularity is not None:
            lines.append(f"{'popularity':>{19 * len(names) - 1}} {self.popularity:7.4f}")
        if self.beats_popularity is False:
            lines.append("no setting is better than ranking everybody by popularity")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps, and `from_json` reads."""
        return {"best": self.best, **asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the tuning that `to_json` wrote."""
        trials = [Trial(**trial) for trial in content["trials"]]
        return cls(trials, content["users"], content["popularity"], content["k"])


def search(
    settings: Sequence[dict[str, Any]],
    measure: Callable[[Sequence[dict[str, Any]]], Sequence[np.ndarray]],
    *,
    widens: Sequence[str] = (),
    popularity: float | None = None,
) -> Tuning:
    """Return what settings are worth.

    Parameters
    ----------
    settings
        What to try; the first one stays unless another is clearly better.
    measure
        Returns the ε_dis of each user, (n,), for each given setting; the users are always the same.
    widens
        Parameters whose grid goes on beyond an edge that is chosen.
    popularity
        The error of ranking the users by popularity.
    """
    errors = list(measure(settings))
    tuning = Tuning(_trials_of(settings, errors[0], errors), len(errors[0]), popularity)
    for _ in range(WIDENINGS):
        beyond = continue_grid([trial.parameters for trial in tuning.trials], tuning.best, widens)
        if not beyond:
            break
        tuning = replace(tuning, trials=[*tuning.trials, *_trials_of(beyond, errors[0], measure(beyond))])
    return tuning


def _trials_of(settings: Sequence[dict[str, Any]], first: np.ndarray, errors: Sequence[np.ndarray]) -> list[Trial]:
    trials = []
    for parameters, found in zip(settings, errors, strict=True):
        gain = first - found
        deviation = float(gain.std(ddof=1)) if len(gain) > 1 else 0.0
        trials.append(Trial(parameters, float(found.mean()), float(gain.mean()), deviation / math.sqrt(len(gain))))
    return trials


def continue_grid(
    tried: Sequence[Mapping[str, Any]], best: Mapping[str, Any], widens: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the settings that continue a grid from its best one beyond an edge, none where that lies inside."""
    beyond = ((name, value_beyond([each[name] for each in tried], best[name])) for name in widens if name in best)
    return [{**best, name: value} for name, value in beyond if value is not None]


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

"""Learn what a score is worth: the chance that the user clicks the category within the label window.

A score only orders the categories of one user, and changes with every training. A chance compares users, categories and
nights. It rises strictly with the score for one category and class of activity, without steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ammrank_dask.kernels.chances import Cells, Curves, chance_lists, chance_pairs, chance_rows
from ammrank_dask.kernels.scoring import Filter
from ammrank_dask.scoring.curve_fit import CurveFit
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.objects.atomic import digest_of

_KNOTS = (0.05, 0.35, 0.65, 0.95)
_WIDTH = 0.7
_CLASSES, _USERS_A_CLASS = 10, 50
"""Classes of activity where there are users enough: 25 a class are learnt by heart."""
_BIN = 0.05
"""Width in z of the bins whose cells are taken as one: a chance changes by at most 2 % within."""
_STEPS = 4
"""Steps of a class of activity, within which cells are taken as one."""
_PRIOR = {"intercept": 5.0, "slope": 50.0, "bend": 10.0, "level": 0.1, "common": 1e-2}
"""How strongly parameters are drawn to the common ones, in units of the log loss of one cell.

The score knows already how often a category is clicked. With a tenth of these, categories that hardly any of 250 users
of a real log clicked got half of the chance that others then had.
"""


@dataclass(frozen=True)
class Chances:
    """Curves from scores to chances, and the `edges` at which one class of activity ends and the next begins.

    `centers` (A,) are the logarithms of the activity at which users are wholly of a class; between two they have parts
    of both. None where a user is of one class alone, as before there were centers.
    """

    curves: Curves
    edges: np.ndarray
    centers: np.ndarray | None = None

    @property
    def n_categories(self) -> int:
        """How many categories there is a curve for."""
        return len(self.curves.intercept)

    def classes_of(self, activity: np.ndarray) -> np.ndarray:
        """Return the class of activity of each user (int64)."""
        return np.searchsorted(self.edges, activity, side="right")

    def positions_of(self, activity: np.ndarray) -> np.ndarray:
        """Return where each user stands among the classes of activity (float64); 1.5 is midway between two."""
        if self.centers is None:
            return self.classes_of(activity).astype(np.float64)
        return np.interp(log_activity(activity), self.centers, np.arange(len(self.centers)))

    def apply(self, scores: np.ndarray, categories: np.ndarray, activity: np.ndarray) -> np.ndarray:
        """Return the chances (float64) of scores for categories by code, of users who are so active; all (n,)."""
        chances = np.empty(len(scores))
        chance_pairs(self.curves, scores, categories, self.positions_of(activity), chances)
        return chances

    def of_lists(
        self, scores: np.ndarray, categories: np.ndarray, indptr: np.ndarray, activity: np.ndarray
    ) -> np.ndarray:
        """Return what `apply` does (float32) of the rows of users: those of u are from `indptr[u]` to `indptr[u + 1]`.

        `activity` (n_users,) is that of the users.
        """
        chances = np.empty(len(scores), np.float32)
        chance_lists(self.curves, scores, categories, indptr, self.positions_of(activity), chances)
        return chances

    def of_users(self, scores: np.ndarray, activity: np.ndarray, bare: np.ndarray, limits: Filter) -> np.ndarray:
        """Return the chances (n, L) float32 of scores (L, n), -1 for what users may not hold.

        Parameters
        ----------
        bare
            (L,) bool: categories without planes. Users may hold them if `limits` keep them.
        """
        chances = np.empty(scores.shape[::-1], np.float32)
        may_hold = bare if limits.keep_bare else np.zeros_like(bare)
        chance_rows(
            self.curves, scores, self.positions_of(activity), may_hold, limits.allowed, limits.group, chances
        )  # fmt: skip
        return chances

    def to_json(self) -> dict[str, Any]:
        """Return the curves as they are stored."""
        listed = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in self.curves._asdict().items()
        }
        centers = {} if self.centers is None else {"centers": self.centers.tolist()}
        return {**listed, "edges": self.edges.tolist(), **centers}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Chances:
        """Return what `to_json` stored."""
        arrays = {name: np.array(value, np.float64) for name, value in content.items()}
        shape = (len(arrays["level"]), len(arrays["knot"]))
        curves = Curves(
            center=float(content["center"]),
            scale=float(content["scale"]),
            width=float(content["width"]),
            intercept=arrays["intercept"],
            slope=arrays["slope"],
            knot=arrays["knot"],
            bend=arrays["bend"].reshape(shape),
            level=arrays["level"],
        )
        return cls(curves, arrays["edges"], arrays.get("centers"))

    def digest(self) -> str:
        """Return a hash of the curves."""
        return digest_of(self.to_json())


def fit_chances(
    scores: np.ndarray,
    clicked: np.ndarray,
    activity: np.ndarray,
    *,
    n_classes: int | None = None,
    n_knots: int = len(_KNOTS),
    prior: Mapping[str, float] | None = None,
) -> Chances:
    """Return chances learnt from users whose clicks are known, also those who clicked nothing.

    All parameters are found together by Newton's method on the log loss. Intercepts and slopes of categories are drawn
    to common ones, so that a rare category follows the others; the bends of classes of activity too.

    Parameters
    ----------
    scores
        (n, L) float32; -inf for a category without planes.
    clicked
        (n, L) bool: whether the user clicked the category in the label window.
    activity
        (n,) how active each user is, in any unit.
    n_classes, n_knots
        Classes of activity of about as many users each, by default one for every 50 users and ten at most, and places
        where the curve may bend.
    prior
        How strongly `intercept`, `slope`, `bend` and `level` are drawn to the common ones, and the `common` ones to 0.
    """
    scores, clicked = np.ascontiguousarray(scores, np.float32), np.ascontiguousarray(clicked, bool)
    if scores.shape != clicked.shape or len(activity) != len(scores):
        raise BadInput(
            f"scores and clicks must have the same shape and a row per user, got {scores.shape}, {clicked.shape} and "
            f"{len(activity)} users"
        )
    if not clicked.any():
        raise TooFewUsers(f"chances need users who clicked something, found none among {len(scores)} users")
    finite = scores[np.isfinite(scores)].astype(np.float64)
    center, scale = (float(finite.mean()), float(finite.std())) if len(finite) else (0.0, 1.0)
    if n_classes is None:
        n_classes = min(_CLASSES, max(1, len(scores) // _USERS_A_CLASS))
    edges = activity_edges(activity, n_classes)
    none = np.zeros(0)
    knots = _knots(finite, center, scale or 1.0, n_knots)
    frame = Curves(center, scale or 1.0, _WIDTH, none, none, knots, none.reshape(0, 0), none)
    centers = class_centers(activity, edges)
    positions = np.interp(log_activity(activity), centers, np.arange(len(centers)))
    cells = gather_cells(scores, clicked, positions, center, scale or 1.0)
    shape = (scores.shape[1], len(edges) + 1)
    return Chances(CurveFit(cells, shape, frame, {**_PRIOR, **(prior or {})}).run(), edges, centers)


def log_activity(activity: np.ndarray) -> np.ndarray:
    """Return the logarithm of one more than each activity; below 0 the same to the other side."""
    values = np.asarray(activity, np.float64)
    return np.sign(values) * np.log1p(np.abs(values))


def class_centers(activity: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the median of the logarithms of activity in every class, which `edges` part.

    Examples
    --------
    >>> np.expm1(class_centers(np.array([0, 1, 2, 7, 8, 9]), np.array([7.0]))).round(6).tolist()
    [1.0, 8.0]
    """
    classes, values = np.searchsorted(edges, activity, side="right"), log_activity(activity)
    return np.array([np.median(values[classes == number]) for number in range(len(edges) + 1)])


def gather_cells(
    scores: np.ndarray, clicked: np.ndarray, positions: np.ndarray, center: float, scale: float, width: float = _BIN
) -> Cells:
    """Return the cells of users and categories, those of a category and of like scores and activity as one.

    A million cells are then as fast to learn from as some hundred thousand. A score of -inf counts as z = 0.

    Parameters
    ----------
    positions
        (n,) where users stand among the classes of activity.

    Examples
    --------
    >>> cells = gather_cells(np.array([[1.0], [1.02], [3.0]]), np.array([[1], [0], [0]]), np.zeros(3), 0.0, 1.0)
    >>> cells.z.tolist(), cells.n_cells.tolist(), cells.clicked.tolist()
    ([1.01, 3.0], [2.0, 1.0], [1.0, 0.0])
    """
    n_categories = scores.shape[1]
    steps = np.floor(np.asarray(positions, np.float64) * _STEPS).astype(np.int64)
    n_steps = int(steps.max(initial=0)) + 1
    z = np.where(np.isfinite(scores), (scores.astype(np.float64) - center) / scale, 0.0)
    bins = np.floor(z / width).astype(np.int64)
    first = bins.min(initial=0)
    n_bins = int(bins.max(initial=0) - first) + 1
    key = ((np.arange(n_categories) * n_steps + steps[:, None]) * n_bins + (bins - first)).ravel()
    values = np.arange(n_categories * n_steps * n_bins) if n_categories * n_steps * n_bins < 8 * z.size else None
    if values is None:  # a score far away from all others makes the bins too many to be counted in one array
        values, key = np.unique(key, return_inverse=True)
    n_cells = np.bincount(key, minlength=len(values))
    kept = np.flatnonzero(n_cells)
    weights = (z, np.asarray(clicked, np.float64), np.broadcast_to(np.asarray(positions)[:, None], z.shape))
    total, n_clicked, stood = (np.bincount(key, weight.ravel(), len(values))[kept] for weight in weights)
    count = n_cells[kept].astype(np.float64)
    return Cells(total / count, count, n_clicked, values[kept] // n_bins // n_steps, stood / count)


def activity_edges(activity: np.ndarray, n_classes: int) -> np.ndarray:
    """Return where classes of about as many users each begin; equal activity is in one class.

    Examples
    --------
    >>> activity_edges(np.array([0, 0, 0, 1, 2, 3, 4, 5]), 4)
    array([2., 4.])
    """
    ordered = np.sort(np.asarray(activity, np.float64))
    starts = ordered[np.arange(1, n_classes) * len(ordered) // n_classes]
    edges = np.unique(starts[starts > ordered[0]])
    return edges


def _knots(finite: np.ndarray, center: float, scale: float, n_knots: int) -> np.ndarray:
    if not len(finite) or not n_knots:
        return np.zeros(0)
    shares = np.interp(np.linspace(0, 1, n_knots), np.linspace(0, 1, len(_KNOTS)), _KNOTS)
    return (np.quantile(finite, shares) - center) / scale

"""Learn what a score is worth: the chance that the user clicks the category within the label window.

A score only orders the categories of one user, and changes with every training. A chance compares users, categories and
nights. It rises strictly with the score for one category and class of activity, without steps. The curves are those
of the least penalised log loss, found by Newton's method within bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ammrank_dask.kernels.chances import (
    Cells,
    Curves,
    chance_lists,
    chance_pairs,
    chance_rows,
    logistic_curvature,
    logistic_sums,
    solve_positive,
)
from ammrank_dask.kernels.scoring import Filter
from ammrank_dask.storage.errors import BadInput, TooFewUsers
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.store.parts import PartFacts, write_part
from ammrank_dask.storage.store.registry import CHANCES
from ammrank_dask.storage.store.runs import Run

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


_FRAME = ("center", "scale", "width")


def save_chances(folder: Path, chances: Chances) -> PartFacts:
    """Write chances as part 0 of a run that is being made, and return what its manifest keeps of it."""
    curves = chances.curves._asdict()
    arrays = {name: np.ascontiguousarray(value) for name, value in curves.items() if name not in _FRAME}
    frame = np.array([curves[name] for name in _FRAME])
    classes = {"edges": np.asarray(chances.edges, np.float64)}
    if chances.centers is not None:
        classes["centers"] = chances.centers
    return write_part(folder, 0, CHANCES, {"frame": frame, **arrays, **classes})


def load_chances(run: Run) -> Chances:
    """Read the chances of a finished run."""
    arrays = run.part(0).read(CHANCES)
    center, scale, width = arrays["frame"].tolist()
    intercept, slope, knot, bend, level = (arrays[name] for name in ("intercept", "slope", "knot", "bend", "level"))
    return Chances(
        Curves(center, scale, width, intercept, slope, knot, bend, level), arrays["edges"], arrays.get("centers")
    )


_LOWEST_SLOPE = 1e-3
_MAX_STEPS, _HALVINGS = 100, 40
_FLAT = 1e-10
"""The largest derivative, a cell, at which the loss counts as lowest."""
_NEAR = 1e-3
"""How far a parameter may be from its bound to be taken there when the loss falls that way."""
_LEAST_FALL = 1e-4
"""The share of what the derivatives promise that the loss has to fall by."""


class CurveFit:
    """The log loss of all parameters as one vector: those of the curves, then the common ones they are drawn to.

    Parameters
    ----------
    cells
        The cells to learn from.
    shape
        Categories, and classes of activity.
    frame
        What the curves fix beforehand: center, scale, width and knots.
    prior
        How strongly `intercept`, `slope`, `bend` and `level` are drawn to the common ones, and the `common` ones to 0.
    """

    def __init__(self, cells: Cells, shape: tuple[int, int], frame: Curves, prior: Mapping[str, float]) -> None:
        self.cells, self.frame = cells, frame
        (n_categories, n_classes), n_knots = shape, len(frame.knot)
        shapes = {
            "intercept": (n_categories,), "slope": (n_categories,), "bend": (n_classes, n_knots), "level": (n_classes,),
            "mean_intercept": (), "mean_slope": (), "mean_bend": (n_knots,),
        }  # fmt: skip
        self.shapes: dict[str, tuple[int, ...]] = shapes
        self.ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
        self.penalty = self._penalty(prior)

    def split(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return views of a vector by the names of the parameters."""
        pieces = np.split(vector, self.ends[:-1])
        return {name: piece.reshape(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def _penalty(self, prior: Mapping[str, float]) -> np.ndarray:
        """Return the matrix P of the penalty ½ vᵀPv: ½ · prior · (parameter − common one)² each, ½ · prior · level²."""
        place = self.split(np.arange(self.ends[-1]))
        penalty = np.zeros((self.ends[-1], self.ends[-1]))
        for name in ("intercept", "slope", "bend"):
            own, mean = place[name], np.broadcast_to(place[f"mean_{name}"], place[name].shape)
            penalty[own, own] += prior[name]
            penalty[own, mean] -= prior[name]
            penalty[mean, own] -= prior[name]
            np.add.at(penalty, (mean, mean), prior[name])
            common = place[f"mean_{name}"]
            penalty[common, common] += prior["common"]
        penalty[place["level"], place["level"]] += prior["level"]
        return penalty

    def curves(self, vector: np.ndarray) -> Curves:
        """Return the curves of a vector of parameters."""
        parts = self.split(vector)
        return self.frame._replace(
            intercept=parts["intercept"], slope=parts["slope"], bend=parts["bend"], level=parts["level"]
        )

    def loss(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the penalised loss and its gradient."""
        gradient = np.zeros(len(vector))
        slopes = self.split(gradient)
        total = logistic_sums(
            self.curves(vector), self.cells, slopes["intercept"], slopes["slope"], slopes["bend"], slopes["level"]
        )
        drawn = (self.penalty * vector).sum(axis=1)
        return float(total + 0.5 * (vector * drawn).sum()), gradient + drawn

    def curvature(self, vector: np.ndarray) -> np.ndarray:
        """Return the second derivatives of the penalised loss."""
        total = self.penalty.copy()
        logistic_curvature(self.curves(vector), self.cells, total)
        return total

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Return where to begin, at the click shares of the categories, and the lowest value of every parameter."""
        start, lowest = np.zeros(self.ends[-1]), np.full(self.ends[-1], -np.inf)
        parts, bounds = self.split(start), self.split(lowest)
        users, clicked = (
            np.bincount(self.cells.category, weights, len(parts["intercept"]))
            for weights in (self.cells.n_cells, self.cells.clicked)
        )
        share = (clicked / users).clip(1 / (users + 2), 1 - 1 / (users + 2))
        parts["intercept"][:] = np.log(share / (1 - share))
        parts["mean_intercept"][...] = parts["intercept"].mean()
        parts["slope"][:] = parts["mean_slope"][...] = 0.5
        bounds["slope"][:] = _LOWEST_SLOPE
        bounds["bend"][:] = 0.0
        return start, lowest

    def run(self) -> Curves:
        """Return the curves of the lowest loss."""
        return self.curves(self.find())

    def find(self) -> np.ndarray:
        """Return the parameters of the lowest loss.

        A step goes to where the loss would be lowest if it were quadratic, parameters at a bound against which the loss
        falls left aside (projected Newton steps after Bertsekas, 1982); it is halved until the loss falls enough.
        """
        vector, lowest = self.start()
        enough = _FLAT * self.cells.n_cells.sum()
        value, gradient = self.loss(vector)
        for _ in range(_MAX_STEPS):
            is_held = (vector <= lowest + _NEAR) & (gradient > 0)
            reach = np.where(is_held, np.minimum(gradient, vector - lowest), np.abs(gradient))
            if reach.max() <= enough:
                break
            step = self._step(vector, gradient, is_held)
            for halving in range(_HALVINGS):
                candidate = np.maximum(vector + 0.5**halving * step, lowest)
                lower, slopes = self.loss(candidate)
                if lower <= value - _LEAST_FALL * (gradient * (vector - candidate)).sum():
                    break
            else:
                break  # as low as numbers of 64 bits can tell
            vector, value, gradient = candidate, lower, slopes
        return vector

    def _step(self, vector: np.ndarray, gradient: np.ndarray, is_held: np.ndarray) -> np.ndarray:
        """Return Newton's step of the parameters that are free, and for the others the way to their bound."""
        curvature = self.curvature(vector)
        step = -gradient / np.diagonal(curvature)
        free = np.flatnonzero(~is_held)
        moved = -gradient[free]
        solve_positive(curvature[np.ix_(free, free)], moved)
        step[free] = moved
        return step

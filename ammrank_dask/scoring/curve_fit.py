"""Find the curves from scores to chances with the least penalised log loss, by Newton's method within bounds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ammrank_dask.kernels.chances import Cells, Curves, logistic_curvature, logistic_sums, solve_positive

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

"""Minimise many smooth objectives at once with L-BFGS, one for each column, sharing every pass over the data.

Each column has its own step and its own curvature. scipy's L-BFGS-B, which takes the columns as one long point, needs
three to four times as many passes.
"""

from collections.abc import Callable

import numpy as np

Objective = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Takes points (d, L) and returns values (L,) and gradients (d, L), column by column."""

_MEMORY = 10
_SUFFICIENT = 1e-4
_MAX_HALVINGS = 30


def minimize_columns(
    objective: Objective, start: np.ndarray, *, tolerance: float, max_iterations: int
) -> tuple[np.ndarray, int, bool]:
    """Return the points, the steps made, and whether every column converged: no gradient component above `tolerance`.

    Examples
    --------
    >>> def objective(x):
    ...     return ((x - 3.0) ** 2).sum(axis=0), 2 * (x - 3.0)
    >>> point, _, converged = minimize_columns(objective, np.zeros((2, 1)), tolerance=1e-6, max_iterations=50)
    >>> point.round(4).ravel().tolist(), converged
    ([3.0, 3.0], True)
    """
    point = start.copy()
    value, gradient = objective(point)
    history: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for iteration in range(max_iterations):
        active = np.abs(gradient).max(axis=0) > tolerance
        if not active.any():
            return point, iteration, True
        direction = np.where(active, -_apply_inverse(history, gradient), 0.0)
        slope = (direction * gradient).sum(axis=0)
        step = np.ones(len(value))
        if not history:
            step = np.minimum(1.0, 1.0 / np.maximum(np.abs(gradient).sum(axis=0), 1e-300))
        for _ in range(_MAX_HALVINGS):
            new_point = point + step * direction
            new_value, new_gradient = objective(new_point)
            # Values are sums of float32 terms: differences below their noise are accepted.
            noise = 1e-7 * np.abs(value)
            short = active & (new_value > value + _SUFFICIENT * step * slope + noise)
            if not short.any():
                break
            step[short] *= 0.5
        moved, turned = new_point - point, new_gradient - gradient
        curvature = (moved * turned).sum(axis=0)
        usable = curvature > 1e-12 * (turned**2).sum(axis=0)
        inverse = np.divide(1.0, curvature, out=np.zeros_like(curvature), where=usable)
        history = [*history[1 - _MEMORY :], (moved, turned, inverse)]
        point, value, gradient = new_point, new_value, new_gradient
    return point, max_iterations, bool((np.abs(gradient).max(axis=0) <= tolerance).all())


def _apply_inverse(history: list[tuple[np.ndarray, np.ndarray, np.ndarray]], gradient: np.ndarray) -> np.ndarray:
    """Return the inverse Hessian's estimate times the gradient, column by column (the two-loop recursion)."""
    result = gradient.copy()
    shares = []
    for moved, turned, inverse in reversed(history):
        share = inverse * (moved * result).sum(axis=0)
        result -= share * turned
        shares.append(share)
    scale = np.ones(gradient.shape[1])
    for _, turned, inverse in history:
        norm = (turned**2).sum(axis=0)
        scale = np.where(inverse > 0, 1 / np.maximum(inverse * norm, 1e-300), scale)
    result *= scale
    for (moved, turned, inverse), share in zip(history, reversed(shares), strict=True):
        result += (share - inverse * (turned * result).sum(axis=0)) * moved
    return result

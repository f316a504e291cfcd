"""Turn scores into chances: a logistic curve by category, bent alike for all categories by how active a user is."""

import math
from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.jit import kernel

_BLOCK = 64


class Curves(NamedTuple):
    """What a score z = (score − center)/scale of category c is worth to a user of class of activity a.

    logit = intercept[c] + slope[c]·z + Σ_j bend[a, j]·s((z − knot[j])/width) + level[a], where s(t) = t/(1 + |t|) rises
    smoothly. Slopes are above 0 and bends not below, so the chance rises with the score. A score of -inf, of a category
    without planes, counts as z = 0. A user at a = 1.25 has three parts of class 1 and one of class 2.
    """

    center: float
    scale: float
    width: float
    intercept: np.ndarray
    slope: np.ndarray
    knot: np.ndarray
    bend: np.ndarray
    level: np.ndarray


@kernel
def mix_classes(curves, activity, out_bend):
    """Write the bends (knots,) of a user between two classes of activity, and return the level."""
    below = min(np.int64(activity), curves.level.shape[0] - 1)
    above = min(below + 1, curves.level.shape[0] - 1)
    share = activity - below
    for j in range(curves.knot.shape[0]):
        out_bend[j] = (1.0 - share) * curves.bend[below, j] + share * curves.bend[above, j]
    return (1.0 - share) * curves.level[below] + share * curves.level[above]


@kernel
def chance_at(curves, score, category, level, bend):
    """Return the chance of one score for a user with this level and these bends."""
    z = (np.float64(score) - curves.center) / curves.scale if score > -np.inf else 0.0
    logit = curves.intercept[category] + curves.slope[category] * z + level
    for j in range(curves.knot.shape[0]):
        t = (z - curves.knot[j]) / curves.width
        logit += bend[j] * t / (1.0 + abs(t))
    return logistic(logit)


@kernel
def logistic(logit):
    """Return 1/(1 + exp(−logit))."""
    if logit >= 0.0:
        return 1.0 / (1.0 + math.exp(-min(logit, 700.0)))
    odds = math.exp(max(logit, -700.0))
    return odds / (1.0 + odds)


@kernel
def chance_pairs(curves, score, category, activity, out_chance):
    """Write the chances of pairs; all are (n,)."""
    bend = np.empty(curves.knot.shape[0], np.float64)
    for pair in range(score.shape[0]):
        level = mix_classes(curves, activity[pair], bend)
        out_chance[pair] = chance_at(curves, score[pair], category[pair], level, bend)


@kernel
def chance_lists(curves, score, category, indptr, activity, out_chance):
    """Write the chances (n,) float32 of the rows of users: those of user u are from `indptr[u]` to `indptr[u + 1]`."""
    n_rows, n_knots = score.shape[0], curves.knot.shape[0]
    mixed, level, user = np.empty(n_knots, np.float64), 0.0, -1
    bend = np.empty((n_knots, _BLOCK), np.float64)
    z, logit = np.empty(_BLOCK, np.float64), np.empty(_BLOCK, np.float64)
    for first in range(0, n_rows, _BLOCK):
        n = min(n_rows - first, _BLOCK)
        for i in range(n):
            row = np.uintp(first + i)
            if user < 0 or indptr[user + 1] <= first + i:
                user += 1
                while indptr[user + 1] <= first + i:
                    user += 1
                level = mix_classes(curves, activity[user], mixed)
            code = np.uintp(category[row])
            z[i] = (np.float64(score[row]) - curves.center) / curves.scale if score[row] > -np.inf else 0.0
            logit[i] = curves.intercept[code] + curves.slope[code] * z[i] + level
            for j in range(n_knots):
                bend[j, i] = mixed[j]
        # One step after the other for all rows of the block: this loop computes several rows side by side.
        for j in range(n_knots):
            knot = curves.knot[j]
            for i in range(n):
                t = (z[i] - knot) / curves.width
                logit[i] += bend[j, i] * t / (1.0 + abs(t))
        for i in range(n):
            out_chance[first + i] = np.float32(logistic(logit[i]))


@kernel
def chance_rows(curves, scores, activity, bare, allowed, group, out_chance):
    """Write the chances of users for all categories, -1 for what they may not hold.

    Parameters
    ----------
    scores
        (L, n) float32, -inf for what a user may not hold and for categories without planes.
    activity
        (n,) float64, the class of activity of each user, or between two.
    bare
        (L,) bool: categories without planes that users may hold all the same.
    allowed, group
        (n_groups, L) bool by the group of each user (n,), which says who may hold a category without planes; with no
        rows everybody may.
    out_chance
        (n, L) float32.
    """
    n_categories, n_users = scores.shape
    n_knots = curves.knot.shape[0]
    mixed = np.empty(n_knots, np.float64)
    bend = np.empty((n_knots, _BLOCK), np.float64)
    level, z, logit = np.empty(_BLOCK, np.float64), np.empty(_BLOCK, np.float64), np.empty(_BLOCK, np.float64)
    for first in range(0, n_users, _BLOCK):
        n = min(n_users - first, _BLOCK)
        for i in range(n):
            level[i] = mix_classes(curves, activity[first + i], mixed)
            bend[:, i] = mixed
        for category in range(n_categories):
            # One step after the other for all users of the block: these loops compute several users side by side.
            intercept, slope = curves.intercept[category], curves.slope[category]
            for i in range(n):
                score = scores[category, first + i]
                z[i] = (np.float64(score) - curves.center) / curves.scale if score > -np.inf else 0.0
                logit[i] = intercept + slope * z[i] + level[i]
            for j in range(n_knots):
                knot = curves.knot[j]
                for i in range(n):
                    t = (z[i] - knot) / curves.width
                    logit[i] += bend[j, i] * t / (1.0 + abs(t))
            for i in range(n):
                user = first + i
                may_hold = scores[category, user] > -np.inf
                if not may_hold and bare[category]:
                    may_hold = allowed.shape[0] == 0 or allowed[np.uintp(group[user]), category]
                out_chance[user, category] = np.float32(logistic(logit[i]) if may_hold else -1.0)


class Cells(NamedTuple):
    """Cells of users and categories that are alike, (m,) each: their mean z, how many they are, how many were clicked.

    `category` and `activity`, a class or between two, are theirs.
    """

    z: np.ndarray
    n_cells: np.ndarray
    clicked: np.ndarray
    category: np.ndarray
    activity: np.ndarray


@kernel
def logistic_sums(curves, cells, out_intercept, out_slope, out_bend, out_level):
    """Return the log loss of all cells, and add its derivatives by the parameters of the curves.

    Parameters
    ----------
    cells
        As `Cells` has them.
    out_intercept, out_slope, out_bend, out_level
        As in `Curves`, added to.
    """
    n_knots = curves.knot.shape[0]
    basis, bend = np.empty(n_knots, np.float64), np.empty(n_knots, np.float64)
    loss = 0.0
    for cell in range(cells.z.shape[0]):
        z, category = cells.z[cell], cells.category[cell]
        logit = mix_classes(curves, cells.activity[cell], bend)
        logit += curves.intercept[category] + curves.slope[category] * z
        for j in range(n_knots):
            t = (z - curves.knot[j]) / curves.width
            basis[j] = t / (1.0 + abs(t))
            logit += bend[j] * basis[j]
        odds = math.exp(-abs(logit))
        chance = 1.0 / (1.0 + odds) if logit >= 0.0 else odds / (1.0 + odds)
        loss += cells.n_cells[cell] * (math.log1p(odds) + max(logit, 0.0)) - cells.clicked[cell] * logit
        error = cells.n_cells[cell] * chance - cells.clicked[cell]
        out_intercept[category] += error
        out_slope[category] += error * z
        below = min(np.int64(cells.activity[cell]), curves.level.shape[0] - 1)
        above = min(below + 1, curves.level.shape[0] - 1)
        share = cells.activity[cell] - below
        out_level[below] += (1.0 - share) * error
        out_level[above] += share * error
        for j in range(n_knots):
            out_bend[below, j] += (1.0 - share) * error * basis[j]
            out_bend[above, j] += share * error * basis[j]
    return loss


@kernel
def logistic_curvature(curves, cells, out_curvature):
    """Add the second derivatives of the log loss of all cells by the parameters of the curves, one after the other.

    Parameters
    ----------
    out_curvature
        (n, n) by intercepts, slopes, bends (those of a class together) and levels, in this order, added to.
    """
    n_categories, n_knots = curves.intercept.shape[0], curves.knot.shape[0]
    first_bend, first_level = 2 * n_categories, 2 * n_categories + curves.bend.size
    place, factor = np.empty(4 + 2 * n_knots, np.uintp), np.empty(4 + 2 * n_knots, np.float64)
    bend = np.empty(n_knots, np.float64)
    for cell in range(cells.z.shape[0]):
        z, category = cells.z[cell], cells.category[cell]
        below = min(np.int64(cells.activity[cell]), curves.level.shape[0] - 1)
        above = min(below + 1, curves.level.shape[0] - 1)
        share = cells.activity[cell] - below
        place[0], factor[0] = category, 1.0
        place[1], factor[1] = n_categories + category, z
        place[2], factor[2] = first_level + below, 1.0 - share
        place[3], factor[3] = first_level + above, share
        logit = mix_classes(curves, cells.activity[cell], bend)
        logit += curves.intercept[category] + curves.slope[category] * z
        for j in range(n_knots):
            t = (z - curves.knot[j]) / curves.width
            basis = t / (1.0 + abs(t))
            logit += bend[j] * basis
            at = 4 + 2 * j
            place[at], factor[at] = first_bend + below * n_knots + j, (1.0 - share) * basis
            place[at + 1], factor[at + 1] = first_bend + above * n_knots + j, share * basis
        odds = math.exp(-abs(logit))
        weight = cells.n_cells[cell] * odds / ((1.0 + odds) * (1.0 + odds))
        for one in range(place.shape[0]):
            weighted = weight * factor[one]
            for other in range(place.shape[0]):
                out_curvature[place[one], place[other]] += weighted * factor[other]


@kernel
def solve_positive(matrix, out_vector):
    """Solve a system of a positive definite matrix (n, n), which is written over; `out_vector` (n,) has the right side.

    Cholesky's method in one order of additions: the bits do not depend on how many threads a library would take. Zeros
    of a row are left out: most parameters of a category have nothing to do with those of another.
    """
    n = matrix.shape[0]
    filled = np.empty(n, np.int64)
    for row in range(n):
        n_filled = 0
        for column in range(row):
            total = matrix[row, column]
            for at in range(n_filled):
                total -= matrix[row, filled[at]] * matrix[column, filled[at]]
            matrix[row, column] = total / matrix[column, column]
            if total != 0.0:
                filled[n_filled] = column
                n_filled += 1
        total = matrix[row, row]
        for at in range(n_filled):
            total -= matrix[row, filled[at]] * matrix[row, filled[at]]
        matrix[row, row] = math.sqrt(total)
    for row in range(n):
        for i in range(row):
            out_vector[row] -= matrix[row, i] * out_vector[i]
        out_vector[row] /= matrix[row, row]
    for row in range(n - 1, -1, -1):
        for i in range(row + 1, n):
            out_vector[row] -= matrix[i, row] * out_vector[i]
        out_vector[row] /= matrix[row, row]

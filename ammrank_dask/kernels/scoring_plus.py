"""Score CSR rows with AMM-rank-plus in one pass: prior, own term, memberships and planes, then the best categories."""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.jit import kernel
from ammrank_dask.kernels.memberships import Centers
from ammrank_dask.kernels.own_term import own_value
from ammrank_dask.kernels.plus_rows import OwnCells, write_rows
from ammrank_dask.kernels.scoring import LANES, Panels, mask_scores, pick_best, reduce_planes, score_planes, write_row


class PlusPanels(NamedTuple):
    """A model of AMM-rank-plus in the order in which it is scored.

    `planes` are over the columns of the store and the memberships. By place in the tie order: `prior` float32,
    `has_zero` where the category also has a zero plane. `place_of_category` (L,) by code. `own_weight` is (n_kinds,
    2 + most knots) float32, as training has it.
    """

    planes: Panels
    prior: np.ndarray
    has_zero: np.ndarray
    place_of_category: np.ndarray
    own_weight: np.ndarray
    own: OwnCells
    centers: Centers

    @property
    def tie_order(self) -> np.ndarray:
        """All category codes, the one to prefer among equal scores first."""
        return self.planes.tie_order


@kernel
def score_plus_top_k(data, indices, indptr, panels, kept, out_category, out_score, out_all):
    """Write the k best categories of each row, and all scores when there is room for them.

    Parameters and results are those of `scoring.score_top_k`; every score is finite before `kept` masks it.
    """
    n_rows = indptr.shape[0] - 1
    planes = panels.planes
    n_categories = planes.tie_order.shape[0]
    k = out_category.shape[1]
    n_planes = planes.weights.shape[0] * planes.weights.shape[2]
    room = 0
    for first in range(0, n_rows, LANES):
        room = max(room, indptr[min(n_rows, first + LANES)] - indptr[first])
    room += LANES * panels.centers.n_nearest.sum()
    z_indptr = np.empty(LANES + 1, np.int64)
    z_indices = np.empty(room, np.int32)
    z_data = np.empty(room, np.float32)
    knot = np.empty(room, np.float32)
    own_scale = np.empty((LANES, n_groups(panels.own)), np.float32)
    plane_score = np.empty((LANES, n_planes), np.float32)
    best = np.empty(max(1, planes.place_of_slot.shape[0]), np.float32)
    scores = np.full((n_categories, LANES), np.float32(-np.inf), np.float32)
    top_score = np.empty((k, LANES), np.float32)
    top_place = np.empty((k, LANES), np.int32)
    for first in range(0, n_rows, LANES):
        stop = min(n_rows, first + LANES)
        n_lanes = stop - first
        write_rows(
            data, indices, indptr[first : stop + 1], panels.centers, panels.own, z_indptr, z_indices, z_data, knot,
            own_scale,
        )  # fmt: skip
        score_planes(z_data, z_indices, z_indptr, 0, n_lanes, planes, plane_score)
        for lane in range(n_lanes):
            for place in range(n_categories):
                scores[place, lane] = np.float32(0.0)
            reduce_planes(plane_score, np.uintp(lane), planes, best)
            for slot in range(planes.place_of_slot.shape[0]):
                slot_place = np.uintp(planes.place_of_slot[slot])
                if not (panels.has_zero[slot_place] and best[slot] < 0):
                    scores[slot_place, lane] = best[slot]
            for place in range(n_categories):
                scores[place, lane] += panels.prior[place]
            _add_own(panels, z_data, z_indices, z_indptr, knot, own_scale, lane, scores)
        mask_scores(planes, kept, first, stop, scores)
        if out_all.shape[0] > 0:
            for place in range(n_categories):
                code = np.uintp(planes.tie_order[place])
                for row in range(first, stop):
                    out_all[code, row] = scores[place, row - first]
        pick_best(scores, top_score, top_place)
        for row in range(first, stop):
            write_row(top_score, top_place, row - first, row, planes, kept, out_category, out_score)


@kernel
def n_groups(own):
    """Return the number of groups of own columns."""
    count = 0
    for kind in range(own.group.shape[0]):
        count = max(count, own.group[kind] + 1)
    return count


@kernel
def _add_own(panels, data, indices, indptr, knot, own_scale, lane, scores):
    """Add the own term of one lane to its scores."""
    own = panels.own
    if panels.own_weight.shape[0] == 0:
        return
    for cell in range(np.uintp(indptr[lane]), np.uintp(indptr[lane + 1])):
        column = np.uintp(indices[cell])
        kind = own.kind[column]
        if kind >= 0:
            linear = data[cell] * own_scale[lane, own.group[kind]]
            place = panels.place_of_category[own.category[column]]
            scores[place, lane] += own_value(panels.own_weight, kind, linear, knot[cell])

"""Score CSR rows with AMM-rank-plus in one pass: prior, own term, memberships and planes, then the best categories."""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.jit import kernel
from ammrank_dask.kernels.memberships import Centers, find_memberships, make_work
from ammrank_dask.kernels.own_term import N_KNOTS
from ammrank_dask.kernels.plus_rows import CHAINS, group_columns, measure_row
from ammrank_dask.kernels.scoring import (
    LANES,
    Panels,
    add_to_planes,
    mask_scores,
    pick_best,
    reduce_planes,
    write_row,
)


class OwnPieces(NamedTuple):
    """The own term as pieces of straight lines.

    `kind` and `place` (d,) say of which kind a column is, -1 for none, and where its category stands in the tie order.
    `group` (n_kinds,) is the event group of a kind, `linear` (n_kinds,) β, `knots` (n_kinds, 6) rise, infinite from the
    first one on that does not count. With n of the knots not above it, a value v ≠ 0 adds start + slope (v − before),
    where `pieces` (n_kinds, 7, 3) float32 has before, start and slope of each n, and `lift` (d,) float32 of its column.
    """

    kind: np.ndarray
    place: np.ndarray
    group: np.ndarray
    linear: np.ndarray
    knots: np.ndarray
    pieces: np.ndarray
    lift: np.ndarray


class PlusPanels(NamedTuple):
    """A model of AMM-rank-plus in the order in which it is scored.

    `planes` are over the columns of the store, `member_weights` (n_panels, centres, width) those of the same planes
    over the memberships. `prior` float32 is by place in the tie order; `floor` (n_slots,) float32 is 0 where the
    category also has a zero plane, else -inf.
    """

    planes: Panels
    member_weights: np.ndarray
    prior: np.ndarray
    floor: np.ndarray
    own: OwnPieces
    centers: Centers

    @property
    def tie_order(self) -> np.ndarray:
        """All category codes, the one to prefer among equal scores first."""
        return self.planes.tie_order


@kernel
def score_plus_top_k(data, indices, indptr, panels, members, kept, out_category, out_score, out_all):
    """Write the k best categories of each row, and all scores when there is room for them.

    Parameters and results are those of `scoring.score_top_k`; every score is finite before `kept` masks it. `members`
    are the memberships of the rows; they are found where it has no rows.
    """
    n_rows = indptr.shape[0] - 1
    planes, centers = panels.planes, panels.centers
    n_categories, k = planes.tie_order.shape[0], out_category.shape[1]
    n_members = centers.n_nearest.sum()
    work = make_work(centers)
    n_groups = _count_groups(panels.own.group)
    column_group = group_columns(panels.own.kind, panels.own.group, n_groups)
    member_indptr = np.zeros(LANES + 1, np.int64)
    member, member_weight = np.zeros(LANES * n_members, np.int32), np.zeros(LANES * n_members, np.float32)
    inverse, base = np.zeros(LANES, np.float32), np.zeros((LANES, n_categories), np.float32)
    plane_score = np.zeros((LANES, max(_room(planes.weights), _room(panels.member_weights))), np.float32)
    best = np.empty(max(1, planes.place_of_slot.shape[0]), np.float32)
    scores = np.full((n_categories, LANES), np.float32(-np.inf), np.float32)
    top_score, top_place = np.empty((k, LANES), np.float32), np.empty((k, LANES), np.int32)
    for first in range(0, n_rows, LANES):
        stop = min(n_rows, first + LANES)
        _score_own(data, indices, indptr, first, stop, panels.own, panels.prior, column_group, n_groups, inverse, base)
        plane_score[:] = 0.0
        add_to_planes(data, indices, indptr, first, stop, planes.weights, plane_score)
        _scale_to_unit(planes, inverse, stop - first, centers.unit_rows, plane_score)
        if members.indptr.shape[0] > 1:
            add_to_planes(
                members.weight, members.center, members.indptr, first, stop, panels.member_weights, plane_score
            )
        elif n_members > 0:
            find_memberships(
                data, indices, indptr, first, stop, centers, inverse, work, member_indptr, member, member_weight
            )
            add_to_planes(member_weight, member, member_indptr, 0, stop - first, panels.member_weights, plane_score)
        for lane in range(np.uintp(stop - first)):
            reduce_planes(plane_score, lane, planes, best)
            for slot in range(planes.place_of_slot.shape[0]):
                base[lane, np.uintp(planes.place_of_slot[slot])] += max(best[slot], panels.floor[slot])
            for place in range(n_categories):
                scores[place, lane] = base[lane, place]
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
def _room(weights):
    return weights.shape[0] * weights.shape[2]


@kernel
def _scale_to_unit(planes, inverse, n_lanes, unit_rows, plane_score):
    """Make of the products with stored rows those with unit rows, and add the constant."""
    n_panels, n_weights, width = planes.weights.shape
    bias, bias_row = np.float32(planes.bias), np.uintp(n_weights - 1)
    weights = planes.weights
    for number in range(np.uintp(n_panels)):
        offset = number * np.uintp(width)
        for lane in range(np.uintp(n_lanes)):
            factor = inverse[lane] if unit_rows else np.float32(1.0)
            for plane in range(np.uintp(width)):
                scaled = plane_score[lane, offset + plane] * factor
                plane_score[lane, offset + plane] = scaled + bias * weights[number, bias_row, plane]


@kernel
def _score_own(data, indices, indptr, first, stop, own, prior, column_group, n_groups, out_inverse, out_base):
    """Write 1 / ‖x‖ of some rows, 0 for an empty one, and prior + own term of all categories, by place."""
    own_kind, own_place, own_group, linear = own.kind, own.place, own.group, own.linear
    knots, pieces, lift = own.knots, own.pieces, own.lift
    squares, scale = np.zeros((CHAINS, n_groups + 1)), np.zeros((stop - first, n_groups), np.float32)
    slope = np.zeros(own_group.shape[0], np.float32)
    rows = indptr[first : stop + 1]
    for lane in range(stop - first):
        out_inverse[lane] = measure_row(data, indices, rows, lane, column_group, squares, scale)
        for place in range(prior.shape[0]):
            out_base[lane, place] = prior[place]
        for kind in range(own_group.shape[0]):
            slope[kind] = linear[kind] * scale[lane, np.uintp(own_group[kind])]
        for cell in range(np.uintp(rows[lane]), np.uintp(rows[lane + 1])):
            column = np.uintp(indices[cell])
            if own_kind[column] >= 0 and data[cell] != 0:
                own_of = np.uintp(own_kind[column])
                n = np.uintp(0)
                for knot in range(N_KNOTS):
                    n += np.uintp(1) if data[cell] >= knots[own_of, knot] else np.uintp(0)
                hats = pieces[own_of, n, 1] + pieces[own_of, n, 2] * (data[cell] - pieces[own_of, n, 0])
                out_base[lane, np.uintp(own_place[column])] += slope[own_of] * data[cell] + hats + lift[column]


@kernel
def _count_groups(own_group):
    """Return the number of groups of own columns."""
    count = 0
    for kind in range(own_group.shape[0]):
        count = max(count, own_group[kind] + 1)
    return count

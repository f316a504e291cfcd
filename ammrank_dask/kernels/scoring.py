"""Score CSR rows and keep the best categories of each, without a matrix of rows × categories."""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.jit import kernel

LANES = 128
"""Rows that are scored together: so many use a panel of weights before the next one takes its place in the cache."""


class Panels(NamedTuple):
    """The planes of a model in the order in which they are scored.

    Planes are sorted by their number within the category, then by `slot`; slots are the categories that have planes,
    those with the most first. So the planes of number j are a run of the first `run_length[j]` slots, and a maximum
    over the planes of each category is an element-wise maximum of runs.

    `weights` is (n_panels, d + 1, width) float32, the bias as last row, zeros behind the last plane. `place_of_slot`
    (n_slots,) is where the slot's category stands in `tie_order` (L,), all category codes, the one to prefer among
    equal scores first. `bare` holds the places of the categories without planes, ascending.
    """

    weights: np.ndarray
    run_length: np.ndarray
    place_of_slot: np.ndarray
    tie_order: np.ndarray
    bare: np.ndarray
    bias: float


class Filter(NamedTuple):
    """What rows may hold: `allowed` (n_groups, L) by category code, and `group` (n_rows,) the group of each row.

    With no rows of `allowed` everything is allowed. `min_score` is the lowest score to keep; with `keep_bare`, rows
    that are not full go on with categories without planes.
    """

    allowed: np.ndarray
    group: np.ndarray
    min_score: float
    keep_bare: bool


@kernel
def score_top_k(data, indices, indptr, panels, kept, out_category, out_score, out_all):
    """Write the k best categories of each row, and all scores when there is room for them.

    Parameters
    ----------
    data, indices, indptr
        The CSR rows, float32 values.
    panels, kept
        The model, and what rows may hold.
    out_category, out_score
        (n_rows, k), best first, equal scores in the tie order; -1 and -inf where a row has fewer.
    out_all
        (L, n_rows) float32 by category code, -inf for what is not allowed and for categories without planes; (0, 0)
        to keep none.
    """
    n_rows = indptr.shape[0] - 1
    n_categories = panels.tie_order.shape[0]
    k = out_category.shape[1]
    n_planes = panels.weights.shape[0] * panels.weights.shape[2]
    plane_score = np.empty((LANES, n_planes), np.float32)
    best = np.empty(max(1, panels.place_of_slot.shape[0]), np.float32)
    scores = np.full((n_categories, LANES), np.float32(-np.inf), np.float32)
    top_score = np.empty((k, LANES), np.float32)
    top_place = np.empty((k, LANES), np.int32)
    for first in range(0, n_rows, LANES):
        stop = min(n_rows, first + LANES)
        score_planes(data, indices, indptr, first, stop, panels, plane_score)
        for row in range(first, stop):
            reduce_planes(plane_score, np.uintp(row - first), panels, best)
            for slot in range(panels.place_of_slot.shape[0]):
                scores[np.uintp(panels.place_of_slot[slot]), row - first] = best[slot]
        mask_scores(panels, kept, first, stop, scores)
        if out_all.shape[0] > 0:
            for place in range(n_categories):
                code = np.uintp(panels.tie_order[place])
                for row in range(first, stop):
                    out_all[code, row] = scores[place, row - first]
        pick_best(scores, top_score, top_place)
        for row in range(first, stop):
            write_row(top_score, top_place, row - first, row, panels, kept, out_category, out_score)


@kernel
def score_planes(data, indices, indptr, first, stop, panels, out_plane_score):
    """Write the score of every plane for the rows from `first` to `stop`, one panel after the other."""
    # Slices would be counted as references in the inner loops; offsets cost nothing.
    n_panels, n_weights, width = panels.weights.shape
    constant = np.float32(panels.bias)
    bias_row = np.uintp(n_weights - 1)
    for number in range(np.uintp(n_panels)):
        offset = number * np.uintp(width)
        for row in range(first, stop):
            lane = np.uintp(row - first)
            for plane in range(np.uintp(width)):
                out_plane_score[lane, offset + plane] = constant * np.float32(panels.weights[number, bias_row, plane])
            _add_products(
                data, indices, np.uintp(indptr[row]), np.uintp(indptr[row + 1]), panels.weights, number, lane, offset,
                out_plane_score,
            )  # fmt: skip


@kernel
def add_to_planes(data, indices, indptr, first, stop, weights, plane_score):
    """Add the products of the rows from `first` to `stop` with panels of weights to the scores of the planes."""
    n_panels, _, width = weights.shape
    for number in range(np.uintp(n_panels)):
        for row in range(first, stop):
            _add_products(
                data, indices, np.uintp(indptr[row]), np.uintp(indptr[row + 1]), weights, number,
                np.uintp(row - first), number * np.uintp(width), plane_score,
            )  # fmt: skip


@kernel
def _add_products(data, indices, start, stop, weights, panel, lane, offset, out):
    """Add value × weights for each non-zero in turn; the order of the additions of a plane is that of the non-zeros.

    Weights are float32, or whole numbers of 16 bits, which take half the way from the cache.
    """
    width = np.uintp(weights.shape[2])
    cell = start
    # Eight non-zeros at a time, so that the scores pass through memory once for eight rows of weights.
    while cell + np.uintp(8) <= stop:
        f0, f1 = np.uintp(indices[cell]), np.uintp(indices[cell + np.uintp(1)])
        f2, f3 = np.uintp(indices[cell + np.uintp(2)]), np.uintp(indices[cell + np.uintp(3)])
        f4, f5 = np.uintp(indices[cell + np.uintp(4)]), np.uintp(indices[cell + np.uintp(5)])
        f6, f7 = np.uintp(indices[cell + np.uintp(6)]), np.uintp(indices[cell + np.uintp(7)])
        x0, x1, x2, x3 = data[cell], data[cell + np.uintp(1)], data[cell + np.uintp(2)], data[cell + np.uintp(3)]
        x4, x5 = data[cell + np.uintp(4)], data[cell + np.uintp(5)]
        x6, x7 = data[cell + np.uintp(6)], data[cell + np.uintp(7)]
        for plane in range(width):
            score = out[lane, offset + plane]
            score += x0 * np.float32(weights[panel, f0, plane])
            score += x1 * np.float32(weights[panel, f1, plane])
            score += x2 * np.float32(weights[panel, f2, plane])
            score += x3 * np.float32(weights[panel, f3, plane])
            score += x4 * np.float32(weights[panel, f4, plane])
            score += x5 * np.float32(weights[panel, f5, plane])
            score += x6 * np.float32(weights[panel, f6, plane])
            score += x7 * np.float32(weights[panel, f7, plane])
            out[lane, offset + plane] = score
        cell += np.uintp(8)
    while cell < stop:
        feature, value = np.uintp(indices[cell]), data[cell]
        for plane in range(width):
            out[lane, offset + plane] += value * np.float32(weights[panel, feature, plane])
        cell += np.uintp(1)


@kernel
def reduce_planes(plane_score, lane, panels, out_best):
    """Write the maximum over the planes of each slot."""
    start = np.uintp(0)
    for slot in range(np.uintp(out_best.shape[0])):
        out_best[slot] = plane_score[lane, slot]
    for number in range(panels.run_length.shape[0]):
        length = np.uintp(panels.run_length[number])
        for slot in range(length):
            score = plane_score[lane, start + slot]
            out_best[slot] = score if score > out_best[slot] else out_best[slot]
        start += length


@kernel
def mask_scores(panels, kept, first, stop, scores):
    """Set scores that are not allowed, or too low, to -inf."""
    nothing = np.float32(-np.inf)
    if kept.allowed.shape[0] > 0:
        for row in range(first, stop):
            allowed = kept.allowed[np.uintp(kept.group[row])]
            for place in range(panels.tie_order.shape[0]):
                if not allowed[np.uintp(panels.tie_order[place])]:
                    scores[place, row - first] = nothing
    if kept.min_score > -np.inf:
        lowest = np.float32(kept.min_score)
        for place in range(panels.tie_order.shape[0]):
            for lane in range(LANES):
                scores[place, lane] = scores[place, lane] if scores[place, lane] >= lowest else nothing


@kernel
def pick_best(scores, out_score, out_place):
    """Write the k best places of each lane and their scores; -inf is no score and is never picked.

    Every score sinks through a list of the best so far, in all lanes at once and without a branch. A new score comes
    after all held ones in the tie order and stays below its equals; one that it pushed out comes before those below.
    """
    n_places, n_lanes = scores.shape
    k = out_score.shape[0]
    sinking = np.empty(n_lanes, np.float32)
    sinking_place = np.empty(n_lanes, np.int32)
    out_score[:] = -np.inf
    out_place[:] = -1
    for place in range(n_places):
        for lane in range(n_lanes):
            sinking[lane] = scores[place, lane]
            sinking_place[lane] = np.int32(place)
        for rank in range(min(k, place + 1)):
            for lane in range(n_lanes):
                held, new = out_score[rank, lane], sinking[lane]
                held_place, new_place = out_place[rank, lane], sinking_place[lane]
                better = (new > held) | (new_place < held_place)
                out_score[rank, lane] = new if better else held
                sinking[lane] = held if better else new
                out_place[rank, lane] = new_place if better else held_place
                sinking_place[lane] = held_place if better else new_place


@kernel
def write_row(top_score, top_place, lane, row, panels, kept, out_category, out_score):
    """Write the codes of one row, and fill it up with categories without planes."""
    k = out_category.shape[1]
    rank = 0
    while rank < k and top_score[rank, lane] > -np.inf:
        out_category[row, rank] = panels.tie_order[np.uintp(top_place[rank, lane])]
        out_score[row, rank] = top_score[rank, lane]
        rank += 1
    if kept.keep_bare:
        for i in range(panels.bare.shape[0]):
            code = panels.tie_order[np.uintp(panels.bare[i])]
            may_hold = kept.allowed.shape[0] == 0 or kept.allowed[np.uintp(kept.group[row]), np.uintp(code)]
            if rank < k and may_hold:
                out_category[row, rank] = code
                out_score[row, rank] = -np.inf
                rank += 1
    while rank < k:
        out_category[row, rank] = -1
        out_score[row, rank] = -np.inf
        rank += 1

"""Turn the interest state into sparse feature rows, choose columns, normalise rows."""

import math

import numpy as np

from ammrank_dask.kernels.jit import kernel


@kernel
def count_values(indptr, cell, group_slot, n_categories, kinds, out_count):
    """Write how many values each user gets from events: `kinds` (1 or 2) for each cell of a group that is used."""
    for u in range(len(indptr) - 1):
        n = 0
        for j in range(indptr[u], indptr[u + 1]):
            if group_slot[cell[j] // n_categories] >= 0:
                n += kinds
        out_count[u] = n


@kernel
def write_values(
    indptr, cell, intensity, last, group_slot, n_categories, end, log_alpha_per_us, use_log, use_recency,
    age_bucket, gender, age_column, gender_column, out_indptr, out_indices, out_data,
):  # fmt: skip
    """Write the feature rows: per group the intensities, then the recencies α^(end−last), then age and gender.

    `out_indptr` is given; the columns of a row ascend because cells do and groups keep their order.
    """
    width = 2 * n_categories if use_recency else n_categories
    for u in range(len(indptr) - 1):
        at = out_indptr[u]
        j = indptr[u]
        stop = indptr[u + 1]
        while j < stop:
            group = cell[j] // n_categories
            begin = j
            while j < stop and cell[j] // n_categories == group:
                j += 1
            slot = group_slot[group]
            if slot < 0:
                continue
            shift = slot * width - group * n_categories
            for i in range(begin, j):
                out_indices[at] = cell[i] + shift
                out_data[at] = math.log1p(intensity[i]) if use_log else intensity[i]
                at += 1
            if use_recency:
                for i in range(begin, j):
                    out_indices[at] = cell[i] + shift + n_categories
                    out_data[at] = math.exp(log_alpha_per_us * (end - last[i]))
                    at += 1
        if age_bucket[u] >= 0:
            out_indices[at] = age_column + int(age_bucket[u])
            out_data[at] = 1.0
            at += 1
        if gender[u] >= 0:
            out_indices[at] = gender_column + int(gender[u])
            out_data[at] = 1.0
            at += 1


@kernel
def choose_columns(indptr, indices, data, new_column, out_indptr, out_indices, out_data):
    """Keep the values whose `new_column` is not negative, under that number; return how many they are."""
    n = 0
    out_indptr[0] = 0
    for row in range(len(indptr) - 1):
        for j in range(indptr[row], indptr[row + 1]):
            column = new_column[indices[j]]
            if column >= 0:
                out_indices[n] = column
                out_data[n] = data[j]
                n += 1
        out_indptr[row + 1] = n
    return n


@kernel
def count_marked(indptr, indices, marked, out_count):
    """Write how many values of each row are in a marked column."""
    for row in range(len(indptr) - 1):
        n = 0
        for j in range(indptr[row], indptr[row + 1]):
            n += marked[indices[j]]
        out_count[row] = n


@kernel
def count_below(indptr, indices, column, out_count):
    """Write how many values of each row, whose columns ascend, are before a column; most are, so from the end."""
    for row in range(len(indptr) - 1):
        stop = indptr[row + 1]
        while stop > indptr[row] and indices[stop - 1] >= column:
            stop -= 1
        out_count[row] = stop - indptr[row]


@kernel
def normalize_rows(indptr, data):
    """Divide every row by its Euclidean norm, in place; an empty row stays empty.

    Squares have the precision of the data and are added in the order of the row. A sum has to wait for its last
    addition, so four rows are added at a time.
    """
    n_rows = len(indptr) - 1
    for first in range(0, n_rows - 3, 4):
        a, b, c = np.uintp(indptr[first]), np.uintp(indptr[first + 1]), np.uintp(indptr[first + 2])
        d, end = np.uintp(indptr[first + 3]), np.uintp(indptr[first + 4])
        shortest = min(min(b - a, c - b), min(d - c, end - d))
        in_a, in_b, in_c, in_d = 0.0, 0.0, 0.0, 0.0
        for j in range(shortest):
            in_a += np.float64(data[a + j] * data[a + j])
            in_b += np.float64(data[b + j] * data[b + j])
            in_c += np.float64(data[c + j] * data[c + j])
            in_d += np.float64(data[d + j] * data[d + j])
        _divide_by_norm(data, a, b, a + shortest, in_a)
        _divide_by_norm(data, b, c, b + shortest, in_b)
        _divide_by_norm(data, c, d, c + shortest, in_c)
        _divide_by_norm(data, d, end, d + shortest, in_d)
    for row in range(n_rows - n_rows % 4, n_rows):
        start = np.uintp(indptr[row])
        _divide_by_norm(data, start, np.uintp(indptr[row + 1]), start, 0.0)


@kernel
def _divide_by_norm(data, start, stop, added, total):
    """Divide a row by its norm, in place; `total` has the squares of its values before `added`."""
    for j in range(added, stop):
        total += np.float64(data[j] * data[j])
    if total > 0.0:
        scale = np.float64(1.0 / math.sqrt(total))
        for j in range(start, stop):
            data[j] = np.float64(data[j]) * scale


@kernel
def rank_clicks(indptr, cell, intensity, last, n_categories, order, out_category, out_intensity):
    """Sort the clicked cells of each user by intensity, then by recency, then by code.

    All cells are of the click group. `order` is work space, one entry per cell.
    """
    for u in range(len(indptr) - 1):
        begin, stop = indptr[u], indptr[u + 1]
        for j in range(begin, stop):
            k = j
            while k > begin and (
                intensity[order[k - 1]] < intensity[j]
                or (intensity[order[k - 1]] == intensity[j] and last[order[k - 1]] < last[j])
            ):
                order[k] = order[k - 1]
                k -= 1
            order[k] = j
        for k in range(begin, stop):
            out_category[k] = cell[order[k]] % n_categories
            out_intensity[k] = intensity[order[k]]

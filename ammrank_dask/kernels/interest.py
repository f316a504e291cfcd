"""Aggregate events to the interest state, and fold states: the monoid (+, max) over cells."""

import math

import numpy as np

from ammrank_dask.kernels.hashing import mix
from ammrank_dask.kernels.jit import kernel


@kernel
def count_rows(partition, keep, out_count):
    """Count the kept rows of every partition."""
    for i in range(len(partition)):
        if keep[i]:
            out_count[partition[i]] += 1


@kernel
def order_rows(partition, keep, next_slot, out_order):
    """Write the kept rows sorted by partition, in row order inside one; `next_slot` (start of each) is used up."""
    for i in range(len(partition)):
        if keep[i]:
            slot = next_slot[partition[i]]
            next_slot[partition[i]] = slot + 1
            out_order[slot] = i


@kernel
def number_ids(ids, table, slot_id, out_number):
    """Number the distinct ids in order of appearance and return how many there are.

    `table` (int64, a power of two long, filled with -1) and `slot_id` (uint64, as long as `ids`) are work space;
    afterwards `slot_id[:n]` holds the distinct ids.
    """
    mask = np.uint64(len(table) - 1)
    n_distinct = 0
    for i in range(len(ids)):
        slot = mix(ids[i]) & mask
        while True:
            number = table[slot]
            if number == -1:
                table[slot] = n_distinct
                slot_id[n_distinct] = ids[i]
                out_number[i] = n_distinct
                n_distinct += 1
                break
            if slot_id[number] == ids[i]:
                out_number[i] = number
                break
            slot = (slot + np.uint64(1)) & mask
    return n_distinct


@kernel
def aggregate_cells(
    user, cell, time, end, log_alpha_per_us, by_user_cell, by_user_time, starts, total, newest, stamp, touched,
    out_indptr, out_cell, out_intensity, out_last,
):  # fmt: skip
    """Write the cells of every user, Σ α^(end−t) and max t, and return how many there are.

    Events of one cell are added in the order of their times, so the sum does not depend on how the log was cut, or
    on the order of its rows.

    Parameters
    ----------
    user, cell, time
        The events: position of the user, code of the cell, microseconds.
    by_user_cell, by_user_time, starts
        Work space: a cell and a time per event, an int64 per user and one more (zeros).
    total, newest, stamp, touched
        Work space with one entry per possible cell; `stamp` is -1 everywhere.
    """
    n_users = len(out_indptr) - 1
    for i in range(len(user)):
        starts[user[i] + 1] += 1
    for u in range(n_users):
        starts[u + 1] += starts[u]
    for i in range(len(user)):
        slot = starts[user[i]]
        starts[user[i]] = slot + 1
        by_user_cell[slot] = cell[i]
        by_user_time[slot] = time[i]
    # Now starts[u] is where user u ends, and so where user u + 1 begins.
    n_cells = 0
    begin = 0
    for u in range(n_users):
        n_touched = 0
        sort_by_time(by_user_cell[begin : starts[u]], by_user_time[begin : starts[u]])
        for j in range(begin, starts[u]):
            c = by_user_cell[j]
            t = by_user_time[j]
            value = math.exp(log_alpha_per_us * (end - t))
            if stamp[c] != u:
                stamp[c] = u
                touched[n_touched] = c
                n_touched += 1
                total[c] = value
                newest[c] = t
            else:
                total[c] += value
                newest[c] = max(newest[c], t)
        begin = starts[u]
        sort_prefix(touched, n_touched)
        out_indptr[u] = n_cells
        for j in range(n_touched):
            c = touched[j]
            out_cell[n_cells] = c
            out_intensity[n_cells] = total[c]
            out_last[n_cells] = newest[c]
            n_cells += 1
    out_indptr[n_users] = n_cells
    return n_cells


@kernel
def sort_by_time(cell, time):
    """Sort the events of one user by time, in place; most logs have them so, and most users have a handful."""
    if len(time) <= 32:
        for i in range(1, len(time)):
            c, t = cell[i], time[i]
            j = i - 1
            while j >= 0 and time[j] > t:
                cell[j + 1], time[j + 1] = cell[j], time[j]
                j -= 1
            cell[j + 1], time[j + 1] = c, t
        return
    for i in range(1, len(time)):
        if time[i] < time[i - 1]:
            order = np.argsort(time)
            cell[:], time[:] = cell[order], time[order]
            return


@kernel
def digest_events(user, cell, time, user_hash, bucket, is_left_out, out_sums):
    """Add a hash of every event to the sum (uint64) of its user's bucket: the same for any order of the events.

    Events of users with `is_left_out` do not count.
    """
    for i in range(len(user)):
        u = user[i]
        if not is_left_out[u]:
            out_sums[bucket[u]] += mix(mix(user_hash[u] ^ np.uint64(cell[i])) ^ np.uint64(time[i]))


@kernel
def sort_prefix(values, n):
    """Sort the first `n` values in place; most users touch a handful of cells."""
    if n > 32:
        values[:n] = np.sort(values[:n])
        return
    for i in range(1, n):
        value = values[i]
        j = i - 1
        while j >= 0 and values[j] > value:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = value


@kernel
def fold_cells(
    indptr, cell, intensity, last, day_position, day_indptr, day_cell, day_intensity, day_last, decay, oldest,
    out_indptr, out_cell, out_intensity, out_last,
):  # fmt: skip
    """Write state·decay + day, cell by cell, without cells whose newest event is before `oldest`; return their count.

    The rows of the state are all users; row `r` of the day belongs to the user at `day_position[r]` (ascending).
    """
    n_users = len(indptr) - 1
    n_day_rows = len(day_position)
    row = 0
    n = 0
    for u in range(n_users):
        out_indptr[u] = n
        a, a_end = indptr[u], indptr[u + 1]
        b, b_end = np.int64(0), np.int64(0)
        if row < n_day_rows and day_position[row] == u:
            b, b_end = day_indptr[row], day_indptr[row + 1]
            row += 1
        while a < a_end or b < b_end:
            if b >= b_end or (a < a_end and cell[a] < day_cell[b]):
                c, value, newest = cell[a], intensity[a] * decay, last[a]
                a += 1
            elif a >= a_end or day_cell[b] < cell[a]:
                c, value, newest = day_cell[b], day_intensity[b], day_last[b]
                b += 1
            else:
                c, value, newest = cell[a], intensity[a] * decay + day_intensity[b], max(last[a], day_last[b])
                a += 1
                b += 1
            if newest >= oldest:
                out_cell[n] = c
                out_intensity[n] = value
                out_last[n] = newest
                n += 1
    out_indptr[n_users] = n
    return n

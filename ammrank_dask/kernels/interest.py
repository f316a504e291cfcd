"""Aggregate events to the interest state, and fold states: the monoid (+, max) over cells."""

import math

import numpy as np

from ammrank_dask.kernels.hashing import mix
from ammrank_dask.kernels.jit import kernel

_DIGIT_BITS = 11
_DIGITS = 1 << _DIGIT_BITS
_DIGIT = np.uint64(_DIGITS - 1)
_SIGN = np.uint64(1 << 63)


@kernel
def count_rows(partition, keep, out_count):
    """Count the kept rows of every partition."""
    for i in range(len(partition)):
        out_count[np.uintp(partition[i])] += keep[i]


@kernel
def order_rows(partition, keep, next_slot, out_order):
    """Write the kept rows sorted by partition, in row order inside one; `next_slot` (start of each) is used up."""
    for i in range(len(partition)):
        if keep[i]:
            own = np.uintp(partition[i])
            out_order[np.uintp(next_slot[own])] = i
            next_slot[own] += 1


@kernel
def number_ids(ids, table, slot_id, out_number):
    """Number the distinct ids in order of appearance and return how many there are.

    `table` (int32, a power of two long, filled with -1) and `slot_id` (uint64, as long as `ids`) are work space;
    afterwards `slot_id[:n]` holds the distinct ids.
    """
    mask = np.uint64(len(table) - 1)
    n_distinct = 0
    for i in range(len(ids)):
        # Written as if it were new, so that a free slot and one of the same id are one case: nobody can guess which.
        slot_id[n_distinct] = ids[i]
        slot = mix(ids[i]) & mask
        while True:
            number = table[slot]
            number = n_distinct if number < 0 else number
            if slot_id[np.uintp(number)] == ids[i]:
                break
            slot = (slot + np.uint64(1)) & mask
        table[slot] = number
        out_number[i] = number
        n_distinct += number == n_distinct
    return n_distinct


@kernel
def rank_ids(ids, key, number, other_key, other_number, out_ids, out_rank):
    """Write distinct ids (uint64 view of int64) in ascending order, and of each the position in it.

    `key`, `other_key` (uint64) and `number`, `other_number` (int32) are work space, as long as `ids`.
    """
    if len(ids) == 0:
        return
    for i in range(len(ids)):
        key[i], number[i] = ids[i] ^ _SIGN, i
    lowest = key.min()
    spread = key.max() - lowest
    n_bits = np.uint64(0)
    while n_bits < np.uint64(64) and spread >> n_bits:
        n_bits += np.uint64(1)
    for i in range(len(ids)):
        key[i] -= lowest
    # Two digits put ids that are spread nearly in order. Ids that begin alike, as some do, are sorted by all digits.
    first_bit = n_bits - min(n_bits, np.uint64(2 * _DIGIT_BITS))
    sort_by_digits(key, number, other_key, other_number, first_bit, n_bits)
    if not finish_order(key, number, 4 * len(ids)):
        sort_by_digits(key, number, other_key, other_number, np.uint64(0), n_bits)
    for i in range(len(ids)):
        out_ids[i] = (key[i] + lowest) ^ _SIGN
        out_rank[np.uintp(number[i])] = i


@kernel
def sort_by_digits(key, number, other_key, other_number, first_bit, n_bits):
    """Sort keys, and their numbers with them, by their bits from `first_bit` to `n_bits` (excluded), in place.

    Equal ones keep their order. `other_key` and `other_number` are work space.
    """
    count = np.empty(_DIGITS, np.int64)
    shift = first_bit
    is_elsewhere = False
    while shift < n_bits:
        count[:] = 0
        for i in range(len(key)):
            count[np.uintp((key[i] >> shift) & _DIGIT)] += 1
        total = 0
        for digit in range(_DIGITS):
            size = count[digit]
            count[digit] = total
            total += size
        for i in range(len(key)):
            own = np.uintp((key[i] >> shift) & _DIGIT)
            slot = np.uintp(count[own])
            other_key[slot], other_number[slot] = key[i], number[i]
            count[own] += 1
        key, other_key = other_key, key
        number, other_number = other_number, number
        is_elsewhere = not is_elsewhere
        shift += np.uint64(_DIGIT_BITS)
    if is_elsewhere:
        other_key[:], other_number[:] = key, number


@kernel
def finish_order(key, number, most_moves):
    """Sort keys that are nearly in order, and their numbers with them; return whether it took no more than so many."""
    for i in range(1, len(key)):
        own, own_number = key[i], number[i]
        j = i
        while j > 0 and key[j - 1] > own:
            key[j], number[j] = key[j - 1], number[j - 1]
            j -= 1
        key[j], number[j] = own, own_number
        most_moves -= i - j
        if most_moves < 0:
            return False
    return True


@kernel
def count_codes(codes, out_count):
    """Add how often each code is there."""
    for i in range(len(codes)):
        out_count[np.uintp(codes[i])] += 1


@kernel
def largest_counts(counts, out_largest):
    """Write the largest counts, descending, and behind them zeros."""
    out_largest[:] = 0
    last = len(out_largest) - 1
    for i in range(len(counts)):
        if counts[i] > out_largest[last]:
            at = last
            while at > 0 and out_largest[at - 1] < counts[i]:
                out_largest[at] = out_largest[at - 1]
                at -= 1
            out_largest[at] = counts[i]


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
    # Indices without a sign are not looked at for being counted from the end.
    for i in range(len(user)):
        starts[np.uintp(user[i]) + np.uintp(1)] += 1
    for u in range(n_users):
        starts[u + 1] += starts[u]
    for i in range(len(user)):
        own = np.uintp(user[i])
        slot = np.uintp(starts[own])
        starts[own] += 1
        by_user_cell[slot] = cell[i]
        by_user_time[slot] = time[i]
    # Now starts[u] is where user u ends, and so where user u + 1 begins.
    n_cells = 0
    begin = 0
    for u in range(n_users):
        n_touched = 0
        sort_by_time(by_user_cell, by_user_time, begin, starts[u])
        for j in range(np.uintp(begin), np.uintp(starts[u])):
            c = np.uintp(by_user_cell[j])
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
def sort_by_time(cell, time, begin, stop):
    """Sort the events of one user by time, in place; most logs have them so, and most users have a handful."""
    if stop - begin <= 32:
        for i in range(begin + 1, stop):
            c, t = cell[i], time[i]
            j = i - 1
            while j >= begin and time[j] > t:
                cell[j + 1], time[j + 1] = cell[j], time[j]
                j -= 1
            cell[j + 1], time[j + 1] = c, t
        return
    for i in range(begin + 1, stop):
        if time[i] < time[i - 1]:
            order = begin + np.argsort(time[begin:stop])
            cell[begin:stop], time[begin:stop] = cell[order], time[order]
            return


@kernel
def hash_rows(user_hash, cell, time, is_used):
    """Return the sum (uint64) of the hashes of the used rows, each as `digest_events` has it."""
    total = np.uint64(0)
    for i in range(len(cell)):
        if is_used[i]:
            total += mix(mix(user_hash[i] ^ np.uint64(cell[i])) ^ np.uint64(time[i]))
    return total


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
def count_range(indptr, cell, first, stop, out_begin, out_count):
    """Write where the cells of each row from `first` to `stop` (excluded) begin, and how many they are.

    Cells of a row ascend. They are looked for from its end, where the groups of clicks are.
    """
    for row in range(len(indptr) - 1):
        end = indptr[row + 1]
        while end > indptr[row] and cell[np.uintp(end - 1)] >= stop:
            end -= 1
        begin = end
        while begin > indptr[row] and cell[np.uintp(begin - 1)] >= first:
            begin -= 1
        out_begin[row] = begin
        out_count[row] = end - begin


@kernel
def take_stretches(begin, count, cell, intensity, last, out_cell, out_intensity, out_last):
    """Write stretches of cells, with their values, one behind the other."""
    n = np.uintp(0)
    for i in range(len(begin)):
        for j in range(np.uintp(begin[i]), np.uintp(begin[i] + count[i])):
            out_cell[n], out_intensity[n], out_last[n] = cell[j], intensity[j], last[j]
            n += np.uintp(1)


@kernel
def merge_ids(ids, other, out_ids):
    """Write the distinct ids of two ascending lists in ascending order, and return how many there are."""
    i, j, n = 0, 0, 0
    while i < len(ids) or j < len(other):
        if j >= len(other) or (i < len(ids) and ids[i] < other[j]):
            out_ids[n] = ids[i]
            i += 1
        else:
            if i < len(ids) and ids[i] == other[j]:
                i += 1
            out_ids[n] = other[j]
            j += 1
        n += 1
    return n


@kernel
def locate_ids(ids, some, out_position):
    """Write where each of `some` stands in `ids`; both are ascending, and all of `some` are in `ids`."""
    i = 0
    for j in range(len(some)):
        while ids[i] != some[j]:
            i += 1
        out_position[j] = i


@kernel
def fold_cells(
    position, indptr, cell, intensity, last,
    day_start, day_position, day_begin, day_end, day_cell, day_intensity, day_last, decay, oldest,
    next_row, total, newest, since, stamp, touched, value_now, days_left,
    out_indptr, out_cell, out_intensity, out_last,
):  # fmt: skip
    """Write a state after some days, user by user, and return the number of its cells.

    A day is `state·decay + day`, cell by cell, without cells whose newest event is before its `oldest`. A cell is
    multiplied once for every day, one after the other, so that the bits do not depend on how days are taken together.

    Parameters
    ----------
    position, indptr, cell, intensity, last
        The state before: row `r` is the user at `position[r]` (ascending), cells ascending.
    day_start, day_position, day_begin, day_end
        The rows of day d are `day_start[d]` to `day_start[d + 1]`: of each its user (ascending) and its cells, which
        are `day_begin[r]` to `day_end[r]` of `day_cell`, `day_intensity` and `day_last`.
    oldest
        Of every day.
    next_row
        Work space: `day_start[:-1]`, used up.
    total, newest, since, stamp, touched, value_now, days_left
        Work space with one entry per possible cell; `stamp` is -1 everywhere.
    """
    n_days = len(oldest)
    row = 0
    n = 0
    for u in range(len(out_indptr) - 1):
        n_old = 0
        if row < len(position) and position[row] == u:
            for j in range(indptr[row], indptr[row + 1]):
                c = cell[j]
                stamp[c], touched[n_old] = u, c
                total[c], newest[c], since[c] = intensity[j], last[j], -1
                n_old += 1
            row += 1
        n_touched = n_old
        for d in range(n_days):
            r = next_row[d]
            if r >= day_start[d + 1] or day_position[r] != u:
                continue
            next_row[d] = r + 1
            for j in range(day_begin[r], day_end[r]):
                c = day_cell[j]
                if stamp[c] != u:
                    stamp[c], touched[n_touched] = u, c
                    n_touched += 1
                elif d == 0 or newest[c] >= oldest[d - 1]:
                    value = total[c]
                    for _ in range(since[c] + 1, d):
                        value *= decay
                    total[c] = value * decay + day_intensity[j]
                    newest[c], since[c] = max(newest[c], day_last[j]), d
                    continue
                # The first event of the cell, or the first after it was dropped.
                total[c], newest[c], since[c] = day_intensity[j], day_last[j], d
        sort_prefix(touched[n_old:], n_touched - n_old)
        for j in range(n_touched):
            value_now[j], days_left[j] = total[touched[j]], n_days - 1 - since[touched[j]]
        for d in range(n_days):
            # All cells at once, which the compiler vectorises; a factor of 1 changes no bit.
            for j in range(n_touched):
                value_now[j] *= decay if days_left[j] > d else 1.0
        out_indptr[u] = n
        a, b = 0, n_old
        while a < n_old or b < n_touched:
            if b >= n_touched or (a < n_old and touched[a] < touched[b]):
                j = a
                a += 1
            else:
                j = b
                b += 1
            c = touched[j]
            if newest[c] >= oldest[n_days - 1]:
                out_cell[n], out_intensity[n], out_last[n] = c, value_now[j], newest[c]
                n += 1
    out_indptr[len(out_indptr) - 1] = n
    return n

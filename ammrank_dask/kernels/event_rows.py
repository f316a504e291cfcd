"""Take events from readers to partitions as rows of two words, and aggregate them there.

The first word of a row is the user. The second is the event: the cell and, in the low bits, the time. Events of a
user that are sorted by it are in the order of their cells, and those of a cell in the order of their times. Its highest
bit is free until then, and marks the first event of a user afterwards.

Hardly a loop has a branch that depends on the data: a processor that guesses wrong loses more than an event costs.
"""

import math

import numpy as np

from ammrank_dask.kernels.hashing import mix
from ammrank_dask.kernels.jit import kernel

_FIRST = np.uint64(1 << 63)
_FEW = 32


@kernel
def pack_events(
    ids, is_placed, salt, keep, cell, time, first_time, time_bits, next_slot, out_partition, out_starts, out_rows
):
    """Write the kept rows sorted by partition, in row order inside one, and where each partition begins and ends.

    The partition of every id (uint64 view of int64) is written too, unless `is_placed` says that it is there. Starts
    are zeros before, and `next_slot` has room for as many; it is used up.
    """
    n_partitions = np.uint64(len(out_starts) - 1)
    for i in range(len(ids)):
        if not is_placed:
            out_partition[i] = mix(ids[i] ^ salt) % n_partitions
        out_starts[np.uintp(out_partition[i]) + np.uintp(1)] += keep[i]
    for stop in range(1, len(out_starts)):
        out_starts[stop] += out_starts[stop - 1]
    next_slot[:] = out_starts
    for i in range(len(ids)):
        if keep[i]:
            own = np.uintp(out_partition[i])
            slot = np.uintp(next_slot[own])
            next_slot[own] += 1
            out_rows[slot, 0] = ids[i]
            out_rows[slot, 1] = np.uint64(cell[i]) << time_bits | np.uint64(time[i] - first_time)


@kernel
def group_events(rows, user, next_slot, out_event):
    """Write the events user by user, in row order inside one.

    `next_slot` has a zero for each user, and afterwards says where the events of each end.
    """
    for i in range(len(user)):
        next_slot[np.uintp(user[i])] += 1
    total = 0
    for own in range(len(next_slot)):
        count = next_slot[own]
        next_slot[own] = total
        total += count
    for i in range(len(user)):
        slot = np.uintp(next_slot[np.uintp(user[i])])
        next_slot[np.uintp(user[i])] += 1
        out_event[slot] = rows[i, 1]


@kernel
def sort_events(event, stop, out_event):
    """Write the events of every user in ascending order, the first one of each marked; `stop` is where they end."""
    begin = np.uintp(0)
    one = np.uintp(1)
    for user in range(len(stop)):
        end = np.uintp(stop[user])
        if end - begin == one:
            out_event[begin] = event[begin]
        elif end - begin == one + one:
            out_event[begin] = min(event[begin], event[begin + one])
            out_event[begin + one] = max(event[begin], event[begin + one])
        elif end - begin <= np.uintp(_FEW):
            # Each goes behind all that are smaller, and of equal ones behind those before it.
            for i in range(begin, end):
                slot = begin
                for j in range(begin, i):
                    slot += np.uintp(event[j] <= event[i])
                for j in range(i + one, end):
                    slot += np.uintp(event[j] < event[i])
                out_event[slot] = event[i]
        else:
            out_event[begin:end] = np.sort(event[begin:end])
        out_event[begin] |= _FIRST
        begin = end


@kernel
def weigh_events(event, first_time, time_bits, end, log_alpha_per_us, out_weight):
    """Write α^(end−t) of every event."""
    time_mask = (np.uint64(1) << time_bits) - np.uint64(1)
    for i in range(len(event)):
        time = first_time + np.int64(event[i] & time_mask)
        out_weight[i] = math.exp(log_alpha_per_us * (end - time))


@kernel
def sum_events(
    rows, user, first_time, time_bits, end, log_alpha_per_us, stop, grouped, event, weight, out_indptr, out_cell,
    out_intensity, out_last,
):  # fmt: skip
    """Write the cells of every user, the sum of their weights and the newest time, and return how many there are.

    Events of one cell are added in the order of their times, so the sum does not depend on how the log was cut, or on
    the order of its rows. `stop` has a zero for each user, and afterwards says where the events of each end; `grouped`,
    `event` and `weight` have room for all events.
    """
    group_events(rows, user, stop, grouped)
    sort_events(grouped, stop, event)
    weigh_events(event, first_time, time_bits, end, log_alpha_per_us, weight)
    time_mask = (np.uint64(1) << time_bits) - np.uint64(1)
    unmarked = ~(_FIRST >> time_bits)
    n_users, n_cells = 0, 0
    last_cell = np.uint64(0)
    total = 0.0
    for i in range(len(event)):
        cell = event[i] >> time_bits
        is_new = cell != last_cell  # a marked one is: no other has that bit
        last_cell = cell & unmarked
        n_cells += is_new
        out_indptr[n_users] = n_cells - 1
        n_users += cell != last_cell
        total = weight[i] + (0.0 if is_new else total)
        slot = np.uintp(n_cells - 1)
        out_cell[slot] = last_cell
        out_intensity[slot] = total
        out_last[slot] = first_time + np.int64(event[i] & time_mask)
    out_indptr[n_users] = n_cells
    return n_cells


@kernel
def digest_events(rows, user, user_hash, bucket, first_time, time_bits, out_sums, out_count):
    """Add a hash of every event to the sum (uint64) of its user's bucket, and count events by cell.

    The sums are the same for any order of the events.
    """
    time_mask = (np.uint64(1) << time_bits) - np.uint64(1)
    first = np.uint64(first_time)
    for i in range(len(rows)):
        own = np.uintp(user[i])
        cell = rows[i, 1] >> time_bits
        time = first + (rows[i, 1] & time_mask)
        out_sums[np.uintp(bucket[own])] += mix(mix(user_hash[own] ^ cell) ^ time)
        out_count[cell] += 1

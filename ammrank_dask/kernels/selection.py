"""Group, sort and select (user, category) pairs by integer keys that order as their scores do."""

import numpy as np

from ammrank_dask.kernels.jit import kernel

DIGIT_BITS = (11, 11, 10)
"""Digits of a key, highest first: so many bits at a time are counted."""
DIGITS = 2048
SORT_BITS = 13
"""Bits of the longest digit by which pairs are sorted: its counts fit into the cache of a core."""
NO_SCORE = 0x007FFFFF
"""The key of -inf, which is no score."""

_SIGN = np.uint32(0x80000000)
_ALL = np.uint32(0xFFFFFFFF)


@kernel
def order_key(bits):
    """Return for the bits of a float32 an integer that orders as the float does; -0 is 0."""
    return bits ^ _ALL if bits > _SIGN else bits | _SIGN


@kernel
def group_rows(indptr, category, values, out_start, out_user, out_rank, out_values):
    """Write the rows of users by category, those of a category by user.

    Parameters
    ----------
    indptr, category
        The rows of user u are those from `indptr[u]` to `indptr[u + 1]`, best first.
    values
        Three float32 columns of the rows: score, chance and propensity; empty where there is none.
    out_start
        (L + 1,) where each category starts.
    out_user, out_rank
        (n,) the position of the user, and the rank from 1.
    out_values
        What `values` become.
    """
    out_start[:] = 0
    for row in range(category.shape[0]):
        out_start[np.uintp(category[row]) + np.uintp(1)] += 1
    for code in range(out_start.shape[0] - 1):
        out_start[code + 1] += out_start[code]
    at = out_start[:-1].copy()
    score, chance, propensity = values
    out_score, out_chance, out_propensity = out_values
    has_chance, has_propensity = chance.shape[0] > 0, propensity.shape[0] > 0
    for user in range(indptr.shape[0] - 1):
        first = indptr[user]
        for row in range(first, indptr[user + 1]):
            own = np.uintp(category[row])
            to = np.uintp(at[own])
            at[own] += 1
            out_user[to] = user
            out_rank[to] = row - first + 1
            out_score[to] = score[row]
            if has_chance:
                out_chance[to] = chance[row]
            if has_propensity:
                out_propensity[to] = propensity[row]


@kernel
def count_exposure(indptr, category, out_count):
    """Add the rows of users to `out_count` (L, ranks) by category and rank; with one rank, by category alone."""
    n_ranks = out_count.shape[1]
    for user in range(indptr.shape[0] - 1):
        first = indptr[user]
        for row in range(first, indptr[user + 1]):
            rank = row - first if n_ranks > 1 else 0
            out_count[np.uintp(category[row]), np.uintp(rank)] += 1


@kernel
def sort_by_score(bits, out_sorted):
    """Sort pairs by score from the highest; equal scores keep their order.

    Scores that are near each other differ in fewer bits, and are sorted in two passes instead of three.

    Parameters
    ----------
    bits
        (n,) the bits of the float32 scores; n below 2 ** 32.
    out_sorted
        (n,) uint64: in the upper half what ascends as the scores descend, in the lower half the position of the pair.
    """
    n = bits.shape[0]
    if n == 0:
        return
    lowest, highest = _ALL, np.uint32(0)
    for pair in range(n):
        key = order_key(bits[pair]) ^ _ALL
        lowest, highest = min(lowest, key), max(highest, key)
    n_bits = 1
    while n_bits < 32 and (highest - lowest) >> np.uint32(n_bits) > 0:
        n_bits += 1
    n_digits = 1 if n_bits <= SORT_BITS else 2 if n_bits <= 2 * SORT_BITS else 3
    width = np.uint64((n_bits + n_digits - 1) // n_digits)
    mask = (np.uint64(1) << width) - np.uint64(1)
    half = np.uint64(32)
    count = np.zeros((n_digits, 1 << SORT_BITS), np.int64)
    other = np.empty_like(out_sorted)
    # The first pass is from one array to the other, and the last one into `out_sorted`.
    begin, end = (out_sorted, other) if n_digits == 2 else (other, out_sorted)
    for pair in range(n):
        value = np.uint64((order_key(bits[pair]) ^ _ALL) - lowest)
        begin[pair] = (value << half) | np.uint64(pair)
        for digit in range(n_digits):
            count[digit, np.uintp((value >> (width * np.uint64(digit))) & mask)] += 1
    for digit in range(n_digits):
        _sort_digit(begin, half + width * np.uint64(digit), mask, count[digit], end)
        begin, end = end, begin


@kernel
def _sort_digit(values, shift, mask, count, out_values):
    """Write values sorted by some of their bits, which `count` has counted; equal ones keep their order."""
    total = 0
    for digit in range(np.uintp(mask + np.uint64(1))):
        size = count[digit]
        count[digit] = total
        total += size
    for number in range(values.shape[0]):
        value = values[number]
        own = np.uintp((value >> shift) & mask)
        out_values[np.uintp(count[own])] = value
        count[own] += 1


@kernel
def take_rows(values, position, out_values):
    """Write the values at some positions."""
    for row in range(position.shape[0]):
        out_values[row] = values[np.uintp(position[row])]


@kernel
def count_held(code, out_indptr):
    """Write where the categories of each row begin (n + 1,), of codes (n, k) that are -1 behind the last."""
    total = 0
    out_indptr[0] = 0
    for row in range(code.shape[0]):
        for rank in range(code.shape[1]):
            total += code[row, rank] >= 0
        out_indptr[row + 1] = total


@kernel
def order_ties(rank, out_sorted):
    """Sort pairs of one score, which stand together after `sort_by_score`, by their `rank` (n,).

    Pairs that come from several sorted lists are runs that ascend: runs are merged two by two.
    """
    half = np.uint64(32)
    lower = np.uint64(0xFFFFFFFF)
    n = out_sorted.shape[0]
    spare = np.empty(0, out_sorted.dtype)
    start = 0
    while start < n:
        score = out_sorted[start] >> half
        stop = start + 1
        if stop == n or out_sorted[stop] >> half != score:  # as nearly all of them
            start = stop
            continue
        while stop < n and out_sorted[stop] >> half == score:
            stop += 1
        n_runs = 1
        for pair in range(start + 1, stop):
            n_runs += rank[out_sorted[pair] & lower] < rank[out_sorted[pair - 1] & lower]
        if n_runs > 1 and stop - start > spare.shape[0]:
            spare = np.empty(2 * (stop - start), out_sorted.dtype)
        while n_runs > 1:
            n_runs = _merge_runs(rank, out_sorted[start:stop], spare)
        start = stop


@kernel
def _merge_runs(rank, values, spare):
    """Merge the first run of ascending rank with the second, the third with the fourth; return how many are left."""
    lower = np.uint64(0xFFFFFFFF)
    n = values.shape[0]
    n_runs = 0
    first = 0
    while first < n:
        middle = _end_of_run(rank, values, first)
        last = _end_of_run(rank, values, middle) if middle < n else n
        left, right = first, middle
        for at in range(first, last):
            if right == last or (left < middle and rank[values[left] & lower] <= rank[values[right] & lower]):
                spare[at] = values[left]
                left += 1
            else:
                spare[at] = values[right]
                right += 1
        n_runs += 1
        first = last
    values[:] = spare[:n]
    return n_runs


@kernel
def _end_of_run(rank, values, first):
    """Return where ranks no longer ascend."""
    lower = np.uint64(0xFFFFFFFF)
    end = first + 1
    while end < values.shape[0] and rank[values[end - 1] & lower] <= rank[values[end] & lower]:
        end += 1
    return end


@kernel
def count_digits(bits, prefix, known_bits, digit_bits, out_count):
    """Count in each row of `bits` the next digit of the keys whose first `known_bits` bits are the row's `prefix`.

    Parameters
    ----------
    bits
        (L, n) the bits of float32 scores; -inf is not counted.
    prefix
        (L,) the bits that are known of each row's key, as an integer.
    out_count
        (L, 2 ** digit_bits), added to.
    """
    shift = np.uint32(32 - known_bits - digit_bits)
    mask = np.uint32((1 << digit_bits) - 1)
    for row in range(bits.shape[0]):
        for user in range(bits.shape[1]):
            key = order_key(bits[row, user])
            # A shift by all 32 bits is not defined: without a known bit everything belongs.
            belongs = known_bits == 0 or key >> (shift + np.uint32(digit_bits)) == prefix[row]
            if belongs and key > np.uint32(NO_SCORE):
                out_count[row, np.uintp((key >> shift) & mask)] += 1


@kernel
def assign_above(bits, cutoff, tie_end, tie_order, indptr, out_code, out_bits):
    """Write the categories each user holds, best first, and return nothing when only `indptr` is asked for.

    User u holds category c if the key of its score is above `cutoff[c]`, or equal and u < `tie_end[c]`.

    Parameters
    ----------
    bits
        (L, n) the bits of float32 scores.
    tie_order
        (L,) category codes, the one to prefer among equal scores first.
    indptr
        (n + 1,) where the categories of each user start. When `out_code` is empty, it is written: before,
        anything may be in it.
    out_code, out_bits
        The pairs, or empty.
    """
    n_users = bits.shape[1]
    counting = out_code.shape[0] == 0
    held = np.zeros(n_users, np.int64)
    for place in range(tie_order.shape[0]):
        category = np.uintp(tie_order[place])
        for user in range(n_users):
            key = order_key(bits[category, user])
            if key > cutoff[category] or (key == cutoff[category] and user < tie_end[category]):
                if not counting:
                    first = indptr[user]
                    at = first + held[user]
                    while at > first and order_key(out_bits[at - 1]) < key:
                        out_bits[at] = out_bits[at - 1]
                        out_code[at] = out_code[at - 1]
                        at -= 1
                    out_bits[at] = bits[category, user]
                    out_code[at] = category
                held[user] += 1
    if counting:
        indptr[0] = 0
        for user in range(n_users):
            indptr[user + 1] = indptr[user] + held[user]


@kernel
def order_assigned(codes, bits, position, indptr, out_code, out_bits):
    """Write the categories that users were assigned by score, the highest first.

    Parameters
    ----------
    codes
        (n, k) category codes in any order, -1 for none.
    bits
        (L, n) the bits of float32 scores.
    position
        (L,) the place of each category among equal scores.
    indptr
        (n + 1,) where the categories of each user start.
    out_code, out_bits
        The pairs.
    """
    for user in range(codes.shape[0]):
        first = indptr[user]
        held = 0
        for slot in range(codes.shape[1]):
            code = codes[user, slot]
            if code < 0:
                continue
            own = bits[np.uintp(code), user]
            key = order_key(own)
            at = first + held
            while at > first:
                other = order_key(out_bits[at - 1])
                if other > key or (other == key and position[np.uintp(out_code[at - 1])] < position[np.uintp(code)]):
                    break
                out_bits[at] = out_bits[at - 1]
                out_code[at] = out_code[at - 1]
                at -= 1
            out_bits[at] = own
            out_code[at] = code
            held += 1

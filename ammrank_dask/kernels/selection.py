"""Sort, select and compare (user, category) pairs by integer keys that order as their scores do."""

import numpy as np

from ammrank_dask.kernels.jit import kernel

DIGIT_BITS = (11, 11, 10)
"""Digits of a key, highest first: so many bits at a time are counted."""
DIGITS = 2048
NO_SCORE = 0x007FFFFF
"""The key of -inf, which is no score."""

_SIGN = np.uint32(0x80000000)
_ALL = np.uint32(0xFFFFFFFF)


@kernel
def order_key(bits):
    """Return for the bits of a float32 an integer that orders as the float does; -0 is 0."""
    return bits ^ _ALL if bits > _SIGN else bits | _SIGN


@kernel
def sort_by_category(code, bits, out_start, out_order):
    """Sort pairs by category, then score from the highest; equal ones keep their order.

    Parameters
    ----------
    code
        (n,) category codes.
    bits
        (n,) the bits of the float32 scores.
    out_start
        (L + 1,) where each category starts in `out_order`.
    out_order
        (n,) positions of the pairs.
    """
    n_categories = out_start.shape[0] - 1
    out_start[:] = 0
    for pair in range(code.shape[0]):
        out_start[np.uintp(code[pair]) + np.uintp(1)] += 1
    largest = 0
    for category in range(n_categories):
        largest = max(largest, out_start[category + 1])
        out_start[category + 1] += out_start[category]
    at = out_start[:-1].copy()
    key = np.empty(code.shape[0], np.uint32)
    for pair in range(code.shape[0]):
        place = np.uintp(at[np.uintp(code[pair])])
        out_order[place] = pair
        key[place] = order_key(bits[pair]) ^ _ALL
        at[np.uintp(code[pair])] += 1
    other_key = np.empty(largest, np.uint32)
    other_order = np.empty(largest, out_order.dtype)
    count = np.empty(DIGITS, np.int64)
    for category in range(n_categories):
        start, stop = np.uintp(out_start[category]), np.uintp(out_start[category + 1])
        shift = np.uint32(0)
        for _ in range(3):
            _sort_digit(key, out_order, start, stop, shift, count, other_key, other_order)
            for pair in range(stop - start):
                key[start + pair] = other_key[pair]
                out_order[start + pair] = other_order[pair]
            shift += np.uint32(11)


@kernel
def _sort_digit(key, order, start, stop, shift, count, out_key, out_order):
    """Write the pairs from `start` to `stop` sorted by eleven bits of their key; `count` is work space."""
    mask = np.uint32(DIGITS - 1)
    count[:] = 0
    for pair in range(start, stop):
        count[(key[pair] >> shift) & mask] += 1
    total = 0
    for value in range(DIGITS):
        found = count[value]
        count[value] = total
        total += found
    for pair in range(start, stop):
        value = (key[pair] >> shift) & mask
        place = np.uintp(count[value])
        out_key[place] = key[pair]
        out_order[place] = order[pair]
        count[value] += 1


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


@kernel
def match_pairs(indptr, code, other_indptr, other_code, seen, out_match, out_is_gone):
    """Write for each category of a user where the other list of the user has it, -1 where it does not.

    `out_is_gone` marks the pairs of the other list that this one lacks. `seen` (number of categories,) is work space
    of integers, all -1 at first.
    """
    out_is_gone[:] = True
    for user in range(indptr.shape[0] - 1):
        begin = other_indptr[user]
        for pair in range(begin, other_indptr[user + 1]):
            seen[np.uintp(other_code[pair])] = pair
        for pair in range(indptr[user], indptr[user + 1]):
            match = seen[np.uintp(code[pair])]
            # What is older than this user's pairs is of another user.
            out_match[pair] = match if match >= begin else -1
            if match >= begin:
                out_is_gone[match] = False

"""Compare the (user, category) pairs of two nights."""

from typing import NamedTuple

import numpy as np

from ammrank_dask.kernels.jit import kernel


class Pairs(NamedTuple):
    """Pairs of users and categories: those of user u are from `start[u]` to `start[u + 1]`."""

    start: np.ndarray
    code: np.ndarray
    rank: np.ndarray
    score: np.ndarray


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


@kernel
def count_changes(new, old, match, is_gone, is_forgotten, out_is_other, out_indptr):
    """Write where the changes of each user begin (n + 1,), and which pairs have another rank or score than before.

    Parameters are those of `list_changes`.
    """
    start, rank, score = new.start, new.rank, new.score
    old_start, old_rank, old_score = old.start, old.rank, old.score
    out_indptr[0] = 0
    for user in range(start.shape[0] - 1):
        n = np.int64(is_forgotten[user])
        for pair in range(np.uintp(start[user]), np.uintp(start[user + 1])):
            is_new, other = match[pair] < 0, np.uintp(max(0, match[pair]))
            is_other = not is_new and (rank[pair] != old_rank[other] or score[pair] != old_score[other])
            out_is_other[pair] = is_other
            n += is_new or is_other
        for pair in range(np.uintp(old_start[user]), np.uintp(old_start[user + 1])):
            n += is_gone[pair]
        out_indptr[user + 1] = out_indptr[user] + n


@kernel
def list_changes(new, old, match, is_gone, is_forgotten, is_other, numbers, indptr, out_code, out_change, out_row):
    """Write the changes of each user: what is new, what is other, what is gone, and whether they were forgotten.

    Parameters
    ----------
    new, old
        The pairs of all users on both sides.
    match, is_gone
        What `match_pairs` found of them.
    is_forgotten
        (n_users,) bool: users who have a row for that.
    is_other, indptr
        What `count_changes` found.
    numbers
        What stands in `out_change` for new, other, gone and forgotten.
    out_code, out_change, out_row
        The category, the change, and the pair of `new` that it is about; -1 where there is none.
    """
    added, changed, removed, forgotten = numbers
    start, code, old_start, old_code = new.start, new.code, old.start, old.code
    for user in range(start.shape[0] - 1):
        at = np.uintp(indptr[user])
        for pair in range(np.uintp(start[user]), np.uintp(start[user + 1])):
            if match[pair] < 0:
                out_code[at], out_change[at], out_row[at] = code[pair], added, pair
                at += np.uintp(1)
        for pair in range(np.uintp(start[user]), np.uintp(start[user + 1])):
            if is_other[pair]:
                out_code[at], out_change[at], out_row[at] = code[pair], changed, pair
                at += np.uintp(1)
        for pair in range(np.uintp(old_start[user]), np.uintp(old_start[user + 1])):
            if is_gone[pair]:
                out_code[at], out_change[at], out_row[at] = old_code[pair], removed, -1
                at += np.uintp(1)
        if is_forgotten[user]:
            out_code[at], out_change[at], out_row[at] = -1, forgotten, -1

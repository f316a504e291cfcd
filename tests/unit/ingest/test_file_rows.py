"""Files of a day with the same rows, found by sums of the hashes of their rows."""

import numpy as np
import pytest

from ammrank_dask.ingest.scan import FileRows, find_same_rows


def file_of(*rows, n_unused=0):
    """Return what tells rows, given by their hashes."""
    return FileRows(sum(rows) % 2**64, len(rows), len(rows) + n_unused)


A, B, C, D = (2**63 + number for number in (11, 203, 3_007, 40_009))


def files_of(*files):
    return {f"part-{number}": file for number, file in enumerate(files)}


@pytest.mark.parametrize(
    ("files", "same"),
    [
        ((), None),
        ((file_of(A), file_of(B), file_of(C)), None),
        ((file_of(A), file_of(A, A), file_of(C)), None),
        ((file_of(A), file_of(A, n_unused=1)), None),
        ((file_of(n_unused=2), file_of(n_unused=2)), None),
        ((file_of(A, B), file_of(C), file_of(A, B)), (0, [2])),
        ((file_of(A, B, C), file_of(A), file_of(B), file_of(C)), (0, [1, 2, 3])),
        ((file_of(A), file_of(B), file_of(A, B, C), file_of(C)), (2, [0, 1, 3])),
        ((file_of(A), file_of(B), file_of(C), file_of(D), file_of(B, C)), (4, [1, 2])),
        ((file_of(A), file_of(B), file_of(A, B, n_unused=3), file_of(n_unused=3), file_of(D)), (2, [0, 1, 3])),
        ((file_of(A), file_of(B), file_of(C), file_of(A, C)), None),  # they do not follow each other
    ],
)
def test_find_same_rows__one_file_all_others_or_some_in_order(files, same):
    expected = None if same is None else (f"part-{same[0]}", [f"part-{number}" for number in same[1]])
    assert find_same_rows(files_of(*files)) == expected


def plain_same_rows(files):
    """Return all pairs of a file and others in order that have its rows, by trying every one."""
    names, pairs = sorted(files), []
    for name in names:
        others = [other for other in names if other != name]
        for start in range(len(others)):
            for stop in range(start + 1, len(others) + 1):
                if files[name].used and sum((files[other] for other in others[start:stop]), FileRows()) == files[name]:
                    pairs.append((name, others[start:stop]))
    return pairs


@pytest.mark.parametrize("seed", range(40))
def test_find_same_rows__finds_one_where_there_is_one(seed):
    rng = np.random.default_rng(seed)
    rows = [[int(row) * 2**60 for row in rng.integers(1, 6, rng.integers(1, 5))] for _ in range(6)]
    files = files_of(*(file_of(*some) for some in rows))
    pairs = plain_same_rows(files)
    assert find_same_rows(files) in (pairs or [None])
